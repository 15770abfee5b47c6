"""The pictures of the report as files for a paper: one column wide, 8-point type, colours for colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.metric import TRAIN_LOSS, Metric
from ..errors import ArnoError
from ..pictures.draw import draw, slug
from ..pictures.panel_types import Panel
from . import comparison_panels

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.linewidth": 0.6,
    "pdf.fonttype": 42,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
}


def write_figures(comparison: Comparison, folder: Path, kinds: Sequence[str]) -> Path:
    """Write every picture of the report into `folder`, as `png`, `pdf` or both."""
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
    """Every picture with the name of its file: `score-axis` for curves, the title of the panel for other pictures."""
    for place in comparison.places:
        groups = [group for group in comparison.members if group.setting == place and group.runs]
        part_way = [one for group in comparison.members if group.setting == place for one in group.part_way()]
        prefix = f"{place} " if place else ""
        curves = comparison_panels.curves([*groups, *part_way])
        for metric in curves.metrics.values():
            for axis in curves.axes if _main(metric, comparison.declared()) else ["round"]:
                yield slug(f"{prefix}{metric.name} {axis}"), curves.chart(metric.name, axis)
        for section in comparison_panels.sections(groups).values():
            yield from ((slug(f"{prefix}{panel.title}"), panel) for panel in section.panels)


def _main(metric: Metric, compared: Metric) -> bool:
    """Whether a score is drawn over every axis: a score of the model on the same split as the compared one."""
    return metric.split == compared.split and not metric.clients and metric.name != TRAIN_LOSS.name
