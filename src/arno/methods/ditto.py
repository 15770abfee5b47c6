"""Ditto: each client trains the global model, and a personal model that stays near the global model.

    client k:  w_k ← SGD from w;  the client sends w_k
               v_k ← SGD from v_k on f_k(v) + λ_k/2 ‖v − w‖², where w is the model that the client received
    server:    as FedAvg;   personal model: v_k

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021, arXiv:2012.04221.

Deviations: none. v_k begins at w⁰ and is never reset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.per_client import PerClient
from ..core.work import Mat, Phase, Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts


@methods.register(
    "ditto",
    family="personal",
    paper="Li et al., ICML 2021, arXiv:2012.04221",
    formula="v_k ← SGD on f_k(v) + λ/2 ‖v − w‖²;  w as FedAvg",
    defaults={"weighting": "uniform"},
    tune={"lam": "log(0.01, 10)"},
)
def ditto(*, lam: PerClient = 1.0, personal_epochs: PerClient | None = None) -> list[Part]:
    """Each client trains the global model, and a personal model that stays near the global model.

    Helps: if the global model is good for some clients and bad for others; λ sets how near the models stay.
    Hurts: in time: each client trains two models.

    lam: λ; 0 is local training. May differ per client.
    personal_epochs: epochs of the personal model; null: local.epochs. May differ per client.

    >>> ditto(lam=0.5)
    [PersonalModel(lam=0.5, personal_epochs=None)]
    """
    return [PersonalModel(lam, personal_epochs)]


@parts.register("personal_model")
@dataclass
class PersonalModel(Part):
    """The models v_k."""

    lam: PerClient = 1.0
    personal_epochs: PerClient | None = None
    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def start(self, fed: Federation) -> None:
        """v_k = w⁰."""
        self._lam = fed.per_client(self.lam, "method.lam", least=0)
        if self.personal_epochs is None:  # the epochs of the global model, also if they are drawn from a distribution
            self._epochs = fed.per_client(fed.local.epochs, "local.epochs")
        else:
            self._epochs = fed.per_client(self.personal_epochs, "method.personal_epochs", least=0, whole=True)
        everybody, lr = torch.arange(fed.n), fed.per_client(fed.local.lr, "local.lr")
        if self._lam.varies or lr.varies:
            fastest = self._lam.largest * lr.largest
        else:
            fastest = float((self._lam[everybody] * lr[everybody]).max())
        if fastest >= 2:
            rule = "λ η must be below 2, because v_k diverges otherwise for all data"
            raise ArnoError(f"λ η = {fastest:g} at a client", rule, "lower method.lam or local.lr")
        self.v = fed.table(fed.w)

    def send(self, work: Work) -> Work:
        """The clients train in two phases; the second phase trains v_k."""
        personal = Phase(start="v", pulled=True, epochs="personal_epochs", mu="lam", keep="v")
        who, t = work.clients, work.round
        numbers = {"personal_epochs": self._epochs.at(who, t), "lam": self._lam.at(who, t)}
        given = {**work.given, "v": self.v[work.clients]}
        return replace(work, phases=(Phase(), personal), given=given, numbers={**work.numbers, **numbers})

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Each client keeps its v_k."""
        self.v[work.clients] = torch.stack([extra["v"] for extra in out.extra]).to(self.v[work.clients])
        return v

    def personal(self, clients: Tensor) -> Mat:
        """v_k."""
        return self.v[clients]
