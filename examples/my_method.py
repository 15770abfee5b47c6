"""A method in one file: FedAvg that shortens large updates.

v ← Σ p_k Δ_k · min(1, c/‖Δ_k‖),   c = strength · (mean norm in the previous round)

    arno run method=custom method.target=examples/my_method.py:factory method.strength=0.5

Arno calls the factory with the settings. A method is a list of parts. A round calls the callbacks of every part
(`start`, `receive`, `finish`, …); a part overrides only the callbacks that it needs.
"""

from dataclasses import dataclass

import torch

from arno import Federation, Part, Result, Work


def factory(*, strength: float = 1.0) -> list[Part]:
    """strength: the largest norm of an update, as a multiple of the mean norm in the previous round."""
    return [ShortenLarge(strength)]


@dataclass
class ShortenLarge(Part):
    strength: float

    def start(self, fed: Federation) -> None:
        self.usual = 0.0  # state, saved in checkpoints; 0 until the first round is over
        self._norms: list[float] = []  # with an underscore: not saved

    def receive(self, work: Work, out: Result, v: torch.Tensor) -> torch.Tensor:
        norms = out.delta.norm(dim=1)
        self._norms += norms.tolist()
        limit = self.strength * self.usual or float("inf")
        return v - (work.weight * (1 - limit / norms).clamp(min=0)) @ out.delta

    def finish(self, t: int, v: torch.Tensor) -> torch.Tensor:
        self.usual, self._norms = sum(self._norms) / len(self._norms), []
        return v
