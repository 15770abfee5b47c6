"""Federated Dropout: each client trains some units of each layer, which are drawn for this client in every round.

    round r, client k, a layer with n units:  I = ⌊β_k n⌋ units at random, at least one
    client k:  trains the network of its units, from w on I_k
    server:    w_i ← w_i + η_s (Σ_{k: i∈I_k} p_k Δ_{k,i}) / (Σ_{k: i∈I_k} p_k)

Caldas, Konečný, McMahan, Talwalkar: Expanding the Reach of Federated Learning by Reducing Client Resource Requirements.
2018, arXiv:1812.07210. Deviations: those of `sub_models.py`.
"""

from __future__ import annotations

from ..core.method_part import Part
from ..core.per_client import PerClient
from . import methods
from .sub_models import MEAN, Mode, Normalize, Window


@methods.register(
    "federated_dropout",
    family="sub-models",
    paper="Caldas et al., 2018, arXiv:1812.07210",
    formula=f"I random;  {MEAN}",
)
def federated_dropout(
    *, beta: PerClient = 0.5, mode: Mode = "extract", normalize: Normalize = "coverage"
) -> list[Part]:
    """Each client trains some units of each layer, which are drawn for this client in every round.

    Helps: if clients have too little memory for the whole model; over the rounds, all units are trained.
    Hurts: in score, as every method with sub-models.

    beta: β, the share of each layer's units that a client trains; may differ per client.
    mode: extract a smaller network, or mask the full one.
    normalize: divide by the weight of the clients that trained a coordinate (coverage), or of all clients (all).
    """
    return [Window(beta, "random", mode, normalize)]
