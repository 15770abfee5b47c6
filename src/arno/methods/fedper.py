"""FedPer: the head (the last linear layer) stays with the client.

    client k:  starts from the body of w and its own head; trains both; keeps the head
    server:    w ← w + η_s Σ p_k (w_k − w) on the body

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019, arXiv:1912.00818.

Deviation: heads begin at w⁰ for every client (the paper draws them at random).
"""

from __future__ import annotations

from ..core.method_part import Part
from . import methods
from .kept_layers import Keep


@methods.register(
    "fedper",
    family="personal",
    paper="Arivazhagan et al., 2019, arXiv:1912.00818",
    formula="the head stays with the client;  w ← FedAvg of the body",
)
def fedper() -> list[Part]:
    """The last linear layer stays with the client; the other layers are averaged.

    Helps: with label skew: each client needs other outputs from the same features.
    Hurts: if features differ between clients, because then the shared layers should differ; and for new clients.

    >>> fedper()
    [Keep(group='head')]
    """
    return [Keep("head")]
