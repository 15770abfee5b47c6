"""Statistics of a comparison, as functions of numbers only. A value that the numbers do not determine is NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NAN = float("nan")
LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """The mean, the sample standard deviation, and the 95 % interval of the mean. One value has only a mean."""

    n: int
    mean: float = NAN
    std: float = NAN
    low: float = NAN
    high: float = NAN


def summary(values: Sequence[float]) -> Summary:
    """Summarise independent values. The interval follows from Student's t distribution.

    >>> s = summary([1.0, 2.0, 3.0])
    >>> s.mean, s.std, round(s.low, 3), round(s.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    >>> summary([2.0])
    Summary(n=1, mean=2.0, std=nan, low=nan, high=nan)
    """
    n = len(values)
    if n == 0:
        return Summary(0)
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1))
    half = student(n - 1) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def student(freedom: int, level: float = LEVEL) -> float:
    """Half the width of the interval, in standard errors.

    >>> round(student(2), 3), round(student(9), 3)
    (4.303, 2.262)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def paired_t(differences: Sequence[float]) -> float:
    """The two-sided p of Student's paired t test: 1 if all differences are 0, NaN for fewer than two pairs."""
    from scipy.special import stdtr

    s = summary(differences)
    if s.n < 2:
        return NAN
    if s.std == 0:
        return 1.0 if s.mean == 0 else 0.0
    return float(2 * stdtr(s.n - 1, -abs(s.mean) / (s.std / math.sqrt(s.n))))


def wilcoxon(differences: Sequence[float]) -> float:
    """The two-sided p of Wilcoxon's signed-rank test. It is exact, also with ties; differences of 0 are left out.

    With n pairs, p is at least 2/2ⁿ: with five seeds it is always above 0.05.

    >>> wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    if len(differences) < 2:
        return NAN
    kept = [x for x in differences if x != 0]
    doubled = [round(2 * rank) for rank in ranks([abs(x) for x in kept])]
    counts = [1]  # how many of the 2ⁿ signs give each sum of the positive (doubled) ranks
    for rank in doubled:
        longer = [0] * rank + counts
        for i, count in enumerate(counts):
            longer[i] += count
        counts = longer
    seen = sum(rank for rank, x in zip(doubled, kept, strict=True) if x > 0)
    tail = min(sum(counts[: seen + 1]), sum(counts[seen:]))
    return min(1.0, 2 * tail / sum(counts))


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values have the mean of their ranks.

    >>> ranks([3.0, 1.0, 3.0])
    [2.5, 1.0, 2.5]
    """
    order = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(order, 1)))}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction for several tests. NaN means that there is no test: it stays NaN and does not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    tested = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    out, least = [NAN] * len(ps), 0.0
    for before, (p, i) in enumerate(tested):
        least = max(least, min(1.0, (len(tested) - before) * p))
        out[i] = least
    return out


def area(rounds: Sequence[float], values: Sequence[float], last: float) -> float:
    """The mean of a curve over the rounds up to `last`. A run that ended earlier keeps its last value.

    >>> area([1, 2, 3], [0.0, 1.0, 1.0], 5)
    0.875
    """
    x, y = [*rounds], [*values]
    if x[-1] < last:
        x, y = [*x, last], [*y, y[-1]]
    if x[-1] == x[0]:
        return y[-1]
    pieces = [(b - a) * (u + v) / 2 for a, b, u, v in zip(x, x[1:], y, y[1:], strict=False)]
    return math.fsum(pieces) / (x[-1] - x[0])


def differences(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    """a − b at the seeds that both have."""
    return [a[seed] - b[seed] for seed in a if seed in b]


def winner(scores: Mapping[str, Mapping[int, float]]) -> str | None:
    """The name whose scores are better than those of every other name, or None. More is better; scores are by seed.

    The winner is the name with the best mean, if the paired 95 % interval of its difference to every other name is
    above zero. No correction for several tests is needed, because the claim holds only if all of the tests succeed. The
    intervals are two-sided; this allows for the choice of the best mean by the same numbers. A name without scores is
    left out.

    >>> winner({"a": {0: 1.0, 1: 1.1, 2: 1.2}, "b": {0: 0.5, 1: 0.61, 2: 0.7}})
    'a'
    >>> winner({"a": {0: 1.0}, "b": {0: 0.5}})
    """
    there = {name: values for name, values in scores.items() if values}
    if len(there) < 2:
        return None
    best = max(there, key=lambda name: summary([*there[name].values()]).mean)
    others = (differences(there[best], values) for name, values in there.items() if name != best)
    return best if all(summary(gap).low > 0 for gap in others) else None
