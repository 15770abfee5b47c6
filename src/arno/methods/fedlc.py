"""FedLC: in the loss of a client, rare classes have a larger margin.

    n_c: the number of client k's samples of class c;   a_c = z_c − τ n_c^{−1/4}
    ℓ = −log( e^{a_y} / Σ_{c: n_c>0} e^{a_c} )          denominator=all
    ℓ = −log( e^{a_y} / Σ_{c≠y, n_c>0} e^{a_c} )        denominator=others, as the paper prints it

Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration. ICML 2022,
arXiv:2209.00189.

Deviations: the paper's formula (`others`) has no lower bound and is known to collapse; public programs run `all`, the
default here. A class that the client does not hold is in no denominator. With `others`, a client of one class has
loss 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Work
from ..errors import ArnoError
from ..problems.supervised import View
from . import methods, parts
from .checks import need_classes

Denominator = Literal["all", "others"]


@methods.register(
    "fedlc",
    family="label-skew",
    paper="Zhang et al., ICML 2022, arXiv:2209.00189",
    formula="a_c = z_c − τ n_c^{−1/4};  ℓ = −log( e^{a_y} / Σ_{c: n_c>0} e^{a_c} )",
    tune={"tau": "log(0.1, 2)"},
)
def fedlc(*, tau: float = 1.0, denominator: Denominator = "all") -> list[Part]:
    """In the loss of a client, the logit of each class has a margin, which is larger for rarer classes.

    Helps: with strong label skew, when clients forget the classes that they do not hold.
    Hurts: with denominator=others, which may collapse. With balanced clients it has no effect.

    tau: τ, the size of the margins.
    denominator: all classes that the client holds, or these without the true class (the paper's formula).

    >>> fedlc(tau=0.5)
    [Calibration(tau=0.5, denominator='all')]
    """
    return [Calibration(tau, denominator)]


@parts.register("calibration")
@dataclass
class Calibration(Part):
    """Replaces the cross-entropy in the training of clients; scores use the usual cross-entropy."""

    tau: float = 1.0
    denominator: Denominator = "all"
    roles: ClassVar[frozenset[str]] = frozenset({"criterion"})

    def start(self, fed: Federation) -> None:
        """Check the settings; the task needs classes."""
        need_classes(fed, "FedLC")
        if not self.tau >= 0:
            raise ArnoError(f"method.tau = {self.tau:g}", "it must not be negative", "try method.tau=1")
        if self.denominator == "others":
            fed.advice.append("method.denominator = others: this loss has no lower bound and may collapse")

    def send(self, work: Work) -> Work:
        """Clients train with the calibrated loss."""
        return replace(work, criterion=Calibrated(self.tau, self.denominator == "others"))


@dataclass(frozen=True)
class Calibrated:
    """The loss of one batch."""

    tau: float
    others: bool

    def __call__(self, view: View) -> Tensor:
        """The mean over the batch."""
        counts = view.learner.label_counts(view.job.client)
        held = counts > 0
        a = (view.outputs - self.tau * counts.clamp(min=1).to(view.outputs) ** -0.25).masked_fill(~held, -torch.inf)
        true = a.gather(1, view.y[:, None])[:, 0]
        if not self.others:
            return (a.logsumexp(1) - true).mean()
        if int(held.sum()) < 2:
            return view.outputs.sum() * 0
        return (a.scatter(1, view.y[:, None], -torch.inf).logsumexp(1) - true).mean()
