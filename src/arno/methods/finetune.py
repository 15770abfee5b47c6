"""Fine-tuning: every client adapts the final model to its own data. FedBABU trains the body for it.

    personal model of client k: E epochs of local SGD from w, on all parameters or a group; nothing of it is sent
    FedBABU: in the rounds only the body is trained; the head stays at w⁰

Fine-tuning: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage: Federated Evaluation of On-device Personalization. 2019,
arXiv:1910.10252. FedBABU: Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification.
ICLR 2022, arXiv:2106.06042.

Deviations: none. Fine-tuning uses the learning rate of the last round and random streams of its own, and changes no
state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Mat, Phase, Work
from ..errors import ArnoError
from . import methods, parts
from .personal_adaptation import adapted

Group = Literal["full", "head", "body"]


@methods.register(
    "fedbabu",
    family="personal",
    paper="Oh et al., ICLR 2022, arXiv:2106.06042",
    formula="w ← FedAvg of the body, the head stays at w⁰;  personal: fine-tuned from w",
    tune={"finetune_epochs": "int(1, 20)"},
)
def fedbabu(*, finetune_epochs: int = 5, finetune_part: Group = "full") -> list[Part]:
    """The layers below the last are trained under a last layer that never changes; clients fine-tune the result.

    Helps: with label skew, when each client may fine-tune.
    Hurts: without fine-tuning: the last layer is random.

    finetune_epochs: epochs of fine-tuning; 0: all clients use w.
    finetune_part: full, head or body.

    >>> fedbabu()
    [FixedHead(finetune_epochs=5, finetune_part='full')]
    """
    return [FixedHead(finetune_epochs, finetune_part)]


@parts.register("finetune")
@dataclass
class FineTune(Part):
    """Personal models by local SGD from the current model."""

    finetune_epochs: int = 5
    finetune_part: Group = "full"
    roles: ClassVar[frozenset[str]] = frozenset({"personal"})

    def start(self, fed: Federation) -> None:
        """Check the settings."""
        if self.finetune_epochs < 0:
            raise ArnoError(f"method.finetune_epochs = {self.finetune_epochs}", "it must not be negative", "try 5")
        fed.layout.mask(self.finetune_part)
        self._fed = fed

    def personal(self, clients: Tensor) -> Mat:
        """Some epochs from w, with the client's own rate, batch size and weight decay."""
        if not self.finetune_epochs:
            return self._fed.evaluated().expand(len(clients), -1)
        return adapted(self._fed, clients, self._asked)

    def _asked(self, work: Work) -> Work:
        epochs = torch.full_like(work.epochs, self.finetune_epochs)
        steps = self._fed.clients.steps(work.clients, epochs, work.batch_size).to(work.steps)
        phases = () if self.finetune_part == "full" else (Phase(moves=self.finetune_part),)
        return replace(work, epochs=epochs, steps=steps, phases=phases)


def has_personal_models(fed: Federation) -> bool:
    """Whether a part gives clients models of their own in the rounds; fine-tuning for a score changes no round."""
    return any("personal" in part.roles and type(part) is not FineTune for part in fed.parts)


@parts.register("fixed_head")
@dataclass
class FixedHead(FineTune):
    """The same, and in the rounds the head neither moves nor is sent."""

    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def send(self, work: Work) -> Work:
        """Train the body."""
        return replace(work, phases=(Phase(moves="body"),))

    def private(self) -> Tensor:
        """The head."""
        return self._fed.layout.mask("head")
