"""Panels as figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..panels import Chart, HeatMap, Panel
from .figure import COLOURS, figure

MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")
#: Axes with large numbers, which are written 10k, 2.5M.
LARGE = ("local steps", "uploaded bytes", "idealised parallel seconds")


def write_panels(panels: Sequence[Panel], folder: Path) -> None:
    """Every panel as a PNG file, named by its title, in a folder."""
    for panel in panels:
        if drawn(panel):
            draw(panel, (7, 4)).savefig(folder / f"{slug(panel.title)}.png", dpi=130)


def drawn(panel: Panel) -> bool:
    """Whether there is anything to see."""
    return any(panel.cells) if isinstance(panel, HeatMap) else any(len(line.x) for line in panel.lines)


def slug(text: str) -> str:
    """A name for a file.

    >>> slug("partition.alpha=0.1 lorenzo: Ranks")
    'partition.alpha=0.1-lorenzo-ranks'
    """
    return re.sub(r"[^\w.=]+", "-", text.lower()).strip("-")


def draw(panel: Panel, size: tuple[float, float] = (3.5, 2.5)) -> Any:
    """A panel as a matplotlib figure."""
    fig, axes = figure(1, 1, size)
    axis = axes[0][0]
    if isinstance(panel, Chart):
        _chart(axis, panel)
    else:
        _heat_map(fig, axis, panel)
    axis.set(xlabel=panel.x, ylabel=panel.y)
    return fig


def _chart(axis: Any, panel: Chart) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for i, line in enumerate(panel.lines):
        if not len(line.x):
            continue
        colour, every = COLOURS[i % len(COLOURS)], max(1, len(line.x) // 8)
        style = {"color": colour, "ls": DASHES[i // len(COLOURS) % 4], "marker": MARKERS[i % 8], "markevery": every}
        axis.plot(line.x, line.y, label=line.name, **style)
        if len(line.low):
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, lw=0)
    values = [y for line in panel.lines for y in (*line.y, *line.low) if y is not None]
    if panel.log and values and min(values) > 0:
        axis.set_yscale("log")
    if re.search("accuracy|F1|share|worst", panel.y):
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, 0), min(high, 1))
    axis.grid(alpha=0.25, lw=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.x.startswith("round"):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    elif panel.x in LARGE:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    if axis.lines:
        axis.legend(frameon=False, fontsize=7)


def _heat_map(fig: Any, axis: Any, panel: HeatMap) -> None:
    import numpy as np
    from matplotlib.colors import PowerNorm

    cells = np.array(panel.cells, dtype=float)
    shades = PowerNorm(0.5, vmin=0) if panel.root else None
    shown = np.where(cells == 0, np.nan, cells) if panel.root else cells
    image = axis.imshow(shown, "cividis_r", shades, aspect="auto", interpolation="nearest")
    fig.colorbar(image, ax=axis, label=panel.value)
    for set_ticks, names in ((axis.set_xticks, panel.columns), (axis.set_yticks, panel.rows)):
        step = max(1, len(names) // 10)
        set_ticks(range(0, len(names), step), names[::step])
    middle = np.nanmean(shown) if len(panel.columns) <= 30 else np.inf
    for (i, j), value in np.ndenumerate(shown):
        if panel.marks and np.isfinite(value) and np.isfinite(middle):
            shade = "white" if value > middle else "black"
            axis.text(j, i, panel.marks[i][j], ha="center", va="center", fontsize=5, color=shade)
