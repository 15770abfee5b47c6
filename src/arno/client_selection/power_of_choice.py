"""Power-of-choice: of d candidates the m clients with the largest loss.

    powd          d candidates without replacement with probability p, of which the m with the largest loss F_k(w)
    cpowd         powd with the loss estimated on one mini-batch of the client's own samples
    rpowd         powd with the loss that each client reported last; clients without a report come first
    adapowd       powd with d shrinking to m over the run

Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022, arXiv:2010.01243.
The losses a rule asks for are counted as its cost: `loss_evaluations` (clients) and `loss_samples` (samples they looked
at) in every round's record.
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
    """Of d candidates drawn with probability p_k, the m whose loss under the global model is largest.

    d: number of candidates; twice the cohort by default.
    """
    return PowerOfChoice(participation, d)


@selections.register("cpowd")
def cpowd(participation: float, *, d: int | None = None, batch_size: int | None = None) -> Part:
    """Power-of-choice with each candidate's loss estimated on one mini-batch of its own samples.

    d: number of candidates; twice the cohort by default.
    batch_size: samples in the mini-batch; the client's local.batch_size by default.
    """
    return BatchPowerOfChoice(participation, d, batch_size)


@selections.register("rpowd")
def rpowd(participation: float, *, d: int | None = None) -> Part:
    """Power-of-choice with the loss that each client reported when it last took part; costs no evaluation.

    d: number of candidates; twice the cohort by default.
    """
    return ReportedPowerOfChoice(participation, d)


@selections.register("adapowd")
def adapowd(participation: float, *, d: int | None = None, until: float = 0.5) -> Part:
    """Power-of-choice whose d shrinks to m: quick at first, unbiased in the end.

    d: number of candidates in the first round; all clients by default.
    until: the share of the run after which d equals m.
    """
    return ShrinkingPowerOfChoice(participation, d, until)


@dataclass
class PowerOfChoice(Selection):
    """d candidates without replacement with probability p (Gumbel top-d), of them the m with the largest loss."""

    participation: float
    d: int | None = None

    def start(self, fed: Federation) -> None:
        """Note the size of the cohort and the share of every client."""
        self._fed, self._base, self._p = fed, key(fed.seed, "select"), shares(fed)
        self._m = self.cohort(fed.n)
        self._d = candidates_size(self.d, self._m, fed.n)
        self._cost = (0, 0)

    def select(self, ids: Ids, t: int) -> Ids:
        """Draw the candidates and keep those with the largest loss."""
        p = self._p if isinstance(ids, range) else self._p[np.asarray(ids)]
        times = race(uniforms(self._base, t, len(ids)), p)
        candidates = take(ids, torch.from_numpy(first(times, min(self.candidates(t), len(ids)))))
        if len(candidates) <= self._m:  # all of them stay, so no loss is needed
            self._cost = (0, 0)
            return candidates
        scores = self.scores(candidates, t).double().cpu().numpy()
        return candidates[torch.from_numpy(heaviest(np.where(np.isnan(scores), np.inf, scores), self._m))]

    def candidates(self, t: int) -> int:
        """d, the number of candidates in round t."""
        return self._d

    def scores(self, clients: Tensor, t: int) -> Tensor:
        """F_k(w), over all samples of each candidate."""
        known = self._fed.clients
        self._cost = (len(clients), int(known.sizes[clients].sum()) if known.sampled else len(clients))
        return self._fed.engine.loss(self._fed.w, clients)

    def record(self) -> dict[str, float]:
        """What the choice cost."""
        return {"loss_evaluations": self._cost[0], "loss_samples": self._cost[1]}


@dataclass
class BatchPowerOfChoice(PowerOfChoice):
    """Candidates are scored on one mini-batch of their own samples (cpow-d)."""

    batch_size: int | None = None

    def start(self, fed: Federation) -> None:
        """Note the batch size of every client."""
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
    """Candidates are scored by the mean loss over their steps when they last trained; ∞ before that (rpow-d)."""

    def start(self, fed: Federation) -> None:
        """No client has reported a loss."""
        super().start(fed)
        self.reported = torch.full((fed.n,), torch.inf, dtype=torch.float64)

    def scores(self, clients: Tensor, t: int) -> Tensor:
        """The losses that the candidates reported last."""
        return self.reported[clients]

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Note the losses."""
        self.reported[work.clients] = out.loss.to(self.reported)
        return v


@dataclass
class ShrinkingPowerOfChoice(PowerOfChoice):
    """d falls geometrically from its first value to m, which it reaches after the share `until` of the run."""

    until: float = 0.5

    def start(self, fed: Federation) -> None:
        """Refuse a run without a number of rounds, and an `until` outside (0, 1]."""
        if fed.rounds is None:
            raise ArnoError("adapowd without a number of rounds", "d shrinks over the run", "give rounds=")
        if not 0 < self.until <= 1:
            raise ArnoError(f"select.until = {self.until:g}", "it must be above 0 and at most 1", "try select.until=1")
        super().start(fed)
        d = candidates_size(fed.n if self.d is None else self.d, self._m, fed.n)
        self._ds = shrunk(d, self._m, fed.rounds, self.until)

    def candidates(self, t: int) -> int:
        """The d of round t."""
        return int(self._ds[min(t, len(self._ds) - 1)])

    def record(self) -> dict[str, float]:
        """What the choice cost, and the number of candidates."""
        return super().record() | {"candidates": self.candidates(self._fed.t)}
