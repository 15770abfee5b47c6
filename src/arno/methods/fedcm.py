"""FedCM: every local gradient is mixed with M, the mean gradient of the last round.

    client k:  g ← α (∇ℓ(w_k; b) + wd·w_k) + (1 − α) M
    server:    M ← −Σ p_k Δ_k / (steps_k η_k);   w ← w + η_s Σ p_k Δ_k

Xu, Wang, Wang, Yao: FedCM: Federated Learning with Client-level Momentum. 2021, arXiv:2106.10874.

Deviations: η_s is the paper's server rate divided by (steps × local rate), so that α = 1 is FedAvg. Clients with
different numbers of steps or different rates divide by their own steps and rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import no_momentum, refuse_private
from .fedacg import LookAhead
from .fednova import Nova


@methods.register(
    "fedcm",
    family="variance-reduction",
    paper="Xu et al., 2021, arXiv:2106.10874",
    formula="g ← α ∇ℓ(w_k; b) + (1 − α) M;  M ← −Σ p_k Δ_k/(steps_k η_k)",
    tune={"alpha": "log(0.05, 1)"},
)
def fedcm(*, alpha: float = 0.1) -> list[Part]:
    """Every local gradient is mixed with the mean gradient of the last round.

    Helps: with low participation and skewed data; clients keep no state.
    Hurts: with a small α and a small learning rate: clients learn very little from their own data.

    alpha: α, the share of the local gradient; 1 is FedAvg.

    >>> fedcm()
    [ClientMomentum(alpha=0.1)]
    """
    return [ClientMomentum(alpha)]


@parts.register("client_momentum")
@dataclass
class ClientMomentum(Part):
    """M, the mean gradient of the last round."""

    alpha: float = 0.1
    roles: ClassVar[frozenset[str]] = frozenset({"control"})
    vectors: ClassVar[tuple[int, int]] = (1, 0)  # M

    def start(self, fed: Federation) -> None:
        """M = 0."""
        if not 0 < self.alpha <= 1:
            raise ArnoError(
                f"method.alpha = {self.alpha:g}", "it must be above 0 and at most 1", "try method.alpha=0.1"
            )
        no_momentum(fed, "FedCM", "Δ_k/(steps_k η_k) is the mean gradient only for plain SGD")
        for other in fed.parts:
            if isinstance(other, Nova | LookAhead):
                rule = f"{type(other).__name__} changes the size of the updates from which FedCM computes M"
                raise ArnoError(f"FedCM with {type(other).__name__}", rule, "leave one of them out")
        refuse_private(fed, self, "FedCM", "the server has no momentum for layers that stay with the clients")
        self.m = torch.zeros_like(fed.w)

    def begin(self, t: int) -> None:
        """Begin the sum of this round at zero."""
        self._mean = torch.zeros_like(self.m)

    def send(self, work: Work) -> Work:
        """Every gradient g is replaced by α g + (1 − α) M."""
        if self.alpha == 1:
            return work
        return replace(work, scale=self.alpha, push=((1 - self.alpha) * self.m).expand(len(work), -1))

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Add up −Σ p_k Δ_k / (steps_k η_k)."""
        self._mean -= (work.weight / (work.steps * work.lr)) @ out.delta
        return v

    def finish(self, t: int, v: Vec) -> Vec:
        """Replace M by the sum of this round."""
        self.m = self._mean
        return v
