"""A run in a few numbers: where it ended, its best model, and what it took to reach a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..core.metric import Metric
from ..errors import ArnoError
from .statistics import NAN, area

#: How the name of a score over the worst tenth of the clients ends.
WORST = "_worst_decile"


@dataclass(frozen=True)
class Record:
    """What a run recorded, the declarations of its scores, and how many rounds it was to have."""

    rows: Sequence[Mapping[str, Any]]
    metrics: Sequence[Metric]
    rounds: int

    @property
    def last(self) -> dict[str, Any]:
        """The newest value of everything."""
        return {name: value for row in self.rows for name, value in row.items()}

    def metric(self, name: str) -> Metric:
        """The declaration of a score; a column that nobody declared is a number of which more is better."""
        return next((metric for metric in self.metrics if metric.name == name), Metric(name, name))

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """The rounds in which a score was recorded, and its values.

        >>> Record([{"round": 1}, {"round": 2, "test_f1": 0.5}], [], 2).curve("test_f1")
        ([2], [0.5])
        """
        found = [(row["round"], row[name]) for row in self.rows if name in row]
        if not found:
            known = dict.fromkeys(name for row in self.rows for name in row)
            raise ArnoError(f"metric = {name}", "it was not recorded", f"there are {', '.join(known)}")
        return [t for t, _ in found], [x for _, x in found]

    def diverged(self) -> str:
        """The name of a score whose last value is not finite; empty if all are."""
        last = self.last
        return next((metric.name for metric in self.metrics if not isfinite(last.get(metric.name, 0))), "")

    def scores(self, name: str, target: float | None) -> dict[str, float]:
        """Final, best by validation (never by test) and area under the curve of a score; the worst tenth of clients;
        rounds, steps and bytes to reach the target (NaN: never reached) or in all, and the seconds.
        """
        (rounds, values), last, sign = self.curve(name), self.last, self.metric(name).sign
        out = {"final": values[-1], "best": NAN}
        held_out = name.replace("test_", "val_")
        if name != held_out and held_out in last:
            chosen, _ = max(zip(*self.curve(held_out), strict=True), key=lambda at: sign * at[1])
            out["best"] = dict(zip(rounds, values, strict=True))[chosen]
        first = next((i for i, t in enumerate(rounds) if t >= 1), len(rounds) - 1)  # a round 0 is a method's own extra
        out["area"] = area(rounds[first:], values[first:], self.rounds)
        out["worst_decile"] = next((value for column, value in last.items() if column.endswith(WORST)), NAN)
        at = len(self.rows) - 1 if target is None else self._reached(name, sign, target)
        out["rounds"] = NAN if at is None else at + 1.0
        for cost, column in (("steps", "local_steps"), ("bytes", "uploaded_bytes")):
            out[cost] = NAN if at is None else float(self.rows[at].get(column, NAN))
        return out | {"seconds": sum(row["seconds"] for row in self.rows)}

    def _reached(self, name: str, sign: int, target: float) -> int | None:
        good = (sign * (row[name] - target) >= 0 if name in row else False for row in self.rows)
        return next((i for i, hit in enumerate(good) if hit), None)
