"""Layers that stay with the clients: FedPer, LG-FedAvg, FedBN, and training without a federation.

    client k:  starts from w, with its own values of the kept coordinates; trains all; keeps its new values of them
    server:    w ← w + η_s Σ p_k (w_k − w) on the other coordinates; the kept ones stay at w⁰ in w
    personal model of client k: the current w, with the client's own values of the kept coordinates

FedPer keeps the head (the last linear layer): Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with
Personalization Layers. 2019, arXiv:1912.00818. LG-FedAvg keeps the body (all but the head): Liang, Liu, Ziyin, Allen,
Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally. 2020, arXiv:2001.01523. FedBN keeps normalisation
layers with their running statistics: Li, Jiang, Zhang, Kamp, Dou: FedBN. ICLR 2021, arXiv:2102.07623. `local` keeps
everything: clients train alone.

Deviations: kept values begin at w⁰ for every client (FedPer's paper draws them at random). FedBN keeps all kinds of
normalisation layers, found by their type. LG-FedAvg without its auxiliary losses and its warm start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..core.federation import Federation
from ..core.part import Part
from ..core.work import Mat, Result, Vec, Work
from . import methods, parts


@methods.register(
    "local", family="personal", paper="no federation", formula="w_k ← local SGD from w_k;  nothing is sent"
)
def local() -> list[Part]:
    """Every client trains alone; nothing is sent.

    Helps: as the baseline without a federation, and where clients have enough data or very different tasks.
    Hurts: where clients have few samples.

    >>> local()
    [Keep(group='full')]
    """
    return [Keep("full")]


@methods.register(
    "fedper",
    family="personal",
    paper="Arivazhagan et al., 2019, arXiv:1912.00818",
    formula="the head stays with the client;  w ← FedAvg of the body",
)
def fedper() -> list[Part]:
    """The last linear layer stays with the client; the other layers are averaged.

    Helps: with label skew: each client needs other outputs over the same features.
    Hurts: with feature shift, where the shared layers must differ, and on the model of a new client.

    >>> fedper()
    [Keep(group='head')]
    """
    return [Keep("head")]


@methods.register(
    "lg_fedavg",
    family="personal",
    paper="Liang et al., 2020, arXiv:2001.01523",
    formula="the body stays with the client;  w ← FedAvg of the head",
)
def lg_fedavg() -> list[Part]:
    """The last linear layer is averaged; the other layers stay with the client.

    Helps: with feature shift: each client learns its own features. It sends very little.
    Hurts: where clients have few samples: nearly the whole model is trained alone.

    >>> lg_fedavg()
    [Keep(group='body')]
    """
    return [Keep("body")]


@methods.register(
    "fedbn",
    family="personal",
    paper="Li et al., ICLR 2021, arXiv:2102.07623",
    formula="normalisation layers stay with the client;  w ← FedAvg of the rest",
    defaults={"weighting": "uniform"},
)
def fedbn() -> list[Part]:
    """Normalisation layers and their running statistics stay with the client; the rest is averaged.

    Helps: with feature shift, such as other scanners or sensors, on networks with normalisation layers.
    Hurts: little: without such layers it is FedAvg.

    >>> fedbn()
    [Keep(group='norm')]
    """
    return [Keep("norm")]


@parts.register("keep")
@dataclass
class Keep(Part):
    """Each client's own values of a group of coordinates (head, body, norm, full, or a pattern of names)."""

    group: str = "head"
    roles: ClassVar[frozenset[str]] = frozenset({"personal"})

    def start(self, fed: Federation) -> None:
        """Every client begins at w⁰."""
        self._fed, self._mask = fed, fed.layout.mask(self.group).to(fed.w.device)
        self.kept = fed.table(fed.w[self._mask])

    def private(self) -> Tensor:
        """The group never leaves the client."""
        return self._mask

    def send(self, work: Work) -> Work:
        """w with the client's own values."""
        return replace(work, start=self._own(work.start, work.clients))

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """The client keeps its new values."""
        self.kept[work.clients] = out.trained(work)[:, self._mask]
        return v

    def personal(self, clients: Tensor) -> Mat:
        """The current w with the client's own values."""
        return self._own(self._fed.w.expand(len(clients), -1), clients)

    def _own(self, models: Mat, clients: Tensor) -> Mat:
        models = models.clone()
        models[:, self._mask] = self.kept[clients]
        return models
