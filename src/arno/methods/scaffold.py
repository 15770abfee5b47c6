"""SCAFFOLD: control variates correct the drift of each client.

    server control c = 0, client controls c_k = 0
    client k:  w_k ← w_k − η_k ( ∇ℓ(w_k; b) − c_k + c )
               c_k⁺ ← c_k − c − Δ_k / (steps_k η_k),   Δc_k ← c_k⁺ − c_k,   c_k ← c_k⁺
    server:    w ← w + η_s Σ_{k∈S} p_k Δ_k
               c ← c + (m/N) Σ_{k∈S} p_k Δc_k

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020, arXiv:1910.06378.

Deviation: this is the paper's option II for c_k⁺. With p_k = n_k / Σ n_i (`weighting=samples`) the server's control is
weighted too; with `weighting=uniform` it is the paper's c + (1/N) Σ Δc_k, and c stays the mean of all c_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .panels import Chart, Panel, Records, curves_of, panels


@methods.register(
    "scaffold",
    family="variance-reduction",
    paper="Karimireddy et al., ICML 2020, arXiv:1910.06378",
    formula="g ← ∇ℓ(w_k; b) − c_k + c;  c_k ← c_k − c − Δ_k/(steps_k η_k);  c ← c + (m/N) Σ p_k Δc_k",
)
def scaffold() -> list[Part]:
    """Every client corrects its gradients with control variates that estimate its drift.

    Helps: with skewed data and several local steps, if clients take part often.
    Hurts: with very low participation, because the controls are old; and in bytes: it sends twice as many as FedAvg.

    >>> scaffold()
    [Scaffold()]
    """
    return [Scaffold()]


@parts.register("scaffold")
@dataclass
class Scaffold(Part):
    """The controls c and c_k. If a client trains a window, only the coordinates of the window change in c_k."""

    roles: ClassVar[frozenset[str]] = frozenset({"control"})
    vectors: ClassVar[tuple[int, int]] = (1, 1)  # c; Δc_k

    def start(self, fed: Federation) -> None:
        """All controls are zero."""
        if fed.local.sgd.momentum:
            raise ArnoError(
                f"SCAFFOLD with local.momentum = {fed.local.sgd.momentum:g}",
                "c_k ← c_k − c − Δ_k/(steps_k η_k) is the mean gradient only for plain SGD",
                "set local.momentum=0",
            )
        self.c = torch.zeros_like(fed.w)
        self.ck = fed.table()

    def begin(self, t: int) -> None:
        """Begin the sum of this round at zero."""
        self._change = torch.zeros_like(self.c)

    def send(self, work: Work) -> Work:
        """Add c − c_k to every gradient of client k."""
        return work.add_drift(self.c - self.ck[work.clients])

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """c_k ← c_k⁺; `finish` changes c."""
        dck = work.masked(-self.c - out.delta / (work.steps * work.lr)[:, None])
        self.ck[work.clients] = self.ck[work.clients] + dck
        self._change += work.cohort / self.ck.n * (work.weight @ dck)
        return v

    def finish(self, t: int, v: Vec) -> Vec:
        """c ← c + (m/N) Σ p_k Δc_k, without the server's learning rate."""
        self.c = self.c + self._change
        return v

    def record(self) -> dict[str, float]:
        """The norm of the server's control."""
        return {"control_norm": float(self.c.norm())}


@panels.register
def _(part: Scaffold, run: Records) -> list[Panel]:
    text = "The norm of the server's control, its estimate of the mean gradient."
    return [Chart("Control variate", text, curves_of(run.rows, {"control_norm": "‖c‖"}), y="norm", low=0)]
