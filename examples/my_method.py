"""A method of one's own, outside the package: FedAvg in which loud clients are turned down.

v ← Σ p_k Δ_k · min(1, c/‖Δ_k‖),   c = strength · (mean norm of the round before)

arno run method=custom method.target=examples/my_method.py:factory method.strength=0.5
"""

from dataclasses import dataclass

import torch

from arno import Federation, Part, Result, Work


def factory(*, strength: float = 1.0) -> list[Part]:
    """strength: how loud a client may be, as a multiple of the last round's mean norm."""
    return [TurnDown(strength)]


@dataclass
class TurnDown(Part):
    strength: float

    def start(self, fed: Federation) -> None:
        self.usual = 0.0  # state: saved in checkpoints; 0 until the first round is over
        self._norms: list[float] = []  # underscore: not saved

    def receive(self, work: Work, out: Result, v: torch.Tensor) -> torch.Tensor:
        norms = out.delta.norm(dim=1)
        self._norms += norms.tolist()
        limit = self.strength * self.usual or float("inf")
        return v - (work.weight * (1 - limit / norms).clamp(min=0)) @ out.delta

    def finish(self, t: int, v: torch.Tensor) -> torch.Tensor:
        self.usual, self._norms = sum(self._norms) / len(self._norms), []
        return v
