"""FedSAM: clients use the gradient at the worst point near their model (sharpness-aware minimisation).

    a = ∇ℓ(w_k; b);   ε = ρ a/‖a‖;   g ← ∇ℓ(w_k + ε; b);   w_k ← w_k − η_k g

Qu, Li, Zhang, Yu: Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022, arXiv:2206.02618;
Caldarola, Caputo, Ciccone, ECCV 2022, arXiv:2203.11834; the step is Foret et al., ICLR 2021, arXiv:2010.01412.

Deviations: none. ‖a‖ is the norm of the whole vector. Weight decay, proximal term and corrections are computed at w_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Rule, Work
from ..errors import ArnoError
from . import methods, parts


@methods.register(
    "fedsam",
    family="regularised",
    paper="Qu et al., ICML 2022, arXiv:2206.02618",
    formula="g ← ∇ℓ(w_k + ρ ∇ℓ/‖∇ℓ‖; b)",
    tune={"rho": "log(0.01, 0.5)"},
)
def fedsam(*, rho: float = 0.05) -> list[Part]:
    """Clients use the gradient at the worst point near their model, which leads to flat minima.

    Helps: with skewed data and clients that over-fit.
    Hurts: in time: each step needs two gradients. With a large ρ the model learns slowly.

    rho: ρ, the distance between the model and the worst point; 0 is FedAvg.

    >>> fedsam()
    [Sam(rho=0.05)]
    """
    return [Sam(rho)]


@parts.register("sam")
@dataclass
class Sam(Part):
    """Sets SAM's step as the rule of local training."""

    rho: float = 0.05
    roles: ClassVar[frozenset[str]] = frozenset({"step"})

    def start(self, fed: Federation) -> None:
        """ρ must not be negative."""
        if not self.rho >= 0:
            raise ArnoError(f"method.rho = {self.rho:g}", "it must not be negative", "try method.rho=0.05")

    def send(self, work: Work) -> Work:
        """Set the rule of local training."""
        return replace(work, rule=Rule("sam", {"rho": self.rho}))
