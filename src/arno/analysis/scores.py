"""Numbers that describe a run: its final score, the score of its best model, and the cost to reach a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..core.metric import Metric
from ..errors import ArnoError
from .statistics import NAN, area


def worst_tenth(metrics: Iterable[Metric]) -> list[Metric]:
    """The declared scores of the worst tenth of the clients; scores on the clients' own samples come first."""
    found = [metric for metric in metrics if metric.clients == "worst"]
    return sorted(found, key=lambda metric: not metric.name.startswith("own_"))


@dataclass(frozen=True)
class Record:
    """The records of a run.

    rows: one mapping per round. metrics: the declarations of the scores. rounds: how many rounds the run should have.
    """

    rows: Sequence[Mapping[str, Any]]
    metrics: Sequence[Metric]
    rounds: int

    @property
    def last(self) -> dict[str, Any]:
        """The newest value of every column."""
        return {name: value for row in self.rows for name, value in row.items()}

    def metric(self, name: str) -> Metric:
        """The declaration of a score. For a column without a declaration, more is better."""
        return next((metric for metric in self.metrics if metric.name == name), Metric(name, name))

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """The rounds in which a score was recorded, and its values.

        >>> Record([{"round": 1}, {"round": 2, "test_f1": 0.5}], [], 2).curve("test_f1")
        ([2], [0.5])
        """
        found = [(row["round"], row[name]) for row in self.rows if name in row]
        if not found:
            known = dict.fromkeys(name for row in self.rows for name in row)
            remedy = f"there are {', '.join(known)}"
            if name.startswith("personal_") and any(one.startswith("own_") for one in known):
                remedy = (
                    "set eval.finetune=5 for methods without personal models (for FedAvg only: fedavg.eval.finetune=5)"
                )
            raise ArnoError(f"metric = {name}", "it was not recorded by all runs", remedy)
        return [t for t, _ in found], [x for _, x in found]

    def diverged(self) -> str:
        """The name of a score whose last value is not finite; empty if there is none."""
        last = self.last
        return next((metric.name for metric in self.metrics if not isfinite(last.get(metric.name, 0))), "")

    def scores(self, name: str, target: float | None) -> dict[str, float]:
        """The columns of a comparison for this run; NaN where a value is not known.

        final: the last score. best: the score in the round with the best validation score. area: the mean over the
        rounds. worst_decile: the score of the worst tenth of the clients. rounds, steps, bytes: the cost to reach the
        target; without a target, the cost of the whole run. seconds: the time of the whole run.
        """
        rounds, values = self.curve(name)
        first = next((i for i, t in enumerate(rounds) if t >= 1), len(rounds) - 1)  # a method may begin with a round 0
        out = {"final": values[-1], "best": self._best(name), "area": area(rounds[first:], values[first:], self.rounds)}
        worst = (metric.name for metric in worst_tenth(self.metrics))
        out["worst_decile"] = next((float(self.last[column]) for column in worst if column in self.last), NAN)
        at = len(self.rows) - 1 if target is None else self._reached(name, target)
        out["rounds"] = NAN if at is None else at + 1.0
        for cost, column in (("steps", "local_steps"), ("bytes", "uploaded_bytes")):
            out[cost] = NAN if at is None else float(self.rows[at].get(column, NAN))
        return out | {"seconds": sum(row.get("seconds", NAN) for row in self.rows)}

    def _best(self, name: str) -> float:
        """The score in the round with the best validation score; NaN for a score on the validation data itself."""
        metric = self.metric(name)
        held_out = metric.on_other("val")
        if held_out in ("", name) or held_out not in self.last:
            return NAN
        known = [(x, t) for t, x in zip(*self.curve(held_out), strict=True) if isfinite(x)]
        if not known:
            return NAN
        _, chosen = max(known, key=lambda at: metric.sign * at[0])
        return dict(zip(*self.curve(name), strict=True)).get(chosen, NAN)

    def _reached(self, name: str, target: float) -> int | None:
        """The index of the first row in which the score is at least as good as the target; None if there is none."""
        sign = self.metric(name).sign
        good = (name in row and sign * (row[name] - target) >= 0 for row in self.rows)
        return next((i for i, hit in enumerate(good) if hit), None)
