"""Fine-tuning: every client trains the final model on its own data. FedBABU trains only the body in the rounds.

    personal model of client k: E epochs of local SGD from w, on all parameters or a group; the client does not send it
    FedBABU: the rounds train the body only; the head stays at w⁰

Fine-tuning: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage: Federated Evaluation of On-device Personalization. 2019,
arXiv:1910.10252. FedBABU: Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification.
ICLR 2022, arXiv:2106.06042.

Deviations: none. Fine-tuning uses the learning rate of the last round and its own random streams. It changes no state.
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
    """The rounds train all layers except the last one, which stays random; each client then fine-tunes the model.

    Helps: with label skew, if each client may fine-tune.
    Hurts: without fine-tuning, because the last layer is random.

    finetune_epochs: epochs of fine-tuning; 0: all clients use w.
    finetune_part: the layers that fine-tuning changes: full, head or body.

    >>> fedbabu()
    [FixedHead(finetune_epochs=5, finetune_part='full')]
    """
    return [FixedHead(finetune_epochs, finetune_part)]


@parts.register("finetune")
@dataclass
class FineTune(Part):
    """Personal models: each client trains the current model by local SGD."""

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
        """Train some epochs from w, with the client's own learning rate and batch size."""
        if not self.finetune_epochs:
            return self._fed.evaluated().expand(len(clients), -1)
        return adapted(self._fed, clients, self._asked)

    def _asked(self, work: Work) -> Work:
        epochs = torch.full_like(work.epochs, self.finetune_epochs)
        steps = self._fed.clients.steps(work.clients, epochs, work.batch_size).to(work.steps)
        phases = () if self.finetune_part == "full" else (Phase(moves=self.finetune_part),)
        return replace(work, epochs=epochs, steps=steps, phases=phases)


def has_personal_models(fed: Federation) -> bool:
    """Whether a part gives clients personal models in the rounds. Fine-tuning for a score does not change rounds."""
    return any("personal" in part.roles and type(part) is not FineTune for part in fed.parts)


@parts.register("fixed_head")
@dataclass
class FixedHead(FineTune):
    """Fine-tuning; and in the rounds the head does not change and is not sent."""

    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def send(self, work: Work) -> Work:
        """Clients train the body only."""
        return replace(work, phases=(Phase(moves="body"),))

    def private(self) -> Tensor:
        """The head."""
        return self._fed.layout.mask("head")
