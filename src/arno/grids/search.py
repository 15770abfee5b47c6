"""The search for the settings of one method: Optuna proposes settings, and runs score them.

The proposals depend only on the name of the group, the ranges, the number of the trial and the scores of earlier
trials. So a search that was stopped is repeated from its beginning: its trials are the same, and their runs exist
already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import ArnoError
from ..limits import TEXT, read_text, regular, room
from ..records import disk
from .ranges import Range

#: The number of trials in a batch, and of random trials at the beginning of a search.
BATCH = 8
#: The shares of the rounds after which trials are compared. After the first one, only the better half of a batch
#: continues.
RUNGS = (0.25, 1.0)


@dataclass
class Trial:
    """Settings that were tried. settings: as a run takes them. values: as Optuna chose them.

    scores: validation scores by round. pruned: whether it was stopped before the last round. lost: why it has no score.
    diverged: whether the reason is that its numbers are not finite.
    """

    number: int
    values: dict[str, Any]
    settings: dict[str, str]
    scores: dict[int, float] = field(default_factory=dict)
    pruned: bool = False
    lost: str = ""
    diverged: bool = False

    @property
    def score(self) -> float | None:
        """The score after the last round; None if the trial has none."""
        return None if self.pruned or self.lost or not self.scores else self.scores[max(self.scores)]


class Search:
    """The search of one group of a comparison.

    name: the name of the group. space: the ranges by key. sign: 1 if larger scores are better, −1 if smaller ones are.
    recorded: the values that an earlier call chose for the first trials.
    """

    def __init__(self, name: str, space: Mapping[str, Range], sign: int, recorded: Sequence[dict[str, Any]]) -> None:
        self.name, self.space, self.sign, self.recorded = name, dict(space), sign, recorded
        self.trials: list[Trial] = []
        self._asked: list[Any] = []
        self._study = import_optuna().create_study(direction="maximize" if sign > 0 else "minimize", study_name=name)

    def ask(self, count: int) -> list[Trial]:
        """The next trials; none if there is nothing to search."""
        from optuna.samplers import TPESampler

        first = len(self.trials)
        for number in range(first, first + count if self.space else 0):
            if number < len(self.recorded) and self._knows(self.recorded[number]):
                self._study.enqueue_trial(self.recorded[number])
            self._study.sampler = TPESampler(seed=seed_of(self.name, number), n_startup_trials=BATCH)
            asked = self._study.ask({key: each.distribution() for key, each in self.space.items()})
            written = {key: self.space[key].written(value) for key, value in asked.params.items()}
            self._asked.append(asked)
            self.trials.append(Trial(number, dict(asked.params), written))
        return self.trials[first:]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Tell Optuna the scores of trials that `ask` returned, in the order of their numbers."""
        from optuna.trial import TrialState

        for trial in sorted(trials, key=lambda trial: trial.number):
            asked = self._asked[trial.number]
            for t, score in trial.scores.items():
                asked.report(score if isfinite(score) else -self.sign * float("inf"), t)
            if trial.lost:
                asked.set_user_attr("lost", trial.lost)
            if trial.score is None:  # TPE avoids the values of pruned trials and ignores failed ones
                pruned = trial.pruned or trial.diverged
                self._study.tell(asked, state=TrialState.PRUNED if pruned else TrialState.FAIL)
            else:
                self._study.tell(asked, trial.score)

    def _knows(self, values: Any) -> bool:
        """Whether recorded values belong to this search."""
        return (
            isinstance(values, dict)
            and values.keys() == self.space.keys()
            and all(each.accepts(values[key]) for key, each in self.space.items())
        )

    def better_half(self, trials: Sequence[Trial], t: int) -> list[Trial]:
        """The trials with the better scores after round `t`: half of them, at least one.

        Of equal scores, the first is better.
        """
        there = [trial for trial in trials if not trial.lost]
        ranked = sorted(there, key=lambda trial: (-self.sign * trial.scores[t], trial.number))
        kept = {trial.number for trial in ranked[: (len(trials) + 1) // 2]}
        return [trial for trial in trials if trial.number in kept]

    @property
    def best(self) -> Trial:
        """The trial with the best score after the last round; of equal scores, the first one."""
        if not self.space:
            return Trial(0, {}, {})
        complete = [trial for trial in self.trials if trial.score is not None]
        if not complete:
            why = next((trial.lost for trial in self.trials if trial.lost), "")
            remedy = f"choose other ranges; the first one: {why}"
            raise ArnoError(f"search for {self.name}", "none of its trials has a score", remedy)
        return max(complete, key=lambda trial: (self.sign * float(trial.score or 0.0), -trial.number))

    def store(self, path: Path) -> None:
        """Write the finished trials into a storage of Optuna, which `optuna-dashboard` shows.

        Arno does not read it, so a damaged storage is set aside and written again.
        """
        if not self.space:
            return
        try:
            if os.path.lexists(path):
                room(regular(path).stat().st_size, str(path), TEXT)
            self._store(path)
        except Exception:  # Optuna can raise any exception; the record of the search is in another file
            with suppress(OSError):
                disk.set_aside(path)
                self._store(path)

    def _store(self, path: Path) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        storage = JournalStorage(JournalFileBackend(str(path)))
        kept = optuna.create_study(
            storage=storage, study_name=self.name, direction=self._study.direction, load_if_exists=True
        )
        ended = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.is_finished()]
        kept.add_trials(ended[len(kept.get_trials(deepcopy=False)) :])


def repair_storage(path: Path) -> None:
    """Remove the lock of a killed process, and set a storage aside that is incomplete or damaged.

    Only one process at a time writes into the folder of a search, so no other process holds the lock. The trials of a
    storage that was set aside are written again.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if not os.path.lexists(path):
        return
    try:
        text = read_text(path, "storage of Optuna", TEXT)
        whole = text.endswith("\n") and all(isinstance(json.loads(line), dict) for line in text.splitlines())
        JournalStorage(JournalFileBackend(str(path))).get_all_studies()
    except Exception:  # JSON or Optuna can raise any exception for a damaged file
        whole = False
    if not whole:
        disk.set_aside(path)


def rungs(rounds: int, every: int) -> list[int]:
    """The rounds after which trials are compared. They are evaluated rounds, and the last one is the last round.

    >>> rungs(40, 1), rungs(40, 15), rungs(3, 1)
    ([10, 40], [15, 40], [1, 3])
    """
    found = {min(rounds, max(1, -(-int(rounds * share) // every)) * every) for share in RUNGS}
    return sorted(found | {rounds})


def seed_of(name: str, number: int) -> int:
    """The seed with which Optuna proposes a trial."""
    return int.from_bytes(blake2b(f"{name}/{number}".encode(), digest_size=4).digest(), "big")


def import_optuna() -> Any:
    """The module Optuna, without its messages; an error with the command that installs it if it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise ArnoError("arno tune", "it needs Optuna", "pip install 'arno[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
