"""FedDecorr: a term in the loss keeps the dimensions of a client's representation uncorrelated.

    Z (B × D): input of the last linear layer;  u = (z − mean)/s per column, s = √(Σ (z − mean)²/(B − 1) + 1e-8)
    G = UᵀU
    ℓ = cross-entropy + β/D² · ‖G/(B−1)‖²_F                         scale=paper
    ℓ = cross-entropy + β/(D(D−1)) · Σ_{i≠j} G_ij² / B              scale=code

Shi, Liang, Zhang, Xue, Bai, Tan: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning. ICLR 2023, arXiv:2210.00226.

Deviations: the default, `code`, is the formula of the released program, for which the paper's β = 0.1 was chosen;
`paper` is the printed formula. For a batch of one sample the term is 0.
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
from ..problems.supervised import Supervised, View
from . import methods, parts

Scale = Literal["code", "paper"]


@methods.register(
    "feddecorr",
    family="label-skew",
    paper="Shi et al., ICLR 2023, arXiv:2210.00226",
    formula="ℓ + β · mean square of the correlations between the dimensions of the representation",
    tune={"beta": "log(0.01, 1)"},
)
def feddecorr(*, beta: float = 0.1, scale: Scale = "code") -> list[Part]:
    """A penalty keeps the dimensions of each client's representation uncorrelated.

    Helps: with strong label skew and representations of many dimensions, of which otherwise only few would be used.
    Hurts: with small batches, because their correlations are noise, or with a large β.

    beta: β, the weight of the term; 0 is FedAvg.
    scale: the term as in the released program (code), or as the paper prints it (paper).

    >>> feddecorr()
    [Decorrelation(beta=0.1, scale='code')]
    """
    return [Decorrelation(beta, scale)]


@parts.register("decorrelation")
@dataclass
class Decorrelation(Part):
    """Adds the term to every client's loss."""

    beta: float = 0.1
    scale: Scale = "code"
    roles: ClassVar[frozenset[str]] = frozenset({"loss"})

    def start(self, fed: Federation) -> None:
        """Check the settings; the network needs a hidden layer."""
        if not self.beta >= 0:
            raise ArnoError(f"method.beta = {self.beta:g}", "it must not be negative", "try method.beta=0.1")
        if not isinstance(fed.problem, Supervised) or len(fed.layout.layers()) < 2:
            raise ArnoError("FedDecorr on this model", "it has no hidden layer", "use another network, e.g. model=mlp")

    def send(self, work: Work) -> Work:
        """Add the term to the loss."""
        return replace(work, terms=(*work.terms, Correlation(self.beta, self.scale == "paper")))


@dataclass(frozen=True)
class Correlation:
    """The term of one batch."""

    beta: float
    printed: bool

    def __call__(self, view: View) -> Tensor:
        """β times the mean square of the correlations."""
        z = view.embedding.flatten(1)
        n, dims = z.shape
        if n < 2 or (dims < 2 and not self.printed):
            return z.sum() * 0
        centred = z - z.mean(0)
        u = centred / (centred.square().sum(0) / (n - 1) + 1e-8).sqrt()
        g = u.T @ u
        if self.printed:
            return self.beta * (g / (n - 1)).square().sum() / dims**2
        apart = g - torch.diag(g.diagonal())
        return self.beta * apart.square().sum() / n / (dims * (dims - 1))
