"""A panel is a picture as data: a title, a sentence and some numbers, drawn alike in the report and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Numbers = Sequence[float | None]  #: None: not known


@dataclass(frozen=True)
class Line:
    """One curve; `low` and `high` are its band."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis; `log` asks for a logarithmic scale of y where all of it is positive."""

    title: str
    text: str
    lines: Sequence[Line]
    x: str = "round"
    y: str = ""
    log: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A table of numbers as colours, the first row on top; `marks` are written into the cells.

    root: shade by the square root, so that one large number does not hide the rest.
    """

    title: str
    text: str
    cells: Sequence[Numbers]
    rows: Sequence[str]
    columns: Sequence[str]
    x: str = ""
    y: str = ""
    value: str = ""
    marks: Sequence[Sequence[str]] = ()
    root: bool = False


Panel = Chart | HeatMap


def band(name: str, curves: Sequence[Mapping[Any, float]]) -> Line:
    """The mean of curves (x → y) at the points that all of them have, ± one standard deviation if there are several.

    >>> band("a", [{1: 1.0, 2: 2.0}, {1: 3.0}])
    Line(name='a', x=[1], y=[2.0], low=[0.5857864376269049], high=[3.414213562373095])
    >>> band("b", [{1: 1.0}]).low
    ()
    """
    import numpy as np

    x = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    values = np.array([[curve[at] for at in x] for curve in curves], dtype=float)
    if not x:
        return Line(name, [], [])
    mean = values.mean(0)
    if len(curves) < 2:
        return Line(name, x, mean.tolist())
    std = values.std(0, ddof=1)
    return Line(name, x, mean.tolist(), (mean - std).tolist(), (mean + std).tolist())


def over_seeds(panels: Sequence[Panel]) -> Panel:
    """One panel of the same panel for several seeds: bands for curves; of heat maps the first."""
    first = panels[0]
    charts = [panel for panel in panels if isinstance(panel, Chart)]
    if not isinstance(first, Chart) or len(charts) == 1:
        return first
    lines = [
        band(line.name, [points(other) for chart in charts for other in chart.lines if other.name == line.name])
        for line in first.lines
    ]
    return Chart(first.title, first.text, lines, first.x, first.y, first.log)


def points(line: Line) -> dict[float, float]:
    """A curve as x → y, without what is not known."""
    return {x: y for x, y in zip(line.x, line.y, strict=True) if x is not None and y is not None}


def lines_of(history: pd.DataFrame, names: Mapping[str, str]) -> list[Line]:
    """Curves over the rounds of a run's records: `names` says of which columns, and how to call them."""
    columns = {name: history[key].dropna() for key, name in names.items() if key in history}
    return [Line(name, column.index.tolist(), column.tolist()) for name, column in columns.items() if len(column)]
