"""FedACG: clients start from a look-ahead along the server's momentum.

    w° = w + η_s λ M;   clients start at w°, with a proximal term μ_k/2 ‖w_k − w°‖²;   Δ_k = w_k − w°
    M ← λ M + Σ p_k Δ_k;   w ← w + η_s M

Kim, Kim, Han: Communication-Efficient Federated Learning with Accelerated Client Gradient. CVPR 2024, arXiv:2201.03172.

Deviations: the paper has η_s = 1. The penalty is μ/2 ‖w_k − w°‖²; the released program has no ½.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.per_client import PerClient
from ..core.work import Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import refuse_roles


@methods.register(
    "fedacg",
    family="server",
    paper="Kim et al., CVPR 2024, arXiv:2201.03172",
    formula="start at w + η_s λ M;  M ← λ M + Δ̄;  w ← w + η_s M",
    tune={"momentum": "linear(0.5, 0.95)", "mu": "log(0.0001, 0.1)"},
)
def fedacg(*, momentum: float = 0.85, mu: PerClient = 0.001) -> list[Part]:
    """The server has momentum, and clients start from a look-ahead along this momentum.

    Helps: with low participation and skewed data; it sends no further bytes.
    Hurts: with a large momentum and a large server_lr.

    momentum: λ; 0 is FedProx.
    mu: weight of the proximal term; may differ per client.

    >>> fedacg()
    [LookAhead(momentum=0.85, mu=0.001)]
    """
    return [LookAhead(momentum, mu)]


@parts.register("look_ahead")
@dataclass
class LookAhead(Part):
    """The momentum M; clients start from the model after a step along M."""

    momentum: float = 0.85
    mu: PerClient = 0.001
    roles: ClassVar[frozenset[str]] = frozenset({"server"})

    def start(self, fed: Federation) -> None:
        """M = 0."""
        if not 0 <= self.momentum < 1:
            raise ArnoError(f"method.momentum = {self.momentum:g}", "it must be at least 0 and below 1", "try 0.85")
        why = "the look-ahead and the server's step would use different rates"
        refuse_roles(fed, self, "FedACG", {"rate": why})
        self._mu, self._rate = fed.per_client(self.mu, "method.mu", least=0), fed.server_lr
        self.m = torch.zeros_like(fed.w)

    def send(self, work: Work) -> Work:
        """Clients start from w°, and the proximal term pulls towards w°."""
        ahead = work.start + self._rate * self.momentum * self.m
        return replace(work, start=ahead, mu=work.mu + self._mu.at(work.clients, work.round).to(work.mu))

    def finish(self, t: int, v: Vec) -> Vec:
        """The new M."""
        self.m = self.momentum * self.m + v
        return self.m
