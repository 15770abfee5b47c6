"""FedExP: the server extrapolates where the clients' updates disagree.

    η_g = max(1, Σ p_k ‖Δ_k‖² / (2 (‖Δ̄‖² + ε)));   w ← w + η_s η_g Δ̄

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023, arXiv:2301.09604.

Deviations: none. As in the paper, ε is not scaled with the number of clients or the rate; the released program does so.
`report=mean_of_two` scores the mean of the last two models, as the paper does; training never uses it.
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
    """The server steps further where the clients' updates disagree.

    Helps: early in a run, and with many clients whose updates are nearly orthogonal.
    Hurts: near the optimum, where a longer step only adds noise; report=mean_of_two softens that.

    epsilon: ε, which bounds the step where updates nearly cancel.
    report: score the last model, or the mean of the last two.

    >>> fedexp()
    [Extrapolation(epsilon=0.001, report='last')]
    """
    return [Extrapolation(epsilon, report)]


@parts.register("extrapolation")
@dataclass
class Extrapolation(Part):
    """η_g from the norms of the updates and of their mean."""

    epsilon: float = 0.001
    report: Literal["last", "mean_of_two"] = "last"
    roles: ClassVar[frozenset[str]] = frozenset({"server"})

    def start(self, fed: Federation) -> None:
        """η_g is defined for the mean of the updates."""
        if not self.epsilon > 0:
            raise ArnoError(f"method.epsilon = {self.epsilon:g}", "it must be positive", "try method.epsilon=0.001")
        refuse_roles(fed, self, "FedExP", {"mean": "its step is not the mean of the updates whose norms FedExP takes"})
        self.step = 1.0
        self.before, self.last, self.rounds = fed.w.new_zeros(0), fed.w.new_zeros(0), 0

    def begin(self, t: int) -> None:
        """No norm is known yet."""
        self._squares = 0.0

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Σ p_k ‖Δ_k‖² over the parameters."""
        self._squares += float(work.weight @ out.delta.square().sum(1))
        return v

    def answered(self, out: Result) -> list[int]:
        """‖Δ_k‖²."""
        return [1] * len(out.loss)

    def finish(self, t: int, v: Vec) -> Vec:
        """η_g Δ̄."""
        self.step = max(1.0, self._squares / (2 * (float(v @ v) + self.epsilon)))
        return self.step * v

    def score(self, w: Vec, t: int) -> None:
        """Remember the last two models, where their mean is scored."""
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
    return [Chart("Server step", "How far the server extrapolates; 1 is FedAvg.", lines, y="η_g")]
