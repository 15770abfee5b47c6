"""FedAvg: the round without any part.

    for each client k of the cohort S:   Δ_k ← local SGD(w, D_k) − w
    w ← w + η_s Σ_{k∈S} p_k Δ_k

p_k is n_k / Σ_{i∈S} n_i (`weighting=samples`) or 1/m (`weighting=uniform`). The paper has η_s = 1.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, arXiv:1602.05629.
"""

from __future__ import annotations

from ..core.method_part import Part
from . import methods
from .finetune import FineTune, Group


@methods.register(
    "fedavg", family="global", paper="McMahan et al., AISTATS 2017, arXiv:1602.05629", formula="w ← w + η_s Σ p_k Δ_k"
)
def fedavg(*, finetune_epochs: int = 0, finetune_part: Group = "full") -> list[Part]:
    """Federated averaging: the server takes the mean of the models that the clients trained.

    Helps: as the baseline of every comparison, and if clients hold similar data.
    Hurts: with skewed data and many local steps: the models of the clients become so different that their mean is worse
        than each of them.

    finetune_epochs: epochs in which each client trains its personal model from the global model; 0: no personal models.
    finetune_part: the layers that this training changes: full, head or body.

    >>> fedavg()
    []
    """
    return [FineTune(finetune_epochs, finetune_part)] if finetune_epochs else []
