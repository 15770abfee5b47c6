"""The verdict on a figure: the readings of every arm, and the checks with their ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, log10
from typing import Any

from ..analysis.comparison import Comparison, Group
from ..analysis.scores import Record
from ..analysis.statistics import Summary, summary
from ..core.metric import Metric
from ..errors import ArnoError
from .figure import Check, Figure, Reading
from .run import tried

#: The smallest number in a ratio; it replaces a gap that is zero because of rounding.
TINY = 1e-300

#: Readings by arm, by name of the reading, by seed.
Read = Mapping[str, Mapping[str, Mapping[int, float]]]


@dataclass(frozen=True)
class Outcome:
    """A check with the mean over the seeds, its 95 % interval, and whether the mean is in the range.

    The mean of ratios is the geometric mean.
    """

    check: Check
    found: Summary
    holds: bool

    @property
    def certain(self) -> bool:
        """Whether the whole interval lies in the band or outside of it; not with one seed."""
        low, high = self.found.low, self.found.high
        inside = self.check.low <= low and high <= self.check.high
        return inside if self.holds else high < self.check.low or self.check.high < low


@dataclass(frozen=True)
class Verdict:
    """All readings and checks of a figure. chosen: by arm, the best of the settings that were tried."""

    figure: Figure
    read: Read
    chosen: Mapping[str, str]
    outcomes: tuple[Outcome, ...]

    @property
    def reproduced(self) -> bool:
        """Whether every check holds."""
        return all(outcome.holds for outcome in self.outcomes)

    @property
    def word(self) -> str:
        """The verdict: reproduced or not reproduced."""
        return "reproduced" if self.reproduced else "not reproduced"

    def record(self) -> dict[str, Any]:
        """The verdict as plain values."""
        return {
            "figure": self.figure.name,
            "verdict": self.word,
            "readings": {
                arm: {name: list(by.values()) for name, by in mine.items()} for arm, mine in self.read.items()
            },
            "chosen": dict(self.chosen),
            "checks": [
                {
                    "says": one.check.says,
                    one.check.kind: [end if isfinite(end) else None for end in (one.check.low, one.check.high)],
                    "found": one.found.mean,
                    "interval": [one.found.low, one.found.high] if one.found.n > 1 else None,
                    "holds": one.holds,
                    "certain": one.certain,
                }
                for one in self.outcomes
            ],
        }


def judge(figure: Figure, found: Comparison) -> Verdict:
    """Read the runs of a figure and judge its checks."""
    groups = {group.name: group for group in found.members}
    signs = {name: _sign(reading, groups.values()) for name, reading in figure.readings.items()}
    return decide(figure, {name: _of_group(figure, group, signs) for name, group in groups.items()}, signs)


def decide(figure: Figure, values: Read, signs: Mapping[str, float]) -> Verdict:
    """Judge the checks of a figure.

    values: the readings of every group of runs: one group per arm, or per setting that is tried (see `tried`).
    signs: by name of the reading: 1 if more is better, -1 if less is better.
    """
    first = next(iter(figure.readings))
    read: dict[str, Mapping[str, Mapping[int, float]]] = {}
    chosen: dict[str, str] = {}
    for arm, about in figure.arms.items():
        groups = tried(arm, about)
        word = max(groups, key=lambda word: signs[first] * summary(list(values[groups[word]][first].values())).mean)
        read[arm] = values[groups[word]]
        chosen |= {arm: word} if word else {}
    return Verdict(figure, read, chosen, tuple(_outcome(check, read) for check in figure.checks))


def value(record: Record, reading: Reading) -> float:
    """One reading of one run."""
    rounds, values = record.curve(reading.metric)
    if reading.kind == "final":
        return values[-1]
    if reading.kind == "last":
        return sum(values[-reading.count :]) / len(values[-reading.count :])
    if reading.kind == "at":
        known = [x for t, x in zip(rounds, values, strict=True) if t <= (reading.round or 0)]
        return known[-1] if known else values[0]
    assert reading.target is not None
    sign = record.metric(reading.metric).sign
    hits = [i for i, x in enumerate(values) if sign * (x - reading.target) >= 0]
    if reading.kind == "rounds_to":
        return float(rounds[hits[0]] if hits else record.rounds + 1)
    first = next((i for i, t in enumerate(rounds) if t >= (reading.round or 0)), 0)
    last = hits[0] if hits and hits[0] > first else len(rounds) - 1
    return (rounds[last] - rounds[first]) / max(abs(log10(values[first] / values[last])), 1e-9)


def _of_group(figure: Figure, group: Group, signs: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """The readings of a group by seed. A run that diverged has the worst value in each reading."""
    out: dict[str, dict[int, float]] = {}
    for name, reading in figure.readings.items():
        out[name] = {}
        for seed in figure.seeds:
            if seed in group.runs:
                run = group.runs[seed]
                out[name][seed] = value(Record(run.rows, run.metrics, run.config["rounds"]), reading)
            elif seed in group.lost and group.lost[seed].diverged:
                out[name][seed] = -signs[name] * inf
            else:
                why = group.lost[seed].reason if seed in group.lost else "it is not finished"
                raise ArnoError(f"{group.label} seed={seed} has no result", why, "give the command again, with --retry")
    return out


def _sign(reading: Reading, groups: Iterable[Group]) -> float:
    return sign(reading, [metric for group in groups for run in group.begun for metric in run.metrics])


def sign(reading: Reading, metrics: Iterable[Metric]) -> float:
    """1 if a larger reading is better, -1 if a smaller reading is better."""
    if reading.kind in ("rounds_to", "decade"):
        return -1.0
    return next((metric for metric in metrics if metric.name == reading.metric), Metric(reading.metric, "")).sign


def _outcome(check: Check, read: Read) -> Outcome:
    left = read[check.left][check.reading]
    right = {} if check.right is None else read[check.right][check.reading]
    pairs = [(x, right.get(seed, 0.0)) for seed, x in left.items()]
    found = _ratio(pairs) if check.kind == "ratio" else _mean([x - y for x, y in pairs])
    return Outcome(check, found, check.low <= found.mean <= check.high)


def _ratio(pairs: Sequence[tuple[float, float]]) -> Summary:
    """The geometric mean of the ratios and its interval."""
    logs = _mean([log(max(x, TINY) / max(y, TINY)) if isfinite(x) and isfinite(y) else x - y for x, y in pairs])
    if not isfinite(logs.mean):
        return logs
    return Summary(logs.n, exp(logs.mean), exp(logs.std), exp(logs.low), exp(logs.high))


def _mean(values: Sequence[float]) -> Summary:
    """The mean and its interval; if a run diverged, the infinite sum without an interval."""
    return summary(values) if all(map(isfinite, values)) else Summary(len(values), sum(values))
