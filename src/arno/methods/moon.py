"""MOON: a term keeps a client's representation near that of the global model and away from that of its last model.

    z, z_glob, z_prev: embeddings of a batch under w_k, under the received model, and under client k's last model
    a = cos(z, z_glob)/τ,  b = cos(z, z_prev)/τ
    ℓ ← cross-entropy + μ · mean over the batch of −log( e^a / (e^a + e^b) )

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021, arXiv:2103.16257.

Deviations: the embedding is the input of the last linear layer (no projection head is added to the network). A client
that takes part for the first time has no last model; the received model is used instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from ..models.network import Network
from ..problems.supervised import Supervised, View
from . import methods, parts


@methods.register(
    "moon",
    family="label-skew",
    paper="Li et al., CVPR 2021, arXiv:2103.16257",
    formula="ℓ + μ · −log( e^{cos(z,z_glob)/τ} / (e^{cos(z,z_glob)/τ} + e^{cos(z,z_prev)/τ}) )",
    tune={"mu": "log(0.1, 10)", "temperature": "log(0.1, 1)"},
)
def moon(*, mu: float = 1.0, temperature: float = 0.5) -> list[Part]:
    """A term keeps a client's representation near that of the global model and away from that of its last model.

    Helps: on images with label skew and networks with a good representation.
    Hurts: on small networks, and in time: each step needs three forward passes.

    mu: μ, the weight of the contrastive term; 0 is FedAvg.
    temperature: τ.

    >>> moon()
    [Moon(mu=1.0, temperature=0.5)]
    """
    return [Moon(mu, temperature)]


@parts.register("moon")
@dataclass
class Moon(Part):
    """Every client's last model, and the term that contrasts it with the global model."""

    mu: float = 1.0
    temperature: float = 0.5
    roles: ClassVar[frozenset[str]] = frozenset({"loss"})

    def start(self, fed: Federation) -> None:
        """No client has trained yet."""
        if not (self.mu >= 0 and self.temperature > 0):
            raise ArnoError(
                f"method.mu = {self.mu:g}, method.temperature = {self.temperature:g}",
                "mu must not be negative, and the temperature must be positive",
                "try method.mu=1 method.temperature=0.5",
            )
        if not isinstance(fed.problem, Supervised) or not isinstance(fed.problem.module, Network):
            raise ArnoError(
                "MOON on this model", "it needs the embedding of a Network", "derive the model from arno's Network"
            )
        self.previous = fed.table()
        self.seen = torch.zeros(fed.n, dtype=torch.bool)

    def send(self, work: Work) -> Work:
        """Add the term to the loss, and send each client its last model."""
        seen = self.seen[work.clients].to(work.start.device)[:, None]
        last = torch.where(seen, self.previous[work.clients], work.start)
        term = Contrast(self.mu, self.temperature)
        return replace(work, terms=(*work.terms, term), given={**work.given, "previous": last})

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Store the trained models."""
        self.previous[work.clients] = out.trained(work)
        self.seen[work.clients] = True
        return v


@dataclass(frozen=True)
class Contrast:
    """The contrastive term of one batch."""

    mu: float
    temperature: float

    def __call__(self, view: View) -> Tensor:
        """μ times the mean over the batch."""
        near = F.cosine_similarity(view.embedding, view.frozen(view.job.sent)) / self.temperature
        far = F.cosine_similarity(view.embedding, view.frozen(view.job.given["previous"])) / self.temperature
        return self.mu * F.softplus(far - near).mean()  # −log(e^a / (e^a + e^b)) = log(1 + e^{b − a})
