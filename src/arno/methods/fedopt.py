"""FedAdam (`ServerAdam`), FedYogi, FedAdagrad: adaptive optimisers on the server, with Δ̄ as the negative gradient.

    Δ̄ ← Σ_{k∈S} p_k Δ_k;  M ← β₁ M + (1 − β₁) Δ̄
    V ← β₂ V + (1 − β₂) Δ̄²                       (FedAdam)
    V ← V − (1 − β₂) Δ̄² sign(V − Δ̄²)             (FedYogi)
    V ← V + Δ̄²                                   (FedAdagrad)
    w ← w + η_s M / (√V + τ),   V₀ = τ²

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021,
arXiv:2003.00295. No bias correction, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Vec
from ..errors import ArnoError
from . import methods, parts

PAPER = "Reddi et al., ICLR 2021, arXiv:2003.00295"
#: An adaptive step is about η_s in each coordinate, for any size of Δ̄; the usual η_s = 1 would be far too large.
DEFAULTS = {"server_lr": 0.01}


@methods.register(
    "fedadam",
    family="server",
    paper=PAPER,
    formula="V ← β₂ V + (1−β₂) Δ̄²;  w ← w + η_s M/(√V + τ)",
    defaults=DEFAULTS,
    tune={"server_lr": "log(0.001, 0.3)", "tau": "log(0.0001, 0.1)"},
)
def fedadam(*, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> list[Part]:
    """Adam on the server; its default server_lr is 0.01.

    Helps: if the coordinates of the mean update differ much in size, as in language models.
    Hurts: without a tuned server_lr, because the step has about this size in every coordinate.

    beta1, beta2: decay of M and V; a larger value averages over more rounds.
    tau: added to √V; a larger value is less adaptive.

    >>> fedadam()
    [ServerAdaptive(rule='adam', beta1=0.9, beta2=0.99, tau=0.001)]
    """
    return [ServerAdaptive("adam", beta1, beta2, tau)]


@methods.register(
    "fedyogi",
    family="server",
    paper=PAPER,
    formula="V ← V − (1−β₂) Δ̄² sign(V − Δ̄²);  w ← w + η_s M/(√V + τ)",
    defaults=DEFAULTS,
    tune={"server_lr": "log(0.001, 0.3)", "tau": "log(0.0001, 0.1)"},
)
def fedyogi(*, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> list[Part]:
    """Yogi on the server: like Adam, but V grows slowly; its default server_lr is 0.01.

    Helps: in the same cases as FedAdam, and if updates are rare in some coordinates.
    Hurts: without a tuned server_lr, as FedAdam.

    beta1, beta2: decay of M and V; a larger value averages over more rounds.
    tau: added to √V; a larger value is less adaptive.
    """
    return [ServerAdaptive("yogi", beta1, beta2, tau)]


@methods.register(
    "fedadagrad",
    family="server",
    paper=PAPER,
    formula="V ← V + Δ̄²;  w ← w + η_s M/(√V + τ)",
    defaults=DEFAULTS,
    tune={"server_lr": "log(0.001, 0.3)", "tau": "log(0.0001, 0.1)"},
)
def fedadagrad(*, beta1: float = 0.0, tau: float = 1e-3) -> list[Part]:
    """Adagrad on the server; its default server_lr is 0.01.

    Helps: if updates are rare in some coordinates.
    Hurts: in long runs, because its steps only become smaller.

    beta1: decay of M.
    tau: added to √V; a larger value is less adaptive.
    """
    return [ServerAdaptive("adagrad", beta1, 0.0, tau)]


@parts.register("server_adaptive")
@dataclass
class ServerAdaptive(Part):
    """The averages M of Δ̄ and V of Δ̄², and the server's step M / (√V + τ)."""

    rule: Literal["adam", "yogi", "adagrad"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    roles: ClassVar[frozenset[str]] = frozenset({"server"})

    def start(self, fed: Federation) -> None:
        """M = 0, V = τ²."""
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            given = f"beta1 = {self.beta1:g}, beta2 = {self.beta2:g}, tau = {self.tau:g}"
            raise ArnoError(f"method.{given}", "the betas must be in [0, 1), and tau positive", "see arno methods")
        self.M = torch.zeros_like(fed.w)
        self.V = torch.full_like(fed.w, self.tau**2)

    def finish(self, t: int, v: Vec) -> Vec:
        """Update M and V, and return M / (√V + τ)."""
        square = v * v
        self.M = self.beta1 * self.M + (1 - self.beta1) * v
        if self.rule == "adam":
            self.V = self.beta2 * self.V + (1 - self.beta2) * square
        elif self.rule == "yogi":
            self.V = self.V - (1 - self.beta2) * square * torch.sign(self.V - square)
        else:
            self.V = self.V + square
        return self.M / (self.V.sqrt() + self.tau)
