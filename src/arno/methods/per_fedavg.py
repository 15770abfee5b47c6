"""Per-FedAvg: the global model is trained so that one gradient step adapts it to a client.

    w̃ ← w_k − α ∇f(w_k; b);   s ← ∇f(w̃; b')
    w_k ← w_k − η (s − α h);   h = 0 (fo), a difference of gradients on b'' (hf), or ∇²f(w_k; b'') s (exact)
    server: as FedAvg;   personal model: u = w, then adapt_steps times u ← u − α ∇f_k(u)

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach. NeurIPS 2020, arXiv:2002.07948. The paper's meta rate β is local.lr.

Deviations: b, b', b'' are three consecutive batches of an epoch, so that each batch is once b, once b' and once b''.
The personal step uses the gradient over all samples of the client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Mat, Rule, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import plain_steps, refuse_roles
from .personal_adaptation import adapted

Variant = Literal["hf", "fo", "exact"]
CURVATURE = {"fo": 0.0, "hf": 1.0, "exact": 2.0}


@methods.register(
    "per_fedavg",
    family="personal",
    paper="Fallah et al., NeurIPS 2020, arXiv:2002.07948",
    formula="w_k ← w_k − η (I − α ∇²f(w_k)) ∇f(w_k − α ∇f(w_k))",
    defaults={"weighting": "uniform"},
    tune={"alpha": "log(0.001, 0.1)"},
)
def per_fedavg(
    *, alpha: float = 0.01, variant: Variant = "hf", delta: float = 0.001, adapt_steps: int = 1
) -> list[Part]:
    """The global model is trained so that one gradient step adapts it to a client.

    Helps: if new clients must adapt the model with very little work.
    Hurts: in time: each step needs two to four gradients. With a small α it is nearly FedAvg.

    alpha: α, the learning rate of the adaptation.
    variant: the Hessian product: hf (by a difference of gradients), fo (left out), exact.
    delta: δ, the distance of the two gradients in variant=hf.
    adapt_steps: gradient steps from w to the personal model, each over all samples of the client.

    >>> per_fedavg(variant="fo")
    [MetaStep(alpha=0.01, variant='fo', delta=0.001, adapt_steps=1)]
    """
    return [MetaStep(alpha, variant, delta, adapt_steps)]


@parts.register("meta_step")
@dataclass
class MetaStep(Part):
    """The meta-step, and the adaptation of personal models."""

    alpha: float = 0.01
    variant: Variant = "hf"
    delta: float = 0.001
    adapt_steps: int = 1
    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def start(self, fed: Federation) -> None:
        """Check the settings."""
        plain_steps(fed, self, "Per-FedAvg")
        if not (self.alpha >= 0 and self.delta > 0 and self.adapt_steps >= 0):
            given = f"alpha = {self.alpha:g}, delta = {self.delta:g}, adapt_steps = {self.adapt_steps}"
            raise ArnoError(f"method.{given}", "none may be negative, and delta must be positive", "try alpha=0.01")
        if self.variant == "exact":
            why = "method.variant=exact computes the Hessian of the task's loss only; method.variant=hf allows any loss"
            refuse_roles(fed, self, "Per-FedAvg", {"loss": why, "criterion": why})
        self._fed = fed

    def send(self, work: Work) -> Work:
        """Set the rule of local training."""
        numbers = {"alpha": self.alpha, "delta": self.delta, "curvature": CURVATURE[self.variant]}
        return replace(work, rule=Rule("meta", numbers))

    def personal(self, clients: Tensor) -> Mat:
        """Each client takes adapt_steps gradient steps from w."""
        rule = Rule("adapt", {"alpha": self.alpha, "steps": float(self.adapt_steps)})
        return adapted(self._fed, clients, lambda work: replace(work, rule=rule))
