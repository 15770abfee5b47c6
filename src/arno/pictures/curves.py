"""The picture of the scores of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from ..core.metric import Metric
from .figure import COLOURS, figure


def draw_curves(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Metric], path: Path) -> None:
    """Write the picture of the recorded metrics to a file."""
    curves(rows, metrics).savefig(path, dpi=130)


def curves(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]) -> Any:
    """The recorded metrics over the rounds, as a figure; metrics with the same `axis` are in the same picture."""
    from matplotlib.ticker import MaxNLocator

    axes: dict[str, list[tuple[Metric, list[tuple[int, float]]]]] = {}
    for metric in metrics:
        points = [(row["round"], row[metric.name]) for row in rows if row.get(metric.name) is not None]
        if points:
            axes.setdefault(metric.axis or metric.label, []).append((metric, points))
    fig, grid = figure(1, max(1, len(axes)), (5 * max(1, len(axes)), 4))
    for axis, (label, lines) in zip(grid[0], axes.items(), strict=False):
        for i, (metric, points) in enumerate(lines):
            marker = "o" if len(points) <= 20 else ""
            axis.plot(*zip(*points, strict=True), color=COLOURS[i % 8], label=metric.label, lw=1.6, marker=marker, ms=3)
        axis.set(xlabel="round", ylabel=label)
        low, high = lines[0][0].low, lines[0][0].high
        if isfinite(low) and isfinite(high):
            axis.set_ylim(low, high + 0.02 * (high - low))
        if all(metric.log and min(y for _, y in points) > 0 for metric, points in lines):
            axis.set_yscale("log")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    return fig
