"""FedSCAVAR: sub-models, a proximal term, control variates and cluster variance reduction in one method.

    window I_k = I(r, β_k);  client k on I_k:  g ← ∇ℓ(w_k; b) + μ_k (w_k − w) − c_k + c
    c_k⁺ ← c_k − c − Δ_k / (steps_k η_k) on I_k
    v ← (1/m) Σ_{k∈S} (Δ_k − y_{c_k}|I_k) + (1/N) Σ_j y_{c_j};  w ← w + η_s v
    c ← c + (m/N) Σ_{k∈S} p_k Δc_k;  y_q ← mean of Δ_i over S ∩ cluster q

It has no code of its own: it is the list of the parts of FedRolex, FedProx, SCAFFOLD and ClusterFedVARP. v is divided
by m, not by the number of clients that trained a coordinate.
"""

from __future__ import annotations

from typing import Literal

from ..core.method_part import Part
from ..core.per_client import PerClient
from . import methods
from .cluster_fedvarp import Clusters, ClusterVarp
from .fedprox import Proximal
from .scaffold import Scaffold
from .sub_models import Mode, Window


@methods.register(
    "fedscavar",
    family="composed",
    paper="composition of FedRolex, FedProx, SCAFFOLD and ClusterFedVARP",
    formula="v ← (1/m) Σ (Δ_k − y_{c_k}|I_k) + (1/N) Σ_j y_{c_j};  g ← ∇ℓ + μ_k (w_k − w) − c_k + c on I_k",
    tune={"mu": "log(0.001, 1)", "clusters": "int(2, 50)"},
)
def fedscavar(
    *,
    beta: PerClient = 0.5,
    mu: PerClient = 0.01,
    clusters: Clusters = 10,
    by: Literal["random", "labels"] = "random",
    mode: Mode = "extract",
) -> list[Part]:
    """Sub-models, a proximal term, control variates and cluster variance reduction in one method.

    Helps: if clients with little memory and skewed data rarely take part.
    Hurts: if one of its four parts hurts; compare it with each of them.

    beta: β, the share of each layer's units that a client trains; 1 trains the whole model.
    mu: μ, the weight of the proximal term; 0 leaves the term out.
    clusters, by: as for cluster_fedvarp.
    mode: as for fedrolex.

    >>> [type(part).__name__ for part in fedscavar()]
    ['Window', 'Proximal', 'Scaffold', 'ClusterVarp']
    """
    return [Window(beta, mode=mode), Proximal(mu), Scaffold(), ClusterVarp(clusters, by)]
