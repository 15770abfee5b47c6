"""FedProx: a proximal term keeps clients near the model that they received.

    client k:  w_k ← w_k − η_k ∇( ℓ(w_k; b) + μ_k/2 ‖w_k − w‖² )
    server:    as FedAvg

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, arXiv:1812.06127.

Deviation: in the paper, slow clients do less work, and the paper measures how exactly each client solves its problem.
Here, `local.epochs` sets the work of each client; it may differ per client and per round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.per_client import PerClient
from ..core.work import Work
from . import methods, parts


@methods.register(
    "fedprox",
    family="regularised",
    paper="Li et al., MLSys 2020, arXiv:1812.06127",
    formula="g ← ∇ℓ(w_k; b) + μ_k (w_k − w)",
    tune={"mu": "log(0.001, 1)"},
)
def fedprox(*, mu: PerClient = 0.01) -> list[Part]:
    """FedAvg with a proximal term that keeps each client near the model that it received.

    Helps: if clients do unequal or very much local work; otherwise their models become too different.
    Hurts: with a large μ: the models of clients change too little in a round. With a small μ it is nearly FedAvg.

    mu: μ, the weight of the proximal term; 0 is FedAvg. May differ per client.

    >>> fedprox(mu=0.1)
    [Proximal(mu=0.1)]
    """
    return [Proximal(mu)]


@parts.register("proximal")
@dataclass
class Proximal(Part):
    """Adds μ_k (w_k − start) to every local gradient."""

    mu: PerClient = 0.01
    roles: ClassVar[frozenset[str]] = frozenset({"proximal"})

    def start(self, fed: Federation) -> None:
        """Draw μ_k, if it differs per client."""
        self._mu = fed.per_client(self.mu, "method.mu", least=0)

    def send(self, work: Work) -> Work:
        """Add the term to the work."""
        return replace(work, mu=work.mu + self._mu.at(work.clients, work.round).to(work.mu))
