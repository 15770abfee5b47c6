"""FedAvg: the round itself, without any part.

    for each client k of the cohort S, from w:   Δ_k ← local SGD(w, D_k) − w
    w ← w + η_s Σ_{k∈S} p_k Δ_k

p_k is n_k / Σ_{i∈S} n_i (`weighting=samples`) or 1/m (`weighting=uniform`). The paper has η_s = 1.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, arXiv:1602.05629.
"""

from __future__ import annotations

from ..core.part import Part
from . import methods


@methods.register("fedavg", paper="McMahan et al., AISTATS 2017, arXiv:1602.05629", formula="w ← w + η_s Σ p_k Δ_k")
def fedavg() -> list[Part]:
    """Federated averaging: the mean of what the clients learned.

    >>> fedavg()
    []
    """
    return []
