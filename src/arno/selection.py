"""Who takes part in a round. A selection is a part like any other; it serves every method and problem.

Cohorts come from a stream keyed by the run's seed and the round alone, so that all methods at one seed see the same
clients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .core.federation import Federation
from .core.part import Ids, Part
from .core.seeds import numpy_stream
from .errors import ArnoError
from .registry import Registry

selections = Registry("select", "arno.selection")


def cohort_size(participation: float, n: int) -> int:
    """m = max(⌊λN⌋, 1).

    >>> cohort_size(0.1, 100), cohort_size(0.29, 100), cohort_size(0.001, 100)
    (10, 29, 1)
    """
    if not 0 < participation <= 1:
        raise ArnoError(
            f"participation = {participation:g}", "it must be above 0 and at most 1", "try participation=0.1"
        )
    return max(int(participation * n + 1e-9), 1)


@selections.register("uniform")
def uniform(participation: float) -> Part:
    """m clients, each equally likely, none twice."""
    return Uniform(participation)


@selections.register("schedule")
def schedule(participation: float, *, path: str = "") -> Part:
    """The cohorts listed in a JSON file: one list of client ids per round, repeated from the start when it ends.

    path: the file.
    """
    try:
        cohorts = json.loads(Path(path).expanduser().read_text())
        good = bool(cohorts) and all(isinstance(k, int) for cohort in cohorts for k in cohort)
    except (OSError, ValueError, TypeError) as error:
        raise ArnoError(
            f"select.path = {path!r}", f"cannot be read ({error})", "give a JSON list of lists of ids"
        ) from error
    if not good:
        raise ArnoError(
            f"select.path = {path!r}", "it must hold a list of lists of client ids", "e.g. [[0, 3], [1, 2]]"
        )
    return Fixed(cohorts)


@dataclass
class Uniform(Part):
    """m clients without replacement; costs O(m), whatever N is."""

    participation: float

    def start(self, fed: Federation) -> None:
        """Size the cohort."""
        self._seed, self._m = fed.seed, cohort_size(self.participation, fed.n)

    def select(self, ids: Ids, t: int) -> Ids:
        """Draw m of them."""
        if self._m >= len(ids):
            return ids
        rng = numpy_stream(self._seed, "select", t)
        return take(ids, torch.from_numpy(rng.choice(len(ids), self._m, replace=False)))


@dataclass
class Fixed(Part):
    """Given cohorts, one per round, from the first again after the last."""

    cohorts: Sequence[Sequence[int]]

    def start(self, fed: Federation) -> None:
        """Refuse ids that do not exist."""
        for k in {k for cohort in self.cohorts for k in cohort}:
            if not 0 <= k < fed.n:
                raise ArnoError(f"client {k} in the schedule", f"ids run from 0 to {fed.n - 1}", "correct the schedule")

    def select(self, ids: Ids, t: int) -> Ids:
        """The round's cohort."""
        return self.cohorts[t % len(self.cohorts)]


def take(ids: Ids, at: Tensor) -> Tensor:
    """The ids at some positions."""
    return at if isinstance(ids, range) else torch.as_tensor(ids)[at]
