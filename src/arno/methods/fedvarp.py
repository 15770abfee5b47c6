"""FedVARP: in rounds in which a client does not take part, the server uses the last update of this client.

    y_k = 0 for all N clients
    server:  v ← (1/m) Σ_{k∈S} (Δ_k − y_k) + (1/N) Σ_j y_j
             w ← w + η_s v
             y_k ← Δ_k  for k ∈ S

Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP: Tackling the Variance Due to Partial Client Participation in
Federated Learning. UAI 2022, arXiv:2207.14130.

The mean over all N clients is a running sum: a round costs O(m·d). v uses the unweighted mean over S for every value of
`weighting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from . import methods, parts


@methods.register(
    "fedvarp",
    family="variance-reduction",
    paper="Jhunjhunwala et al., UAI 2022, arXiv:2207.14130",
    formula="v ← (1/m) Σ_{k∈S} (Δ_k − y_k) + (1/N) Σ_j y_j;  y_k ← Δ_k",
)
def fedvarp() -> list[Part]:
    """The server stores the last update of every client and uses it in rounds in which the client does not take part.

    Helps: with low participation and clients that hold different data.
    Hurts: if clients rarely take part, because their stored updates are old. It stores one update per client.

    >>> fedvarp()
    [Varp()]
    """
    return [Varp()]


@parts.register("varp")
@dataclass
class Varp(Part):
    """The stored updates y_k, and the mean that they correct."""

    roles: ClassVar[frozenset[str]] = frozenset({"mean"})

    def start(self, fed: Federation) -> None:
        """All y_k are zero."""
        self.y = fed.table()

    def begin(self, t: int) -> None:
        """(1/N) Σ_j y_j, before this round's updates."""
        self._mean = self.y.mean()

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """(1/m) Σ (Δ_k − y_k); then y_k ← Δ_k."""
        y = work.masked(self.y[work.clients])
        self.y[work.clients] = out.delta
        return work.share @ (out.delta - y)

    def finish(self, t: int, v: Vec) -> Vec:
        """Add (1/N) Σ_j y_j."""
        return v + self._mean
