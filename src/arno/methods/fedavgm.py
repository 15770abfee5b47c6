"""FedAvgM (`ServerM`): momentum on the server.

    Δ̄ ← Σ_{k∈S} p_k Δ_k
    w ← w + η_s (Δ̄ + β M);  M ← β M + Δ̄          so the step is η_s times the new M

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019,
arXiv:1909.06335. As in the paper, M does not contain η_s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Vec
from ..errors import ArnoError
from . import methods, parts


@methods.register(
    "fedavgm",
    family="server",
    paper="Hsu et al., 2019, arXiv:1909.06335",
    formula="M ← β M + Δ̄;  w ← w + η_s M",
    tune={"momentum": "linear(0.5, 0.99)"},
)
def fedavgm(*, momentum: float = 0.9) -> list[Part]:
    """FedAvg with momentum on the server.

    Helps: with few participants per round, because their mean update is noisy, and in long runs.
    Hurts: with a large momentum and a large server_lr: the model oscillates.

    momentum: β; 0 is FedAvg.

    >>> fedavgm(momentum=0.5)
    [ServerMomentum(momentum=0.5)]
    """
    return [ServerMomentum(momentum)]


@parts.register("server_momentum")
@dataclass
class ServerMomentum(Part):
    """M ← β M + Δ̄, and the server steps along M."""

    momentum: float = 0.9
    roles: ClassVar[frozenset[str]] = frozenset({"server"})

    def start(self, fed: Federation) -> None:
        """M = 0."""
        if not 0 <= self.momentum < 1:
            raise ArnoError(f"method.momentum = {self.momentum:g}", "it must be at least 0 and below 1", "try 0.9")
        self.M = torch.zeros_like(fed.w)

    def finish(self, t: int, v: Vec) -> Vec:
        """M ← β M + Δ̄; the step is M."""
        self.M = self.momentum * self.M + v
        return self.M
