"""How tables print numbers: scores as the declaration of their metric says, costs with a unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isnan

from ..core.metric import Metric

NONE = "–"


@dataclass(frozen=True)
class Cost:
    """How a cost is printed: its heading, the unit in which it is given, and the digits after the point."""

    label: str
    unit: float
    digits: int

    def show(self, value: float) -> str:
        """A value as text; a small value that would be printed as 0 has two significant digits instead.

        >>> COSTS["bytes"].show(12_345_678.0), COSTS["steps"].show(1234.0), COSTS["seconds"].show(float("nan"))
        ('12.35', '1,234', '–')
        >>> COSTS["seconds"].show(0.0123), COSTS["bytes"].show(320.0), COSTS["seconds"].show(0.0)
        ('0.012', '0.00032', '0.0')
        """
        if isnan(value):
            return NONE
        shown = value / self.unit
        small = 0 < shown < 0.5 * 10.0**-self.digits
        return f"{shown:.2g}" if small else f"{shown:,.{self.digits}f}"


#: The costs of a comparison by the column of its table.
COSTS = {
    "rounds": Cost("rounds", 1, 1),
    "steps": Cost("local steps", 1, 0),
    "bytes": Cost("MB uploaded", 1e6, 2),
    "seconds": Cost("wall seconds", 1, 1),
}


def score(metric: Metric, value: float, scale: float | None = None, sign: str = "") -> str:
    """A score, or a difference of scores; `scale` and `sign` as in `Metric.show`."""
    return NONE if isnan(value) else metric.show(value, scale, sign)


def spread(metric: Metric, mean: float, std: float) -> str:
    """Mean ± standard deviation; without the second part if there is no standard deviation.

    >>> loss = Metric("loss", "loss", "less", digits=1)
    >>> spread(loss, 2.0, 1.414), spread(loss, 2.0, float("nan")), spread(loss, float("nan"), float("nan"))
    ('2.0 ± 1.4', '2.0', '–')
    >>> spread(loss, 1.5e-7, 2e-8)
    '1.5e-07 ± 2e-08'
    """
    return score(metric, mean) + ("" if isnan(std) else f" ± {score(metric, std, mean)}")


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def cut(name: str, most: int = 32) -> str:
    """The name of a client or class, cut so that it fits into a table.

    >>> cut("bern"), cut("a very long name of a hospital", 12)
    ('bern', 'a very long…')
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def largest(*values: float) -> float:
    """The largest absolute value, which is the common scale of numbers that are printed together; NaN is left out.

    >>> largest(-0.5, 0.2, float("nan"))
    0.5
    """
    return max((abs(value) for value in values if not isnan(value)), default=0.0)


def probability(p: float) -> str:
    """The p-value of a test as text.

    >>> probability(0.01234), probability(1e-5), probability(float("nan"))
    ('0.012', '< 0.001', '–')
    """
    return NONE if isnan(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def duration(seconds: float) -> str:
    """A time as text.

    >>> duration(7.24), duration(200), duration(7300), duration(float("inf"))
    ('7.2 s', '3 min 20 s', '2 h 1 min', 'inf s')
    """
    if seconds < 60 or not isfinite(seconds):  # a record can hold any number
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{hours} h {minutes % 60} min"
