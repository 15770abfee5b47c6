"""FedNTD: for the classes other than the true class, a client's outputs stay near those of the received model.

    q̃_c = e^{z_c/τ} / Σ_{j≠y} e^{z_j/τ}, c ≠ y: from the client's model;  q̃^g: from the received model (constant)
    ℓ = cross-entropy + β τ² · mean over the batch of KL( q̃^g ‖ q̃ )

Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.
NeurIPS 2022, arXiv:2106.03097.

Deviations: none. The received model is evaluated on the same batch, in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Work
from ..errors import ArnoError
from ..problems.supervised import View
from . import methods, parts
from .checks import need_classes


@methods.register(
    "fedntd",
    family="label-skew",
    paper="Lee et al., NeurIPS 2022, arXiv:2106.03097",
    formula="ℓ + β τ² KL( softmax(z^g/τ) ‖ softmax(z/τ) ) over the classes other than y",
    tune={"beta": "log(0.1, 3)", "tau": "log(0.5, 5)"},
)
def fedntd(*, beta: float = 1.0, tau: float = 1.0) -> list[Part]:
    """A distillation term keeps a client's outputs for the wrong classes near those of the received model.

    Helps: with label skew: clients forget less about the classes that they do not hold.
    Hurts: early in a run, when the received model is still bad.

    beta: β, the weight of the term; 0 is FedAvg.
    tau: τ, the temperature.

    >>> fedntd(beta=0.3)
    [NotTrue(beta=0.3, tau=1.0)]
    """
    return [NotTrue(beta, tau)]


@parts.register("not_true")
@dataclass
class NotTrue(Part):
    """Adds the term to every client's loss."""

    beta: float = 1.0
    tau: float = 1.0
    roles: ClassVar[frozenset[str]] = frozenset({"loss"})

    def start(self, fed: Federation) -> None:
        """Check the settings; the task needs classes."""
        need_classes(fed, "FedNTD")
        if not (self.beta >= 0 and self.tau > 0):
            given = f"method.beta = {self.beta:g}, method.tau = {self.tau:g}"
            raise ArnoError(given, "beta must not be negative, tau must be positive", "try method.beta=1 method.tau=1")

    def send(self, work: Work) -> Work:
        """Add the term to the loss."""
        return replace(work, terms=(*work.terms, Distillation(self.beta, self.tau)))


@dataclass(frozen=True)
class Distillation:
    """The term of one batch."""

    beta: float
    tau: float

    def __call__(self, view: View) -> Tensor:
        """β τ² times the mean KL over the batch."""
        mine = self.others(view.outputs, view.y).log_softmax(1)
        theirs = self.others(view.frozen_outputs(view.job.sent), view.y).log_softmax(1)
        return self.beta * self.tau**2 * F.kl_div(mine, theirs, reduction="batchmean", log_target=True)

    def others(self, z: Tensor, y: Tensor) -> Tensor:
        """z/τ without the column of the true class, [batch, classes − 1]."""
        n, classes = z.shape
        keep = F.one_hot(y, classes) == 0
        return z[keep].view(n, classes - 1) / self.tau
