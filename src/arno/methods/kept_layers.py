"""Layers that stay with the clients: the part of FedPer, LG-FedAvg, FedBN, FedRep and `local` (training alone).

    client k:  starts from w with its own values of the kept coordinates; trains all coordinates; keeps its new values
               of the kept coordinates
    server:    w ← w + η_s Σ p_k (w_k − w) on the other coordinates; in w, the kept coordinates stay at w⁰
    personal model of client k: the current w with the client's own values of the kept coordinates

A method that keeps other layers returns `Keep` with another group: see `fedper.py`.

Deviation: kept values begin at w⁰ for every client (FedPer's paper draws them at random).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Mat, Result, Vec, Work
from . import parts


@parts.register("keep")
@dataclass
class Keep(Part):
    """Each client's own values of a group of coordinates (head, body, norm, full, or a pattern of names)."""

    group: str = "head"
    roles: ClassVar[frozenset[str]] = frozenset({"personal"})

    def start(self, fed: Federation) -> None:
        """Every client begins at w⁰."""
        self._fed, self._mask = fed, fed.layout.mask(self.group).to(fed.w.device)
        self.kept = fed.table(fed.w[self._mask])

    def private(self) -> Tensor:
        """The coordinates of the group."""
        return self._mask

    def send(self, work: Work) -> Work:
        """Each client starts from w with its own values of the group."""
        return replace(work, start=self._own(work.start, work.clients))

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Each client keeps its new values of the group."""
        self.kept[work.clients] = out.trained(work)[:, self._mask]
        return v

    def personal(self, clients: Tensor) -> Mat:
        """The current w with each client's own values of the group."""
        return self._own(self._fed.w.expand(len(clients), -1), clients)

    def _own(self, models: Mat, clients: Tensor) -> Mat:
        models = models.clone()
        models[:, self._mask] = self.kept[clients]
        return models
