"""LG-FedAvg: the body (all layers except the last linear layer) stays with the client.

    client k:  starts from the head of w and its own body; trains both; keeps the body
    server:    w ← w + η_s Σ p_k (w_k − w) on the head

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations. 2020, arXiv:2001.01523.

Deviations: no auxiliary losses and no warm start.
"""

from __future__ import annotations

from ..core.method_part import Part
from . import methods
from .kept_layers import Keep


@methods.register(
    "lg_fedavg",
    family="personal",
    paper="Liang et al., 2020, arXiv:2001.01523",
    formula="the body stays with the client;  w ← FedAvg of the head",
)
def lg_fedavg() -> list[Part]:
    """The last linear layer is averaged; the other layers stay with the client.

    Helps: if features differ between clients, because each client learns its own features. Clients send few bytes.
    Hurts: if clients have few samples, because each client trains most of the model alone.

    >>> lg_fedavg()
    [Keep(group='body')]
    """
    return [Keep("body")]
