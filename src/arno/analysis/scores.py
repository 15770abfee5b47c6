"""A run in a few numbers: where it ended, the best on its way, and what it took to get somewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from ..errors import ArnoError
from .statistics import NAN, area

#: What a comparison may be about, the first that was recorded is; and of which of them less is better.
METRICS = {"test_f1": "test F1", "test_accuracy": "test accuracy", "test_loss": "test loss", "gap": "F(w) − F(w*)"}
LESS = ("test_loss", "train_loss", "val_loss", "gap", "distance")
WORST = "client_accuracy_worst_decile"


def sign(metric: str) -> int:
    """1 where more is better, −1 where less is."""
    return -1 if metric in LESS else 1


def possible(metric: str) -> tuple[float, float]:
    """Between which values a score lies: accuracy and F1 are shares.

    >>> possible("test_f1"), possible("test_loss")
    ((0.0, 1.0), (-inf, inf))
    """
    return (0.0, 1.0) if "accuracy" in metric or metric.endswith("_f1") else (-inf, inf)


@dataclass(frozen=True)
class Record:
    """The lines of a run's `metrics.jsonl`, and how many rounds it was to have."""

    lines: Sequence[Mapping[str, Any]]
    rounds: int

    @property
    def last(self) -> dict[str, Any]:
        """The newest value of everything."""
        return {name: value for line in self.lines for name, value in line.items()}

    def curve(self, metric: str) -> tuple[list[float], list[float]]:
        """The rounds in which a metric was recorded, and its values.

        >>> Record([{"round": 1}, {"round": 2, "test_f1": 0.5}], 2).curve("test_f1")
        ([2], [0.5])
        """
        found = [(line["round"], line[metric]) for line in self.lines if metric in line]
        if not found:
            known = dict.fromkeys(name for line in self.lines for name in line)
            raise ArnoError(f"metric = {metric}", "it was not recorded", f"there are {', '.join(known)}")
        return [t for t, _ in found], [x for _, x in found]

    def diverged(self) -> str:
        """Which score has no finite value in the end; empty if all have."""
        last = self.last
        return next((name for name in (*METRICS, *LESS) if not isfinite(last.get(name, 0))), "")

    def scores(self, metric: str, target: float | None) -> dict[str, float]:
        """Final, best by validation (never by test) and area under the curve of a metric, the worst decile of the
        clients, rounds, steps and bytes to reach the target (NaN: never reached) or in all, and the seconds.
        """
        (rounds, values), last = self.curve(metric), self.last
        out = {"final": values[-1], "best": NAN}
        held_out = metric.replace("test_", "val_")
        if metric != held_out and held_out in last:
            chosen, _ = max(zip(*self.curve(held_out), strict=True), key=lambda at: sign(metric) * at[1])
            out["best"] = dict(zip(rounds, values, strict=True))[chosen]
        first = next((i for i, t in enumerate(rounds) if t >= 1), len(rounds) - 1)  # a round 0 is a method's own extra
        out["area"] = area(rounds[first:], values[first:], self.rounds)
        out["worst_decile"] = last.get(WORST, NAN)
        at = len(self.lines) - 1 if target is None else self._reached(metric, target)
        out["rounds"] = NAN if at is None else at + 1.0
        for name, column in (("steps", "local_steps"), ("bytes", "uploaded_bytes")):
            out[name] = NAN if at is None else float(self.lines[at].get(column, NAN))
        return out | {"seconds": sum(line["seconds"] for line in self.lines)}

    def _reached(self, metric: str, target: float) -> int | None:
        good = (sign(metric) * (line[metric] - target) >= 0 if metric in line else False for line in self.lines)
        return next((i for i, hit in enumerate(good) if hit), None)
