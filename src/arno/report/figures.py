"""The report's pictures as files for a paper: a column wide, 8-point type, colours safe for colour-blind readers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArnoError
from ..panels.panel import Chart, HeatMap, Panel
from ..pictures.figures import COLOURS, figure
from . import panels

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.linewidth": 0.6,
    "pdf.fonttype": 42,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
}
MARKERS, DASHES = "osD^vP*X", ("-", "--", "-.", ":")


def write_figures(comparison: Comparison, folder: Path, kinds: Sequence[str]) -> Path:
    """Every picture of the report in `folder`, as `png`, `pdf` or both."""
    import matplotlib

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for name, panel in named(comparison):
                fig = draw(panel)
                for kind in kinds:
                    made = {"CreationDate": None} if kind == "pdf" else {}
                    fig.savefig(folder / f"{name}.{kind}", dpi=300, metadata=made)
    except OSError as error:
        raise ArnoError(f"{folder}", f"cannot be written ({error.strerror})", "choose another --out") from error
    return folder


def named(comparison: Comparison) -> Iterator[tuple[str, Panel]]:
    """Every picture with the name of its file: curves as score-axis, others by their title."""
    for place in comparison.places:
        groups = [group for group in comparison.members if group.setting == place and group.runs]
        part_way = [one for group in comparison.members if group.setting == place for one in group.part_way()]
        prefix = f"{place} " if place else ""
        curves = panels.curves([*groups, *part_way])
        for metric in curves.metrics:
            for axis in curves.axes if metric.startswith("test_") or metric in panels.LOG else ["round"]:
                yield slug(f"{prefix}{metric} {axis}"), curves.chart(metric, axis)
        for some in panels.by_section(groups)[0].values():
            yield from ((slug(f"{prefix}{panel.title}"), panel) for panel in some)


def slug(text: str) -> str:
    """A name for a file.

    >>> slug("partition.alpha=0.1 lorenzo: Ranks")
    'partition.alpha=0.1-lorenzo-ranks'
    """
    return re.sub(r"[^\w.=]+", "-", text.lower()).strip("-")


def draw(panel: Panel) -> Any:
    """A panel as a matplotlib figure."""
    fig, axes = figure(1, 1, (3.5, 2.5))
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
    elif panel.x in panels.AXES.values():
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
