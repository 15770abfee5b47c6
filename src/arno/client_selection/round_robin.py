"""The clients in turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.federation import Federation
from ..core.method_part import Ids, Part
from . import selections
from .selection import Selection, take


@selections.register("roundrobin")
def roundrobin(participation: float) -> Part:
    """The next m clients in the order of their ids; after the last client the first one follows."""
    return RoundRobin(participation)


@dataclass
class RoundRobin(Selection):
    """The clients in turn."""

    participation: float

    def start(self, fed: Federation) -> None:
        """Note the size of the cohort."""
        self._m = self.cohort(fed.n)

    def select(self, ids: Ids, t: int) -> Ids:
        """The next m clients."""
        m = min(self._m, len(ids))
        return take(ids, (torch.arange(m) + t * m) % len(ids))
