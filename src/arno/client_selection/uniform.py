"""m different clients, all equally likely."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.federation import Federation
from ..core.method_part import Ids, Part
from ..core.seeds import numpy_stream
from . import selections
from .selection import Selection, take


@selections.register("uniform")
def uniform(participation: float) -> Part:
    """m different clients, all equally likely."""
    return Uniform(participation)


@dataclass
class Uniform(Selection):
    """m draws without replacement; a round costs O(m) for every N."""

    participation: float

    def start(self, fed: Federation) -> None:
        """Store the size of the cohort."""
        self._seed, self._m = fed.seed, self.cohort(fed.n)

    def select(self, ids: Ids, t: int) -> Ids:
        """Draw m clients."""
        if self._m >= len(ids):
            return ids
        rng = numpy_stream(self._seed, "select", t)
        return take(ids, torch.from_numpy(rng.choice(len(ids), self._m, replace=False)))
