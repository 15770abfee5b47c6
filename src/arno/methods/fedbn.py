"""FedBN: normalisation layers stay with the client, with their running statistics.

    client k:  starts from w with its own normalisation layers; trains all; keeps these layers
    server:    w ← w + η_s Σ p_k (w_k − w) on the other layers

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021,
arXiv:2102.07623.

Deviation: all kinds of normalisation layers are kept, found by their type.
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

    Helps: with feature shift, such as other scanners or sensors, on networks with normalisation layers.
    Hurts: little: without such layers it is FedAvg.

    >>> fedbn()
    [Keep(group='norm')]
    """
    return [Keep("norm")]
