"""FedDyn: a regulariser, which changes in every round, moves the clients' optima to the global optimum.

    client states g_k = 0, server state h = 0
    client k:  w_k ← SGD on ℓ(w_k; b) − ⟨g_k, w_k⟩ + α/2 ‖w_k − w‖²;   g_k ← g_k − α Δ_k
    server:    h ← h − (α/N) Σ_{k∈S} Δ_k;   v ← (1/m) Σ_{k∈S} Δ_k − h/α

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization. ICLR 2021,
arXiv:2111.04263.
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


@methods.register(
    "feddyn",
    family="regularised",
    paper="Acar et al., ICLR 2021, arXiv:2111.04263",
    formula="g ← ∇ℓ(w_k; b) − g_k + α (w_k − w);  g_k ← g_k − αΔ_k;  v ← Δ̄ − h/α",
    tune={"alpha": "log(0.001, 1)"},
)
def feddyn(*, alpha: float = 0.01) -> list[Part]:
    """A linear term and a proximal term, which change in every round, move the clients' optima to the global optimum.

    Helps: with skewed data and many rounds.
    Hurts: with a small α or a large learning rate: the state of the server can grow, and the run can diverge.

    alpha: α, the weight of the regulariser.

    >>> feddyn(alpha=0.1)
    [Dyn(alpha=0.1)]
    """
    return [Dyn(alpha)]


@parts.register("dyn")
@dataclass
class Dyn(Part):
    """The states g_k and h, and the mean that h corrects."""

    alpha: float = 0.01
    roles: ClassVar[frozenset[str]] = frozenset({"mean", "control"})

    def start(self, fed: Federation) -> None:
        """All states are zero."""
        if not self.alpha > 0:
            raise ArnoError(f"method.alpha = {self.alpha:g}", "it must be positive", "try method.alpha=0.01")
        self.gk, self.h = fed.table(), torch.zeros_like(fed.w)

    def begin(self, t: int) -> None:
        """Begin the sum of this round at zero."""
        self._sum = torch.zeros_like(self.h)

    def send(self, work: Work) -> Work:
        """Add the linear term and the proximal term to the work."""
        return replace(work.add_drift(-self.gk[work.clients]), mu=work.mu + self.alpha)

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """g_k ← g_k − α Δ_k; return the unweighted mean (1/m) Σ Δ_k."""
        self.gk[work.clients] = self.gk[work.clients] - self.alpha * out.delta
        self._sum += work.count.to(out.delta) @ out.delta
        return work.share @ out.delta

    def finish(self, t: int, v: Vec) -> Vec:
        """h ← h − (α/N) Σ Δ_k; return v − h/α."""
        self.h = self.h - self.alpha / self.gk.n * self._sum
        return v - self.h / self.alpha
