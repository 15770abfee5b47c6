"""pFedMe: personal models are the proximal points of the clients' losses (Moreau envelopes).

    w_k ← w;  θ_k ← w;   on each batch b:
        K times:  θ_k ← θ_k − inner_lr (∇f(θ_k; b) + λ (θ_k − w_k))
        w_k ← w_k − η λ (w_k − θ_k)
    server:  w ← w + β η_s Σ p_k (w_k − w)
    personal model: θ_k of the client's last round, or w for a client that has not trained yet

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020, arXiv:2006.08848.

Deviations: K gradient steps on the same batch replace the paper's minimisation; θ_k is not reset between batches, as
in the authors' program; weight decay is added to the gradient of θ_k. Only selected clients compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Mat, Result, Rule, Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import plain_steps


@methods.register(
    "pfedme",
    family="personal",
    paper="Dinh et al., NeurIPS 2020, arXiv:2006.08848",
    formula="θ_k ≈ argmin f_k(θ) + λ/2 ‖θ − w_k‖²;  w_k ← w_k − η λ (w_k − θ_k)",
    defaults={"weighting": "uniform"},
    tune={
        "lam": "log(1, 30)",
        "inner_lr": "log(0.005, 0.1)",
        "inner_steps": "int(1, 10)",
        "beta": "linear(0.5, 2)",
    },
)
def pfedme(*, lam: float = 15.0, inner_steps: int = 5, inner_lr: float = 0.05, beta: float = 1.0) -> list[Part]:
    """Each client's personal model minimises the client's loss plus its distance to the client's copy of the model.

    Helps: if personal models should stay near the global model.
    Hurts: in time: each step needs inner_steps gradients. It has four settings to tune, and it diverges if
        local.lr · lam is large.

    lam: λ, the weight of the distance to w_k.
    inner_steps: K, the steps of the personal model on each batch.
    inner_lr: the learning rate of these steps; it must be below 2/λ.
    beta: β, a factor of the server's step.

    >>> pfedme(inner_steps=3)
    [Envelope(lam=15.0, inner_steps=3, inner_lr=0.05, beta=1.0)]
    """
    return [Envelope(lam, inner_steps, inner_lr, beta)]


@parts.register("envelope")
@dataclass
class Envelope(Part):
    """The personal models θ_k."""

    lam: float = 15.0
    inner_steps: int = 5
    inner_lr: float = 0.05
    beta: float = 1.0
    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def start(self, fed: Federation) -> None:
        """No client has a personal model yet."""
        plain_steps(fed, self, "pFedMe")
        good = self.lam >= 0 and self.inner_steps >= 1 and self.beta >= 0 and self.inner_lr > 0
        if not good or self.inner_lr * self.lam >= 2:
            given = f"lam = {self.lam:g}, inner_steps = {self.inner_steps}, inner_lr = {self.inner_lr:g}"
            rule = "none may be negative, and inner_lr must be below 2/λ"
            raise ArnoError(f"method.{given}, beta = {self.beta:g}", rule, "see arno methods pfedme")
        self._fed = fed
        self.theta, self.seen = fed.table(), torch.zeros(fed.n, dtype=torch.bool)

    def send(self, work: Work) -> Work:
        """Set the rule of local training."""
        numbers = {"lam": self.lam, "inner_steps": float(self.inner_steps), "inner_lr": self.inner_lr}
        return replace(work, rule=Rule("pfedme", numbers))

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Each client keeps its θ_k."""
        self.theta[work.clients] = torch.stack([extra["theta"] for extra in out.extra]).to(out.delta)
        self.seen[work.clients] = True
        return v

    def finish(self, t: int, v: Vec) -> Vec:
        """Multiply the step by β."""
        return self.beta * v

    def personal(self, clients: Tensor) -> Mat:
        """θ_k, or w for a client that has not trained yet."""
        seen = self.seen[clients].to(self._fed.w.device)[:, None]
        return torch.where(seen, self.theta[clients], self._fed.w)
