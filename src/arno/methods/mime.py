"""Mime and MimeLite: clients use the server's momentum, which stays constant during a round.

    f_k = ℓ + wd/2 ‖·‖²;   ḡ = Σ_{k∈S} p_k ∇f_k(w; D_k), full gradients at the server's model
    Mime:      g = ∇f_k(w_k; b) − ∇f_k(w; b) + ḡ
    MimeLite:  g = ∇f_k(w_k; b)
    both:      w_k ← w_k − η_k ((1−β) g + β M);   w ← w + η_s Σ p_k Δ_k;   M ← (1−β) ḡ + β M

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for Cross-Device Federated
Learning. NeurIPS 2021, arXiv:2008.03606. The base algorithm is SGD with momentum.

Deviations: none. Mime needs two exchanges per round: the full gradients, then the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..core.engine import Engine
from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Rule, SumResult, Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import no_momentum, refuse_private, refuse_roles
from .fedacg import LookAhead
from .fedavgm import ServerMomentum
from .fedopt import ServerAdaptive

PAPER = "Karimireddy et al., NeurIPS 2021, arXiv:2008.03606"


@methods.register(
    "mime",
    family="variance-reduction",
    paper=PAPER,
    formula="g = ∇f_k(w_k; b) − ∇f_k(w; b) + ḡ;  step (1−β) g + β M;  M ← (1−β) ḡ + β M",
    tune={"beta": "linear(0.5, 0.99)"},
)
def mime(*, beta: float = 0.9) -> list[Part]:
    """Clients take steps along the server's momentum and variance-reduced gradients.

    Helps: with very many clients that rarely take part twice, because clients keep no state.
    Hurts: in bytes and time: each client receives three vectors and sends two, in two exchanges per round; each step
        needs two gradients.

    beta: β, the momentum.

    >>> mime()
    [Mime(beta=0.9)]
    """
    return [Mime(beta)]


@methods.register(
    "mimelite",
    family="variance-reduction",
    paper=PAPER,
    formula="step (1−β) ∇f_k(w_k; b) + β M;  M ← (1−β) ḡ + β M",
    tune={"beta": "linear(0.5, 0.99)"},
)
def mimelite(*, beta: float = 0.9) -> list[Part]:
    """Clients take steps along the server's momentum, without variance reduction.

    Helps: in the same cases as Mime, with one gradient per step.
    Hurts: with skewed data and long local training, because it does not reduce the drift of the clients.

    beta: β, the momentum; 0 is FedAvg.

    >>> mimelite()
    [MimeLite(beta=0.9)]
    """
    return [MimeLite(beta)]


@parts.register("mimelite")
@dataclass
class MimeLite(Part):
    """M, and the full gradients from which it is computed."""

    beta: float = 0.9
    roles: ClassVar[frozenset[str]] = frozenset({"control", "order"})
    vectors: ClassVar[tuple[int, int]] = (1, 1)  # M; ∇f_k
    drops: ClassVar[bool] = False  # a client can fail in only one of the two exchanges of a round

    def start(self, fed: Federation) -> None:
        """M = 0."""
        name = type(self).__name__
        if not 0 <= self.beta < 1:
            raise ArnoError(f"method.beta = {self.beta:g}", "it must be at least 0 and below 1", "try method.beta=0.9")
        no_momentum(fed, name, "the clients use the server's momentum")
        for other in fed.parts:
            if isinstance(other, ServerMomentum | ServerAdaptive | LookAhead):
                rule = "both keep a momentum on the server"
                raise ArnoError(f"{name} with {type(other).__name__}", rule, "leave one of them out")
        if self.variance_reduced:
            refuse_roles(fed, self, name, {"step": "both change the step of local training"})
        refuse_private(fed, self, name, "the server has no momentum for layers that stay with the clients")
        self.m = torch.zeros_like(fed.w)

    #: Whether clients subtract the gradient at the server's model and add the mean gradient.
    variance_reduced: ClassVar[bool] = False

    def train(self, engine: Engine, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Clients first compute full gradients at the server's model, then take steps along (1−β) g + β M."""
        asked = list(works)
        self._gradient = torch.zeros_like(self.m)
        for work, out in engine.train(replace(work, rule=Rule("gradient"), probe=None, drift=None) for work in asked):
            assert isinstance(out, Result)
            self._gradient += work.weight @ out.delta
        return engine.train(self._steps(work) for work in asked)

    def finish(self, t: int, v: Vec) -> Vec:
        """M ← (1−β) ḡ + β M; local steps do not change it."""
        self.m = (1 - self.beta) * self._gradient + self.beta * self.m
        return v

    def _steps(self, work: Work) -> Work:
        push = (self.beta * self.m).expand(len(work), -1)
        work = replace(work, scale=1 - self.beta, push=push)
        if not self.variance_reduced:
            return work
        return replace(work.add_drift(self._gradient.expand(len(work), -1)), rule=Rule("svrg"))


@parts.register("mime")
@dataclass
class Mime(MimeLite):
    """MimeLite with variance-reduced gradients."""

    vectors: ClassVar[tuple[int, int]] = (2, 1)  # M and ḡ; ∇f_k
    variance_reduced: ClassVar[bool] = True
