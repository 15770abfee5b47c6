"""FedNova: a client that takes more steps gets no more weight, so the model does not move towards its optimum.

    a_k: the effective number of steps of client k (the paper's ‖a_k‖₁), with momentum ρ or a proximal term
    v ← (Σ_{i∈S} p_i a_i) · Σ_{k∈S} p_k Δ_k / a_k;   w ← w + η_s v

    plain SGD: a = τ;   momentum ρ: a = (τ − ρ (1 − ρ^τ)/(1 − ρ)) / (1 − ρ);   proximal μ: a = (1 − (1 − ημ)^τ)/(ημ)

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
NeurIPS 2020, arXiv:2007.07481.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts


@methods.register(
    "fednova",
    family="server",
    paper="Wang et al., NeurIPS 2020, arXiv:2007.07481",
    formula="v ← (Σ p_i a_i) Σ p_k Δ_k / a_k",
)
def fednova() -> list[Part]:
    """Clients that take more local steps get no more weight in the mean.

    Helps: if local.epochs or the numbers of samples differ much between clients.
    Hurts: rarely; with equal numbers of steps it is FedAvg.

    >>> fednova()
    [Nova()]
    """
    return [Nova()]


@parts.register("nova")
@dataclass
class Nova(Part):
    """The mean of updates per step, times the mean number of steps."""

    roles: ClassVar[frozenset[str]] = frozenset({"mean"})

    def start(self, fed: Federation) -> None:
        """Refuse momentum together with a proximal term: for both, a_k has no closed form."""
        self._proximal = any("proximal" in part.roles for part in fed.parts)
        if fed.local.sgd.momentum and self._proximal:
            raise ArnoError(
                "FedNova with momentum and a proximal term", "a_k is known for only one of them", "leave one out"
            )

    def begin(self, t: int) -> None:
        """Begin the sum of this round at zero."""
        self._steps = 0.0

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Σ p_k Δ_k / a_k of this block."""
        a = normaliser(work)
        self._steps += float(work.weight @ a)
        return (work.weight / a) @ out.delta

    def finish(self, t: int, v: Vec) -> Vec:
        """Multiply by Σ p_i a_i."""
        return self._steps * v


def normaliser(work: Work) -> Tensor:
    """‖a_k‖₁ for each row.

    With a momentum of 0.5, three steps count as 1 + 1.5 + 1.75 = 4.25 gradients.
    """
    steps, rho = work.steps.to(work.weight), work.sgd.momentum
    if rho:
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    pull = work.lr * work.mu
    return torch.where(pull > 0, (1 - (1 - pull) ** steps) / pull.clamp(min=1e-30), steps)
