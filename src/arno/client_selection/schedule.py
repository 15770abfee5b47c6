"""Given cohorts, from a file or a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..core.federation import Federation
from ..core.method_part import Ids, Part
from ..errors import ArnoError
from ..limits import numbers, place, read_json
from . import selections


@selections.register("schedule")
def schedule(participation: float, *, path: str = "") -> Part:
    """The cohorts of a JSON file: one list of client ids per round; after the last list the first one follows.

    path: the file.
    """
    if not path:
        raise ArnoError("select=schedule", "the file is not named", "add select.path=cohorts.json, as [[0, 3], [1, 2]]")
    cohorts = numbers(read_json(place(path), "select.path ="), f"select.path = {path}")
    lists = isinstance(cohorts, list) and cohorts and all(isinstance(cohort, list) for cohort in cohorts)
    if not lists or not all(type(k) is int for cohort in cohorts for k in cohort):
        raise ArnoError(
            f"select.path = {path!r}", "it must hold a list of lists of client ids", "e.g. [[0, 3], [1, 2]]"
        )
    return Fixed(cohorts)


@dataclass
class Fixed(Part):
    """Given cohorts, one per round; after the last cohort the first one follows."""

    cohorts: Sequence[Sequence[int]]
    roles: ClassVar[frozenset[str]] = frozenset({"select"})

    def cohort(self, n: int) -> int:
        """The size of the largest given cohort."""
        return min(n, max(len(set(cohort)) for cohort in self.cohorts))

    def start(self, fed: Federation) -> None:
        """Refuse ids that do not exist."""
        for k in {k for cohort in self.cohorts for k in cohort}:
            if not 0 <= k < fed.n:
                raise ArnoError(f"client {k} in the cohorts", f"ids run from 0 to {fed.n - 1}", "correct the cohorts")

    def select(self, ids: Ids, t: int) -> Ids:
        """The cohort of this round."""
        return self.cohorts[t % len(self.cohorts)]
