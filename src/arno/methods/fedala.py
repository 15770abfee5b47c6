"""FedALA: a client starts from a mixture of its own model and the global model, and learns the weights.

    U: the coordinates of the last p layers;   own_k: the client's model;   W_k ∈ [0, 1]^U, ones at first
    û ← w outside U,  own_k + (w − own_k) ∘ W_k on U
    over batches b:   W_k ← clip(W_k − eta ∇ℓ(û; b) ∘ (w − own_k));   û is computed again
    own_k ← SGD from û;  the client sends own_k;   server: as FedAvg, with Δ_k = own_k − w
    personal model: own_k, or w for a client that has not trained yet

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
AAAI 2023, arXiv:2212.01197.

Deviations: the first time that a client learns W_k, it does so for `start_epochs` epochs; the paper tests convergence.
W_k is not learned in the first round of a run. `layers` counts layers; the paper counts tensors.
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
from .checks import no_buffers, refuse_roles


@methods.register(
    "fedala",
    family="personal",
    paper="Zhang et al., AAAI 2023, arXiv:2212.01197",
    formula="start: own_k + (w − own_k) ∘ W_k on the last layers;  W_k is learned, in [0, 1]",
    tune={"eta": "log(0.1, 10)"},
)
def fedala(
    *,
    layers: int = 1,
    eta: float = 1.0,
    start_epochs: int = 10,
    weight_epochs: int = 1,
    sample_percent: float = 80.0,
) -> list[Part]:
    """A client starts from a mixture of its own model and the global model, and learns the weights.

    Helps: if the last layers of the global model are good for some clients and bad for others.
    Hurts: with few samples per client, because the weights are learned on them.

    layers: p, how many of the last layers with parameters are mixed.
    eta: learning rate of the weights.
    start_epochs: epochs in which a client learns the weights for the first time.
    weight_epochs: epochs in which a client learns the weights in its later rounds.
    sample_percent: the percentage of the client's samples on which the weights are learned.

    >>> fedala(layers=2)[0].layers
    2
    """
    return [LocalAggregation(layers, eta, start_epochs, weight_epochs, sample_percent)]


@parts.register("local_aggregation")
@dataclass
class LocalAggregation(Part):
    """The clients' models own_k and their weights W_k."""

    layers: int = 1
    eta: float = 1.0
    start_epochs: int = 10
    weight_epochs: int = 1
    sample_percent: float = 80.0
    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def start(self, fed: Federation) -> None:
        """own_k = w⁰, W_k = 1."""
        no_buffers(fed, "FedALA")
        why = "the update of a client contains its mixture in addition to its steps"
        whole = "its weights belong to the layers of the whole model"
        refuse_roles(fed, self, "FedALA", {"control": why, "window": whole})
        names = fed.layout.layers()
        good = self.eta >= 0 and min(self.start_epochs, self.weight_epochs) >= 0 and 0 < self.sample_percent <= 100
        if not 1 <= self.layers <= len(names) or not good:
            given = f"layers = {self.layers}, eta = {self.eta:g}, sample_percent = {self.sample_percent:g}"
            rule = f"there are {len(names)} layers; epochs and eta must be at least 0, sample_percent above 0"
            raise ArnoError(f"method.{given}", rule, "try method.layers=1")
        self._fed, self._first = fed, fed.t
        self._chosen = torch.zeros(fed.layout.size, dtype=torch.bool)
        for slot in fed.layout.slots:
            if slot.layer in names[-self.layers :]:
                self._chosen[slot.span] = True
        self._chosen = self._chosen.to(fed.w.device)
        self.own = fed.table(fed.w)
        self.weights = fed.table(torch.ones_like(fed.w[self._chosen]))
        self.seen, self.learned = torch.zeros(fed.n, dtype=torch.bool), torch.zeros(fed.n, dtype=torch.bool)

    def send(self, work: Work) -> Work:
        """Send the rule of local training, own_k and W_k; in the first round, W_k is not learned."""
        weights = torch.zeros_like(work.start)
        weights[:, self._chosen] = self.weights[work.clients]
        epochs = torch.where(self.learned[work.clients], self.weight_epochs, self.start_epochs).double()
        epochs = epochs * (work.round != self._first)
        chosen = self._chosen.to(work.start.dtype).expand(len(work), -1)
        given = {**work.given, "own": self.own[work.clients], "weights": weights, "chosen": chosen}
        rule = Rule("ala", {"eta": self.eta, "share": self.sample_percent / 100})
        return replace(work, rule=rule, given=given, numbers={**work.numbers, "weight_epochs": epochs})

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Each client keeps its model and its weights."""
        self.own[work.clients] = out.trained(work)
        self.seen[work.clients] = True
        rows = torch.stack([extra["weights"] for extra in out.extra]).to(out.delta)
        self.weights[work.clients] = rows[:, self._chosen]
        self.learned[work.clients] |= work.round != self._first
        return v

    def personal(self, clients: Tensor) -> Mat:
        """own_k, or w."""
        seen = self.seen[clients].to(self._fed.w.device)[:, None]
        return torch.where(seen, self.own[clients], self._fed.w)
