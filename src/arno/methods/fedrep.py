"""FedRep: each client first trains its own head with the shared body, then the body with its new head.

    client k:  starts from (body of w, head_k);   1. head_epochs epochs on the head;   2. E_k epochs on the body
    server:    w ← w + η_s Σ p_k (w_k − w) on the body;   head_k stays with the client

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning.
ICML 2021, arXiv:2102.07078.

Deviation: both phases use the learning rate η_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.per_client import PerClient
from ..core.work import Phase, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import refuse_roles
from .fednova import Nova
from .kept_layers import Keep


@methods.register(
    "fedrep",
    family="personal",
    paper="Collins et al., ICML 2021, arXiv:2102.07078",
    formula="head_k ← SGD on the head;  then body ← SGD on the body;  w ← FedAvg of the bodies",
    defaults={"weighting": "uniform"},
    tune={"head_epochs": "int(1, 20)"},
)
def fedrep(*, head_epochs: PerClient = 10) -> list[Part]:
    """Each client trains its own last layer first, then the other layers, which all clients share.

    Helps: with label skew and many clients with few samples.
    Hurts: in time: the epochs of the head are additional.

    head_epochs: epochs of the head (local.epochs sets the epochs of the body); may differ per client.

    >>> fedrep(head_epochs=2)
    [HeadThenBody(group='head', head_epochs=2)]
    """
    return [HeadThenBody("head", head_epochs)]


@parts.register("head_then_body")
@dataclass
class HeadThenBody(Keep):
    """Two phases of training, and the client's own head."""

    head_epochs: PerClient = 10
    roles: ClassVar[frozenset[str]] = frozenset({"personal", "step"})

    def start(self, fed: Federation) -> None:
        """Every head begins at w⁰."""
        super().start(fed)
        why = "the other part divides updates by the number of steps, and steps of the head do not change the body"
        refuse_roles(fed, self, "FedRep", {"control": why})
        if any(isinstance(other, Nova) for other in fed.parts):
            raise ArnoError("FedRep with Nova", why, "leave one of them out")
        self._epochs = fed.per_client(self.head_epochs, "method.head_epochs", least=0, whole=True)

    def send(self, work: Work) -> Work:
        """The clients train in two phases: the head, then the body."""
        epochs = self._epochs.at(work.clients, work.round)
        steps = work.steps + self._fed.clients.steps(work.clients, epochs.long(), work.batch_size).to(work.steps)
        phases = (Phase(epochs="head_epochs", moves="head"), Phase(moves="body"))
        return replace(super().send(work), phases=phases, numbers={**work.numbers, "head_epochs": epochs}, steps=steps)
