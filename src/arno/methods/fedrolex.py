"""FedRolex: each client trains a window of the units of each layer; the window moves by one unit in every round.

    round r, client k, a layer with n units:  I = { (r + i) mod n : i = 0 … ⌊β_k n⌋ − 1 }, at least one unit
    client k:  trains the network of its units, from w on I_k
    server:    w_i ← w_i + η_s (Σ_{k: i∈I_k} p_k Δ_{k,i}) / (Σ_{k: i∈I_k} p_k)

Alam, Liu, Yan, Zhang: FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction.
NeurIPS 2022, arXiv:2212.01548. Deviations: those of `sub_models.py`.
"""

from __future__ import annotations

from ..core.method_part import Part
from ..core.per_client import PerClient
from . import methods
from .sub_models import MEAN, Mode, Normalize, Window


@methods.register(
    "fedrolex",
    family="sub-models",
    paper="Alam et al., NeurIPS 2022, arXiv:2212.01548",
    formula=f"I = {{(r + i) mod n}};  {MEAN}",
)
def fedrolex(*, beta: PerClient = 0.5, mode: Mode = "extract", normalize: Normalize = "coverage") -> list[Part]:
    """Each client trains a window of the units of each layer; the window moves by one unit in every round.

    Helps: if clients have too little memory for the whole model, or a connection that is too slow for it.
    Hurts: in score: a part of the model learns less per round than the whole model.

    beta: β, the share of each layer's units that a client trains; may differ per client.
    mode: extract a smaller network, or mask the full one.
    normalize: divide by the weight of the clients that trained a coordinate (coverage), or of all clients (all).

    >>> fedrolex(beta=0.25)
    [Window(beta=0.25, rule='rolling', mode='extract', normalize='coverage')]
    """
    return [Window(beta, "rolling", mode, normalize)]
