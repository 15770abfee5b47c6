"""APFL: each client mixes the global model with its own model, and learns the shares of the mixture.

    v̄ = α_k v_k + (1 − α_k) w_k;   on each batch b
    w_k ← w_k − η ∇f(w_k; b);   v_k ← v_k − η α_k ∇f(v̄; b)
    on the first batch of a round:   α_k ← min(1, max(0, α_k − η ⟨v_k − w_k, ∇f(v̄; b)⟩))
    server: as FedAvg, on w_k;   personal model: α_k v_k + (1 − α_k) w, with the current w

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. 2020, arXiv:2003.13461.

Deviations: α_k is adapted once per round, as in the authors' program, with the rate η_k, and clipped to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.per_client import PerClient
from ..core.work import Mat, Result, Rule, Vec, Work
from . import methods, parts
from .checks import plain_steps


@methods.register(
    "apfl",
    family="personal",
    paper="Deng et al., 2020, arXiv:2003.13461",
    formula="v_k ← v_k − η α_k ∇f(α_k v_k + (1 − α_k) w_k; b);  w as FedAvg",
    defaults={"weighting": "uniform"},
    tune={"alpha": "linear(0.1, 0.9)"},
)
def apfl(*, alpha: PerClient = 0.5, adaptive: bool = True) -> list[Part]:
    """Each client mixes the global model with its own model, and learns the shares of the mixture.

    Helps: if the global model is good for some clients and bad for others.
    Hurts: in time: each step needs two gradients.

    alpha: α, the share of the personal model (its first value if it is adaptive); may differ per client.
    adaptive: whether each client learns its α.

    >>> apfl(alpha=0.25)
    [Mixture(alpha=0.25, adaptive=True)]
    """
    return [Mixture(alpha, adaptive)]


@parts.register("mixture")
@dataclass
class Mixture(Part):
    """The personal models v_k and their shares α_k."""

    alpha: PerClient = 0.5
    adaptive: bool = True
    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def start(self, fed: Federation) -> None:
        """v_k = w⁰."""
        plain_steps(fed, self, "APFL")
        self._fed = fed
        self.a = fed.per_client(self.alpha, "method.alpha", least=0, most=1)[torch.arange(fed.n)].clone()
        self.v = fed.table(fed.w)

    def send(self, work: Work) -> Work:
        """Send the rule of local training, v_k and α_k."""
        rule = Rule("apfl", {"adaptive": float(self.adaptive)})
        given, numbers = {**work.given, "v": self.v[work.clients]}, {**work.numbers, "alpha": self.a[work.clients]}
        return replace(work, rule=rule, given=given, numbers=numbers)

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Each client keeps its v_k and α_k."""
        self.v[work.clients] = torch.stack([extra["v"] for extra in out.extra]).to(out.delta)
        self.a[work.clients] = torch.stack([extra["alpha"] for extra in out.extra]).to(self.a)
        return v

    def personal(self, clients: Tensor) -> Mat:
        """α_k v_k + (1 − α_k) w."""
        share = self.a[clients].to(self._fed.w)[:, None]
        return share * self.v[clients] + (1 - share) * self._fed.w
