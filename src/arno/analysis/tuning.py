"""The record of a search for settings: the trials, their costs, and the settings that were chosen."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..core.metric import Metric
from ..errors import ArnoError
from ..records import checksummed

if TYPE_CHECKING:
    from .comparison import Comparison

#: The file that describes a search, in the folder of its comparison.
RECORD = "tune.json"
#: The names of the costs of a trial in the record.
COSTS = ("rounds", "local_steps", "uploaded_bytes", "seconds")

UNTUNED = "No setting was searched: the order holds for these settings only. The command arno tune searches them."


@dataclass(frozen=True)
class Tuned:
    """The search of one group.

    space: the range of each searched setting. trials: as the search recorded them. best: the settings of the best
    trial. score: its score. border: settings whose best value is at the `lower` or `upper` end of its range.
    """

    label: str
    name: str
    setting: str
    space: Mapping[str, str]
    trials: Sequence[Mapping[str, Any]]
    best: Mapping[str, str] = field(default_factory=dict)
    score: float = float("nan")
    border: Mapping[str, str] = field(default_factory=dict)

    def cost(self, name: str) -> float:
        """The sum of a cost over all trials. name: one of `COSTS`."""
        return sum(float(trial[name]) for trial in self.trials)

    def scores(self) -> list[float]:
        """The last score of every trial that has one, pruned trials included."""
        return [float(trial["scores"][max(trial["scores"], key=int)]) for trial in self.trials if trial["scores"]]

    def middle(self) -> float:
        """The median of the scores. If it is far from the best one, the method depends on its settings."""
        found = self.scores()
        return median(found) if found else float("nan")


@dataclass(frozen=True)
class Tuning:
    """A search: the score that it used, its seeds and budget, and one `Tuned` per group.

    rounds: for each group, the rounds of a trial that did not end early. trials: the trials per group. prune: whether
    bad trials ended early.
    """

    metric: Metric
    seeds: str
    rounds: tuple[int, ...]
    trials: int
    prune: bool
    groups: Sequence[Tuned]

    @classmethod
    def open(cls, folder: Path) -> Tuning | None:
        """The search of a comparison; None if its settings were not searched."""
        if not os.path.lexists(folder / RECORD):
            return None
        try:
            found = recorded(folder)
            groups = [_tuned(group, space) for group, space in zip(found["groups"], found["ranges"], strict=True)]
            metric = Metric.from_json(found["metric"])
            return cls(metric, found["seeds"], tuple(found["rounds"]), found["trials"], found["pruning"], groups)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise unreadable(folder, f"{error!r}") from error


def recorded(folder: Path) -> dict[str, Any]:
    """The record of the search in a folder; an error if the file is damaged."""
    try:
        return checksummed.read(folder / RECORD, folder, "methods")
    except ArnoError as error:
        raise unreadable(folder, error.args[1]) from error


def unreadable(folder: Path, reason: str) -> ArnoError:
    """The error for the record of a search that cannot be read."""
    remedy = "remove it and give the arno tune command again: it makes the same trials, and runs nothing twice"
    return ArnoError(f"{folder / RECORD}", f"it is not a record of a search ({reason})", remedy)


def _tuned(group: Mapping[str, Any], space: Mapping[str, str]) -> Tuned:
    about = Tuned(str(group["label"]), str(group["name"]), str(group["setting"]), space, group["trials"])
    if group.get("best") is None:
        return about
    best = group["trials"][group["best"]]
    score = float(best["scores"][max(best["scores"], key=int)])
    return Tuned(**{**vars(about), "best": best["settings"], "score": score, "border": group["border"]})


def search_of(comparison: Comparison) -> Tuning | None:
    """The search that chose the settings of a comparison; None if they were not searched."""
    return Tuning.open(comparison.path) if comparison.path else None


def untuned(comparison: Comparison) -> bool:
    """Whether a comparison has several methods, and their settings were not searched."""
    several = any("method.kind" in mine for mine in comparison.settings.differing.values())
    return several and search_of(comparison) is None
