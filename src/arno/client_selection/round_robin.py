"""Clients take part in the order of their ids."""

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
    """Clients take part in the order of their ids."""

    participation: float

    def start(self, fed: Federation) -> None:
        """Store the size of the cohort."""
        self._m = self.cohort(fed.n)

    def select(self, ids: Ids, t: int) -> Ids:
        """The next m clients."""
        m = min(self._m, len(ids))
        return take(ids, (torch.arange(m) + t * m) % len(ids))
