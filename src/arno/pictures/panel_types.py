"""A panel is a picture as data: a title, a text and numbers. Reports and picture files show the same panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from ..core.metric import Metric

Numbers = Sequence[float | None]  #: None: the number is not known


@dataclass(frozen=True)
class Line:
    """One curve. `low` and `high` are the borders of its band; they are empty if it has no band."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis.

    log: whether the y axis is logarithmic (only if all y are positive). low, high: the limits of the y axis.
    """

    title: str
    text: str
    lines: Sequence[Line]
    x: str = "round"
    y: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, metric: Metric, title: str, text: str, lines: Sequence[Line], x: str = "round") -> Chart:
        """Curves of a metric: its declaration gives the label, the scale and the range of the y axis.

        >>> chart = Chart.of(Metric("rmse", "RMSE", "less", low=0), "Error", "", [])
        >>> chart.y, chart.log, chart.low, chart.high
        ('RMSE', False, 0, None)
        """
        low, high = (end if isfinite(end) else None for end in (metric.low, metric.high))
        return cls(title, text, lines, x, metric.label, metric.log, low, high)


@dataclass(frozen=True)
class HeatMap:
    """A table of numbers that are shown as colours; the first row is at the top. `marks` are texts in the cells.

    root: whether colours show the square roots of the numbers, so that small numbers can be distinguished, too.
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
    """The mean of curves (x → y) at the x that all curves have; the band is ± one standard deviation.

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
    """The same panel of several seeds as one panel: a band for each curve; for heat maps, the first one."""
    first = panels[0]
    charts = [panel for panel in panels if isinstance(panel, Chart)]
    if not isinstance(first, Chart):
        return first
    if len(charts) == 1:
        return replace(first, lines=[known(line) for line in first.lines])
    lines = [
        band(line.name, [points(other) for chart in charts for other in chart.lines if other.name == line.name])
        for line in first.lines
    ]
    return replace(first, lines=lines)


def points(line: Line) -> dict[float, float]:
    """A curve as x → y, without the points that are not known."""
    pairs = zip(line.x, line.y, strict=True)
    return {x: y for x, y in pairs if x is not None and y is not None and isfinite(y)}


def known(line: Line) -> Line:
    """A curve without the points that are not known.

    >>> known(Line("a", [1, 2, 3], [0.5, None, float("nan")]))
    Line(name='a', x=[1], y=[0.5], low=[], high=[])
    """
    kept = points(line)
    rows = [i for i, x in enumerate(line.x) if x in kept]
    return Line(line.name, *([some[i] for i in rows if len(some)] for some in (line.x, line.y, line.low, line.high)))


def curves_of(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Line]:
    """Curves over the rounds of a run. names: the label of each column of the records that is drawn.

    >>> curves_of([{"round": 1, "norm": 0.5}, {"round": 2}, {"round": 3, "norm": 0.25}], {"norm": "‖c‖"})
    [Line(name='‖c‖', x=[1, 3], y=[0.5, 0.25], low=(), high=())]
    """
    lines = []
    for key, name in names.items():
        known = [(row["round"], row[key]) for row in rows if row.get(key) is not None and isfinite(row[key])]
        if known:
            lines.append(Line(name, [t for t, _ in known], [y for _, y in known]))
    return lines


def to_json(panel: Panel) -> dict[str, Any]:
    """A panel as plain values."""
    return {"kind": type(panel).__name__, **asdict(panel)}


def from_json(values: Mapping[str, Any]) -> Panel:
    """The panel that `to_json` wrote. Anything else raises ValueError.

    >>> chart = Chart("Step", "", [Line("a", [1, 2], [0.5, 0.25])])
    >>> from_json(to_json(chart)) == chart
    True
    """
    try:
        given = dict(values)
        kind = given.pop("kind")
        if kind == "Chart":
            return _checked_chart(Chart(**{**given, "lines": [Line(**line) for line in given["lines"]]}))
        if kind == "HeatMap":
            return _checked_heat_map(HeatMap(**given))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no panel: {error}") from error
    raise ValueError(f"no panel: kind {kind!r}")


def _checked_chart(chart: Chart) -> Chart:
    """The chart; an error if it cannot be drawn."""
    lengths = ({len(line.x), len(line.y), len(line.low or line.x), len(line.high or line.x)} for line in chart.lines)
    numbers = (value for line in chart.lines for some in (line.x, line.y, line.low, line.high) for value in some)
    texts = (chart.title, chart.text, chart.x, chart.y, *(line.name for line in chart.lines))
    if any(len(each) > 1 for each in lengths) or not _plain(texts, [*numbers, chart.low, chart.high]):
        raise ValueError(f"no panel: chart {chart.title!r}")
    return chart


def _checked_heat_map(panel: HeatMap) -> HeatMap:
    """The heat map; an error if it cannot be drawn."""
    tables = [panel.cells, panel.marks] if panel.marks else [panel.cells]
    whole = all(len(table) == len(panel.rows) for table in tables)
    whole = whole and all(len(row) == len(panel.columns) for table in tables for row in table)
    texts = [panel.title, panel.text, panel.x, panel.y, panel.value, *panel.rows, *panel.columns]
    texts += [mark for row in panel.marks for mark in row]
    if not whole or not _plain(texts, [cell for row in panel.cells for cell in row]):
        raise ValueError(f"no panel: heat map {panel.title!r}")
    return panel


def _plain(texts: Sequence[Any], numbers: Sequence[Any]) -> bool:
    """Whether all `texts` are texts, and all `numbers` are numbers or None."""
    right = all(number is None or isinstance(number, int | float) for number in numbers)
    return right and all(isinstance(text, str) for text in texts)
