"""FedExP: the server takes a longer step if the updates of the clients disagree.

    η_g = max(1, Σ p_k ‖Δ_k‖² / (2 (‖Δ̄‖² + ε)));   w ← w + η_s η_g Δ̄

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023, arXiv:2301.09604.

Deviations: none. As in the paper, ε is not scaled; the released program scales it with the number of clients and the
rate. `report=mean_of_two` scores the mean of the last two models, as the paper does; training never uses this mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import refuse_roles
from .panels import Chart, Panel, Records, curves_of, panels


@methods.register(
    "fedexp",
    family="server",
    paper="Jhunjhunwala et al., ICLR 2023, arXiv:2301.09604",
    formula="η_g = max(1, Σ p_k ‖Δ_k‖² / (2 (‖Δ̄‖² + ε)));  w ← w + η_s η_g Δ̄",
    tune={"epsilon": "log(0.0001, 1)"},
)
def fedexp(*, epsilon: float = 0.001, report: Literal["last", "mean_of_two"] = "last") -> list[Part]:
    """The server takes a longer step if the updates of the clients disagree.

    Helps: early in a run, and with many clients whose updates are nearly orthogonal.
    Hurts: near the optimum, because a longer step only adds noise; report=mean_of_two reduces this effect.

    epsilon: ε, which limits the step if the sum of the updates is nearly zero.
    report: score the last model, or the mean of the last two models.

    >>> fedexp()
    [Extrapolation(epsilon=0.001, report='last')]
    """
    return [Extrapolation(epsilon, report)]


@parts.register("extrapolation")
@dataclass
class Extrapolation(Part):
    """Computes η_g from the norms of the updates and the norm of their mean."""

    epsilon: float = 0.001
    report: Literal["last", "mean_of_two"] = "last"
    roles: ClassVar[frozenset[str]] = frozenset({"server"})

    def start(self, fed: Federation) -> None:
        """Check the settings; refuse a part that changes the mean of the updates."""
        if not self.epsilon > 0:
            raise ArnoError(f"method.epsilon = {self.epsilon:g}", "it must be positive", "try method.epsilon=0.001")
        refuse_roles(fed, self, "FedExP", {"mean": "FedExP needs the plain mean of the updates"})
        self.step = 1.0
        self.before, self.last, self.rounds = fed.w.new_zeros(0), fed.w.new_zeros(0), 0

    def begin(self, t: int) -> None:
        """Begin the sum of this round at zero."""
        self._squares = 0.0

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Add up Σ p_k ‖Δ_k‖² over the parameters."""
        self._squares += float(work.weight @ out.delta.square().sum(1))
        return v

    def answered(self, out: Result) -> list[int]:
        """Each client sends one number, ‖Δ_k‖²."""
        return [1] * len(out.loss)

    def finish(self, t: int, v: Vec) -> Vec:
        """η_g Δ̄."""
        self.step = max(1.0, self._squares / (2 * (float(v @ v) + self.epsilon)))
        return self.step * v

    def score(self, w: Vec, t: int) -> None:
        """Keep the last two models if their mean is scored."""
        if self.report == "mean_of_two":
            self.before, self.last, self.rounds = self.last, w.clone(), self.rounds + 1

    def evaluated(self, w: Vec) -> Vec:
        """w, or (w_t + w_{t−1})/2 from the second round on."""
        return (w + self.before) / 2 if self.rounds > 1 else w

    def record(self) -> dict[str, float]:
        """η_g."""
        return {"server_step": self.step}


@panels.register
def _(part: Extrapolation, run: Records) -> list[Panel]:
    lines = curves_of(run.rows, {"server_step": "η_g"})
    return [Chart("Server step", "The factor of the server's step; 1 is FedAvg.", lines, y="η_g")]
