"""Panels as matplotlib figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

from .figure import COLOURS, figure
from .panel_types import Chart, HeatMap, Line, Panel

#: The most columns of a heat map with marks.
COLUMNS = 30
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")
#: The labels of x axes with large numbers, which are written as 10k or 2.5M.
LARGE = ("local steps", "uploaded bytes", "idealised parallel seconds")


def write_panels(panels: Sequence[Panel], folder: Path) -> None:
    """Write every panel that has data into a folder, as a PNG file; the title of the panel gives the file name."""
    for panel in panels:
        if drawn(panel):
            draw(panel, (7, 4)).savefig(folder / f"{slug(panel.title)}.png", dpi=130)


def drawn(panel: Panel) -> bool:
    """Whether a panel has data."""
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
        if len(line.x):
            _line(axis, line, i, sum(_same(line, later) for later in panel.lines[i + 1 :]))
    known = [y for line in panel.lines for y in line.y if y is not None]
    if panel.log and known and min(known) > 0:
        axis.set_yscale("log")
    low, high = axis.get_ylim()
    low, high = low if panel.low is None else max(low, panel.low), high if panel.high is None else min(high, panel.high)
    if low < high:
        axis.set_ylim(low, high)
    axis.grid(alpha=0.25, lw=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.x.startswith("round"):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    elif panel.x in LARGE:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    if axis.lines:
        axis.legend(frameon=False, fontsize=7)


def _same(one: Line, other: Line) -> bool:
    """Whether two lines are drawn at the same place."""
    pairs = zip(one.y, other.y, strict=False)
    return list(one.x) == list(other.x) and all(
        a == b or (a is not None and b is not None and isclose(a, b, rel_tol=1e-3)) for a, b in pairs
    )


def _line(axis: Any, line: Line, i: int, above: int) -> None:
    """Draw a line. above: the number of lines that cover it; it is drawn broader, so that it can still be seen."""
    colour, every = COLOURS[i % len(COLOURS)], max(1, len(line.x) // 8)
    style = {"color": colour, "ls": DASHES[i // len(COLOURS) % 4], "marker": MARKERS[i % 8], "markevery": every}
    axis.plot(line.x, line.y, label=line.name, lw=1.5 + 2.5 * min(above, 3), **style)
    if len(line.low):
        axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, lw=0)


def legible(panel: HeatMap) -> HeatMap:
    """A heat map with marks, with only as many columns as leave the marks readable; the last column is kept.

    >>> wide = HeatMap("Ranks", "", [list(range(65))], ["a"], [str(t) for t in range(65)], marks=[["1"] * 65])
    >>> legible(wide).columns[-3:], len(legible(wide).marks[0])
    (['58', '61', '64'], 22)
    """
    step = -(-len(panel.columns) // COLUMNS)
    if not panel.marks or step < 2:
        return panel
    kept = slice((len(panel.columns) - 1) % step, None, step)
    cells, marks = [row[kept] for row in panel.cells], [row[kept] for row in panel.marks]
    return replace(panel, cells=cells, marks=marks, columns=panel.columns[kept])


def _heat_map(fig: Any, axis: Any, panel: HeatMap) -> None:
    import numpy as np
    from matplotlib.colors import PowerNorm

    panel = legible(panel)
    cells = np.array(panel.cells, dtype=float)
    shades = PowerNorm(0.5, vmin=0) if panel.root else None
    shown = np.where(cells == 0, np.nan, cells) if panel.root else cells
    image = axis.imshow(shown, "cividis_r", shades, aspect="auto", interpolation="nearest")
    fig.colorbar(image, ax=axis, label=panel.value)
    for set_ticks, names in ((axis.set_xticks, panel.columns), (axis.set_yticks, panel.rows)):
        step = max(1, len(names) // 10)
        set_ticks(range(0, len(names), step), names[::step])
    if not panel.marks or not np.isfinite(shown).any():
        return
    for (i, j), value in np.ndenumerate(shown):
        if np.isfinite(value):
            shade = "white" if image.norm(value) > 0.5 else "black"
            axis.text(j, i, panel.marks[i][j], ha="center", va="center", fontsize=5, color=shade)
