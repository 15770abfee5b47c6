"""FedBN: normalisation layers and their running statistics stay with the client.

    client k:  starts from w with its own normalisation layers; trains all layers; keeps the normalisation layers
    server:    w ← w + η_s Σ p_k (w_k − w) on the other layers

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021,
arXiv:2102.07623.

Deviation: all types of normalisation layers are kept, not only BatchNorm.
"""

from __future__ import annotations

from ..core.method_part import Part
from . import methods
from .kept_layers import Keep


@methods.register(
    "fedbn",
    family="personal",
    paper="Li et al., ICLR 2021, arXiv:2102.07623",
    formula="normalisation layers stay with the client;  w ← FedAvg of the rest",
    defaults={"weighting": "uniform"},
)
def fedbn() -> list[Part]:
    """Normalisation layers and their running statistics stay with the client; the rest is averaged.

    Helps: if features differ between clients (other scanners, other sensors), on networks with normalisation layers.
    Hurts: rarely; on a network without such layers it is FedAvg.

    >>> fedbn()
    [Keep(group='norm')]
    """
    return [Keep("norm")]
