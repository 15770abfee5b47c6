"""Power-of-choice: of d candidates the m clients with the largest loss.

    powd          draws d candidates without replacement with probability p; selects the m with the largest loss F_k(w)
    cpowd         powd with the loss estimated on one mini-batch of the client's own samples
    rpowd         powd with the last loss that each client reported; clients without a report have the loss ∞
    adapowd       powd with a d that decreases to m during the run

Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022, arXiv:2010.01243.
The losses that a rule asks for are its cost. The record of each round holds the number of clients that computed a loss
(`loss_evaluations`) and the number of their samples (`loss_samples`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Ids, Part
from ..core.seeds import key
from ..core.selection_draws import candidates_size, first, heaviest, race, shrunk, uniforms
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import selections
from .selection import Selection, shares, take


@selections.register("powd")
def powd(participation: float, *, d: int | None = None) -> Part:
    """d candidates are drawn with probability p_k; the m candidates with the largest loss of the global model train.

    d: number of candidates; twice the cohort by default.
    """
    return PowerOfChoice(participation, d)


@selections.register("cpowd")
def cpowd(participation: float, *, d: int | None = None, batch_size: int | None = None) -> Part:
    """Power-of-choice in which each candidate estimates its loss on one mini-batch of its own samples.

    d: number of candidates; twice the cohort by default.
    batch_size: samples in the mini-batch; the client's local.batch_size by default.
    """
    return BatchPowerOfChoice(participation, d, batch_size)


@selections.register("rpowd")
def rpowd(participation: float, *, d: int | None = None) -> Part:
    """Power-of-choice with the loss that each client reported when it last took part; no client computes another loss.

    d: number of candidates; twice the cohort by default.
    """
    return ReportedPowerOfChoice(participation, d)


@selections.register("adapowd")
def adapowd(participation: float, *, d: int | None = None, until: float = 0.5) -> Part:
    """Power-of-choice whose d decreases to m: fast convergence at first, no bias at the end.

    d: number of candidates in the first round; all clients by default.
    until: the share of the run after which d equals m.
    """
    return ShrinkingPowerOfChoice(participation, d, until)


@dataclass
class PowerOfChoice(Selection):
    """Draws d candidates without replacement with probability p (Gumbel top-d); selects the m with the largest loss."""

    participation: float
    d: int | None = None

    def start(self, fed: Federation) -> None:
        """Store the size of the cohort and the share of every client."""
        self._fed, self._base, self._p = fed, key(fed.seed, "select"), shares(fed)
        self._m = self.cohort(fed.n)
        self._d = candidates_size(self.d, self._m, fed.n)
        self._cost = (0, 0)

    def select(self, ids: Ids, t: int) -> Ids:
        """Draw the candidates and keep those with the largest loss."""
        p = self._p if isinstance(ids, range) else self._p[np.asarray(ids)]
        times = race(uniforms(self._base, t, len(ids)), p)
        candidates = take(ids, torch.from_numpy(first(times, min(self.candidates(t), len(ids)))))
        if len(candidates) <= self._m:  # all candidates take part, so no loss is needed
            self._cost = (0, 0)
            return candidates
        scores = self.scores(candidates, t).double().cpu().numpy()
        return candidates[torch.from_numpy(heaviest(np.where(np.isnan(scores), np.inf, scores), self._m))]

    def candidates(self, t: int) -> int:
        """d, the number of candidates in round t."""
        return self._d

    def scores(self, clients: Tensor, t: int) -> Tensor:
        """F_k(w) on all samples of each candidate."""
        known = self._fed.clients
        self._cost = (len(clients), int(known.sizes[clients].sum()) if known.sampled else len(clients))
        return self._fed.engine.loss(self._fed.w, clients)

    def record(self) -> dict[str, float]:
        """The cost of the selection."""
        return {"loss_evaluations": self._cost[0], "loss_samples": self._cost[1]}


@dataclass
class BatchPowerOfChoice(PowerOfChoice):
    """Candidates are scored on one mini-batch of their own samples (cpow-d)."""

    batch_size: int | None = None

    def start(self, fed: Federation) -> None:
        """Store the batch size of every client."""
        super().start(fed)
        spec = fed.local.batch_size if self.batch_size is None else self.batch_size
        name = "local.batch_size" if self.batch_size is None else "select.batch_size"
        self._sizes = fed.per_client(spec, name, least=1, whole=True)

    def scores(self, clients: Tensor, t: int) -> Tensor:
        """The loss on a mini-batch drawn without replacement from each candidate's samples."""
        size, known = self._sizes.at(clients, t).long(), self._fed.clients
        samples = int(torch.minimum(size, known.sizes[clients].cpu()).sum()) if known.sampled else len(clients)
        self._cost = (len(clients), samples)
        return self._fed.engine.batch_loss(self._fed.w, clients, size, self._fed.seed, t)


@dataclass
class ReportedPowerOfChoice(PowerOfChoice):
    """Candidates are scored by the mean loss over their steps when they last trained; before, by ∞ (rpow-d)."""

    def start(self, fed: Federation) -> None:
        """At the beginning, the loss of every client is ∞."""
        super().start(fed)
        self.reported = torch.full((fed.n,), torch.inf, dtype=torch.float64)

    def scores(self, clients: Tensor, t: int) -> Tensor:
        """The last losses that the candidates reported."""
        return self.reported[clients]

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Store the losses of the clients."""
        self.reported[work.clients] = out.loss.to(self.reported)
        return v


@dataclass
class ShrinkingPowerOfChoice(PowerOfChoice):
    """d decreases geometrically from its first value to m, which it reaches after the share `until` of the run."""

    until: float = 0.5

    def start(self, fed: Federation) -> None:
        """Refuse a run without a number of rounds, and an `until` outside (0, 1]."""
        if fed.rounds is None:
            rule = "its number of candidates depends on the number of rounds"
            raise ArnoError("adapowd without a number of rounds", rule, "give rounds=")
        if not 0 < self.until <= 1:
            raise ArnoError(f"select.until = {self.until:g}", "it must be above 0 and at most 1", "try select.until=1")
        super().start(fed)
        d = candidates_size(fed.n if self.d is None else self.d, self._m, fed.n)
        self._ds = shrunk(d, self._m, fed.rounds, self.until)

    def candidates(self, t: int) -> int:
        """d, the number of candidates in round t."""
        return int(self._ds[min(t, len(self._ds) - 1)])

    def record(self) -> dict[str, float]:
        """The cost of the selection, and the number of candidates."""
        return super().record() | {"candidates": self.candidates(self._fed.t)}
