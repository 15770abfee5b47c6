"""FedAvg with a server learning rate that changes over the rounds.

    w ← w + η_s · factor(t) · Σ_{k∈S} p_k Δ_k

    exponential: rate^t;   inverse: 1/(1 + rate·t);   inverse_sqrt: 1/√(1 + rate·t);
    cosine: (1 + cos(π t/R))/2 over the run's R rounds;   step: rate^⌊t/every⌋

Papers about decay on the server: Reddi et al., ICLR 2021, arXiv:2003.00295, and Charles & Konečný, 2020,
arXiv:2007.00878.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import ClassVar, Literal

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Vec
from ..errors import ArnoError
from . import methods, parts

Schedule = Literal["exponential", "inverse", "inverse_sqrt", "cosine", "step"]


@methods.register(
    "fedavg_schedule",
    family="server",
    paper="Reddi et al., ICLR 2021, arXiv:2003.00295",
    formula="w ← w + η_s factor(t) Σ p_k Δ_k",
    tune={"rate": "linear(0.9, 1)"},
)
def fedavg_schedule(*, schedule: Schedule = "cosine", rate: float = 0.99, every: int = 10) -> list[Part]:
    """FedAvg whose server learning rate follows a schedule.

    Helps: at the end of long runs with few participants: smaller steps reduce the noise of their updates.
    Hurts: if the schedule ends before the model has learned.

    schedule: exponential, inverse, inverse_sqrt, cosine or step.
    rate: the rate of the schedule (not used by cosine).
    every: rounds between two steps of the schedule (used by step only).

    >>> fedavg_schedule(schedule="inverse", rate=0.1)
    [ServerSchedule(schedule='inverse', rate=0.1, every=10)]
    """
    return [ServerSchedule(schedule, rate, every)]


@parts.register("server_schedule")
@dataclass
class ServerSchedule(Part):
    """Scales the server's step."""

    schedule: Schedule = "cosine"
    rate: float = 0.99
    every: int = 10
    roles: ClassVar[frozenset[str]] = frozenset({"rate"})

    def start(self, fed: Federation) -> None:
        """Check the settings; schedule=cosine needs the number of rounds."""
        if self.rate <= 0 or self.every < 1:
            raise ArnoError(
                f"method.rate = {self.rate:g}, method.every = {self.every}",
                "both must be positive",
                "try method.rate=0.99 method.every=10",
            )
        if self.schedule == "cosine" and fed.rounds is None:
            raise ArnoError(
                "a cosine without a number of rounds", "it reaches zero in the last round", "give Federation rounds=…"
            )
        self._rounds = fed.rounds or 1

    def finish(self, t: int, v: Vec) -> Vec:
        """factor(t) · v."""
        return self.factor(t) * v

    def factor(self, t: int) -> float:
        """The factor of round t (from 0)."""
        match self.schedule:
            case "exponential":
                return float(self.rate**t)
            case "inverse":
                return 1 / (1 + self.rate * t)
            case "inverse_sqrt":
                return 1 / sqrt(1 + self.rate * t)
            case "cosine":
                return (1 + cos(pi * t / self._rounds)) / 2
            case "step":
                return float(self.rate ** (t // self.every))
