"""HeteroFL: each client trains the first units of each layer, so a larger sub-model contains all smaller ones.

    client k, a layer with n units:  I = { 0 … ⌊β_k n⌋ − 1 }, at least one unit
    client k:  trains the network of its units, from w on I_k
    server:    w_i ← w_i + η_s (Σ_{k: i∈I_k} p_k Δ_{k,i}) / (Σ_{k: i∈I_k} p_k)

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients.
ICLR 2021, arXiv:2010.01264. Deviations: those of `sub_models.py`.
"""

from __future__ import annotations

from ..core.method_part import Part
from ..core.per_client import PerClient
from . import methods
from .sub_models import MEAN, Mode, Normalize, Window


@methods.register(
    "heterofl",
    family="sub-models",
    paper="Diao et al., ICLR 2021, arXiv:2010.01264",
    formula=f"I = {{0 … ⌊βn⌋−1}};  {MEAN}",
)
def heterofl(*, beta: PerClient = 0.5, mode: Mode = "extract", normalize: Normalize = "coverage") -> list[Part]:
    """Each client trains the first units of each layer, so a larger sub-model contains all smaller ones.

    Helps: if clients differ in memory, because all of them train the first units.
    Hurts: if no client trains all units: the last units are then never trained.

    beta: β, the share of each layer's units that a client trains; may differ per client.
    mode: extract a smaller network, or mask the full one.
    normalize: divide by the weight of the clients that trained a coordinate (coverage), or of all clients (all).
    """
    return [Window(beta, "static", mode, normalize)]
