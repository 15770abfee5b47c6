"""m draws with replacement, with probability p_k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core.federation import Federation
from ..core.method_part import Ids, Part
from ..core.seeds import key
from ..core.selection_draws import uniforms
from . import selections
from .selection import Selection, shares, take


@selections.register("rand")
def rand(participation: float) -> Part:
    """m draws with replacement, with probability p_k; a client drawn twice counts twice."""
    return Rand(participation)


@dataclass
class Rand(Selection):
    """m draws with replacement, with probability p; a round costs O(m log N)."""

    participation: float

    def start(self, fed: Federation) -> None:
        """Store the size of the cohort and the share of every client."""
        self._base, self._m = key(fed.seed, "select"), self.cohort(fed.n)
        self._p = shares(fed)
        self._cumulated = np.cumsum(self._p)

    def select(self, ids: Ids, t: int) -> Ids:
        """Draw m times."""
        cumulated = self._cumulated if isinstance(ids, range) else np.cumsum(self._p[np.asarray(ids)])
        at = np.searchsorted(cumulated, uniforms(self._base, t, self._m) * cumulated[-1], side="right")
        return take(ids, torch.from_numpy(at.clip(max=len(ids) - 1)))
