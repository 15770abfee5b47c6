"""FedDC: every client tracks its drift from the global model and corrects it.

    client k:  g ← ∇ℓ(w_k; b) + wd·w_k + α (w_k + h_k − w) + (g_k − ḡ)/(steps_k η_k)
               h_k ← h_k + Δ_k;   g_k ← Δ_k
    server:    ḡ = (1/N) Σ_j g_j, with the g_j at the end of the last round
               w ← w + η_s (Σ p_k Δ_k + Σ_{k∈S} p_k h_k)        drift=cohort
               w ← w + η_s (Σ p_k Δ_k + (1/N) Σ_j h_j)          drift=all

Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction.
CVPR 2022, arXiv:2203.11751.

Deviations: the released program averages h over all clients, updates g as SCAFFOLD does, and divides α by the client's
share of samples; of these three, only the first is available here (`drift=all`). No setting gives FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts
from .checks import no_momentum, refuse_roles

Drift = Literal["cohort", "all"]


@methods.register(
    "feddc",
    family="variance-reduction",
    paper="Gao et al., CVPR 2022, arXiv:2203.11751",
    formula="g ← ∇ℓ + α (w_k + h_k − w) + (g_k − ḡ)/(steps_k η_k);  h_k ← h_k + Δ_k;  v ← Δ̄ + Σ p_k h_k",
    tune={"alpha": "log(0.005, 1)"},
)
def feddc(*, alpha: float = 0.1, drift: Drift = "cohort") -> list[Part]:
    """Each client tracks its drift from the global model and corrects it.

    Helps: with skewed data and full participation.
    Hurts: with low participation, long local training or a large learning rate: drifts add up and the run may diverge.

    alpha: α, the weight of the penalty.
    drift: which drifts the server averages: those of the cohort (as the paper), or of all clients (as its program).

    >>> feddc()
    [DriftCorrection(alpha=0.1, drift='cohort')]
    """
    return [DriftCorrection(alpha, drift)]


@parts.register("drift_correction")
@dataclass
class DriftCorrection(Part):
    """The drifts h_k and the last updates g_k."""

    alpha: float = 0.1
    drift: Drift = "cohort"
    roles: ClassVar[frozenset[str]] = frozenset({"control", "mean"})
    vectors: ClassVar[tuple[int, int]] = (1, 1)  # ḡ; h_k

    def start(self, fed: Federation) -> None:
        """All states are zero."""
        if not self.alpha >= 0:
            raise ArnoError(f"method.alpha = {self.alpha:g}", "it must not be negative", "try method.alpha=0.1")
        no_momentum(fed, "FedDC", "Δ_k/(steps_k η_k) is the mean gradient only for plain SGD")
        reasons = {
            "server": "a server optimiser would count the drift again in every round",
            "window": "a drift belongs to the whole model",
        }
        refuse_roles(fed, self, "FedDC", reasons)
        self.h, self.g = fed.table(), fed.table()

    def begin(self, t: int) -> None:
        """Compute ḡ from the updates up to the last round."""
        self._mean = self.g.mean()

    def send(self, work: Work) -> Work:
        """Add α (w_k + h_k − w), as a proximal term and a drift row, and the correction of the gradient."""
        steps = (work.steps * work.lr)[:, None]
        rows = self.alpha * self.h[work.clients] + (self.g[work.clients] - self._mean) / steps
        return replace(work.add_drift(rows), mu=work.mu + self.alpha)

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """h_k ← h_k + Δ_k;  g_k ← Δ_k;  with drift=cohort, v + Σ p_k h_k."""
        h = self.h[work.clients] + out.delta
        self.h[work.clients], self.g[work.clients] = h, out.delta
        return v + work.weight @ h if self.drift == "cohort" else v

    def finish(self, t: int, v: Vec) -> Vec:
        """With drift=all, v + (1/N) Σ_j h_j."""
        return v + self.h.mean() if self.drift == "all" else v
