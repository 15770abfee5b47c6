"""A panel is a picture as data: a title, a sentence and some numbers, drawn alike in the report and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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


def curves_of(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Line]:
    """Curves over the rounds of a run's records; `names` maps columns to labels.

    >>> curves_of([{"round": 1, "norm": 0.5}, {"round": 2}, {"round": 3, "norm": 0.25}], {"norm": "‖c‖"})
    [Line(name='‖c‖', x=[1, 3], y=[0.5, 0.25], low=(), high=())]
    """
    lines = []
    for key, name in names.items():
        known = [(row["round"], row[key]) for row in rows if row.get(key) is not None]
        if known:
            lines.append(Line(name, [t for t, _ in known], [y for _, y in known]))
    return lines


def to_json(panel: Panel) -> dict[str, Any]:
    """A panel as plain values."""
    return {"kind": type(panel).__name__, **asdict(panel)}


def from_json(values: Mapping[str, Any]) -> Panel:
    """The panel that `to_json` wrote; raises ValueError for anything else.

    >>> chart = Chart("Step", "", [Line("a", [1, 2], [0.5, 0.25])])
    >>> from_json(to_json(chart)) == chart
    True
    """
    given = dict(values)
    kind = {"Chart": Chart, "HeatMap": HeatMap}.get(str(given.pop("kind", None)))
    try:
        if kind is Chart:
            return Chart(**{**given, "lines": [Line(**line) for line in given["lines"]]})
        if kind is HeatMap:
            return HeatMap(**given)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no panel: {error}") from error
    raise ValueError(f"no panel: kind {values.get('kind')!r}")
