"""An estimate of the seconds of a round, from a few steps of local training and from the server's work for a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.local_rules import train
from ..core.problem import Learner, Problem
from ..core.serial import Serial
from ..core.work import Job, Mat, Probe, Result, SubModel, Work
from ..engines.batched import Batched, groups

#: The largest number of steps for which a client is timed, and the largest number of seconds for all clients.
STEPS, SECONDS = 8, 1.0


def first_work(fed: Federation) -> Work:
    """The first block of the first round. If a method has an additional round 0: a block without its changes."""
    ids: Any = range(fed.n)
    if fed.t < 0:
        return next(fed.plain_blocks(range(min(fed.cohort, 128)), 0))
    for part in fed.parts:
        ids = part.select(ids, fed.t)
    for part in fed.parts:
        part.begin(fed.t)
    return next(fed.blocks(ids, fed.t))


class Few:
    """A learner that yields at most `most` batches per client."""

    def __init__(self, learner: Learner, most: int = STEPS) -> None:
        self.learner, self.steps, self.most = learner, 0, most
        self.w, self.p, self.g, self.layout = learner.w, learner.p, learner.g, learner.layout
        self.gradient, self.curvature = learner.gradient, learner.curvature
        self.size, self.autograd = learner.size, learner.autograd

    def batches(self, job: Job) -> Iterator[Any]:
        """The first batches of the client."""
        for batch in islice(self.learner.batches(job), self.most):
            self.steps += 1
            yield batch


def of_whole(probe: Probe | None) -> Probe | None:
    """The probe, changed so that it receives the learner inside a `Few`."""
    return None if probe is None else lambda few, job: probe(few.learner, job)


class Brief(Serial):
    """An engine that trains only the first block of a round, one step per client.

    began: when training began. spent: the seconds of training. clients: the number of clients in the block.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.began, self.spent, self.clients = 0.0, 0.0, 0

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train only the first block."""
        self.began = self.began or perf_counter()
        for work in islice(works, 1):
            began = perf_counter()
            out = self.block(replace(work, probe=of_whole(work.probe)), work.start.new_empty(work.start.shape))
            self.spent, self.clients = self.spent + perf_counter() - began, max(self.clients, len(work))
            yield work, out

    def new_learner(self, window: SubModel | None) -> Learner:
        """A learner that makes one step."""
        return Few(super().new_learner(window), 1)


def serving(fed: Federation, cohort: int) -> float:
    """Seconds per round for the work of the server (selection, tables, sums), from rounds with one block of clients.

    The federation changes and must not be used afterwards.
    """
    if fed.t < 0:  # an additional round 0
        return 0.0
    kept, seconds = fed.engine, 0.0
    try:
        for _ in range(2):  # the first round also allocates memory; the second one counts
            brief = fed.engine = Brief(fed.problem)
            began = perf_counter()
            fed.round()
            ended = perf_counter()
            if brief.clients:
                first = brief.began - began
                seconds = first + (ended - brief.began - brief.spent) * cohort / brief.clients
    except Exception:  # a part that needs the whole cohort cannot be timed in this way
        return seconds
    finally:
        fed.engine = kept
    return seconds


class Enough(Exception):
    """Ends the timing of `tested`."""


def own_tests(fed: Federation) -> float:
    """Seconds to score the global model and the personal models on the clients' own test samples."""
    if not fed.problem.tests_clients:
        return 0.0
    personal = [fed.personal] if any("personal" in part.roles for part in fed.parts) else []
    every = [lambda clients: fed.w.expand(len(clients), -1), *personal]
    return sum(tested(fed, models) for models in every)


def tested(fed: Federation, models: Callable[[Tensor], Mat]) -> float:
    """Seconds to score models on the clients' own test samples, measured with some clients."""
    calls: list[tuple[float, int]] = []

    def watched(clients: Tensor) -> Mat:
        calls.append((perf_counter(), len(clients)))
        if len(calls) > 3:
            raise Enough
        return models(clients)

    try:
        fed.problem.own_tallies(watched)
    except Enough:
        return (calls[-1][0] - calls[1][0]) * fed.n / sum(count for _, count in calls[1:-1])
    return perf_counter() - calls[0][0] if calls else 0.0


def single_step(fed: Federation, work: Work) -> float:
    """Seconds per step of one client, with all changes that the method makes; a probe runs once per client."""
    learners: dict[Any, Few] = {}
    spent, steps, probes, ends = 0.0, 0.0, 0.0, perf_counter() + SECONDS
    for turn, (job, whole) in enumerate(zip(work.jobs(), work.steps.tolist(), strict=True)):
        window = job.window if job.window is not None and job.window.extract else None
        shape = None if window is None else window.units
        probe, job = job.probe, replace(job, probe=None)
        if shape not in learners:
            learners[shape] = Few(fed.problem.learner(window))
            train(learners[shape], job, torch.empty_like(fed.w))  # the first steps prepare the kernels
        seconds = clock(lambda job=job, few=learners[shape]: train(few, job, torch.empty_like(fed.w)))  # type: ignore[misc]
        spent, steps = spent + seconds, steps + max(1, min(STEPS, whole))
        if probe is not None:
            probes += clock(lambda job=job, few=learners[shape], probe=probe: probe(few.learner, job)) / max(1, whole)  # type: ignore[misc]
        if turn and perf_counter() > ends:
            break
    return spent / steps + probes / (turn + 1)


def batched_step(fed: Federation, work: Work) -> float:
    """Seconds per step of one client if groups of clients train together, measured in one epoch of a group."""
    rows = groups(fed.problem, work)[0].cpu()
    some = work.rows(rows)
    epochs = torch.ones_like(some.epochs)
    some = replace(some, epochs=epochs, steps=fed.clients.steps(some.clients, epochs, some.batch_size).to(some.steps))
    engine = Batched(fed.problem)
    seconds = [clock(lambda: engine.block(some, torch.empty_like(some.start))) for _ in range(2)]
    return seconds[-1] / int(some.steps.sum())


def scoring(fed: Federation) -> float:
    """Seconds to score a model on all splits, measured on one piece of each split."""
    seconds = 0.0
    for split in fed.problem.splits:
        pieces = fed.problem.pieces(split)
        if pieces:
            fed.problem.tally(fed.w, split, *pieces[0])
            seconds += len(pieces) * clock(lambda split=split, at=pieces[0]: fed.problem.tally(fed.w, split, *at))  # type: ignore[misc]
    return seconds


def clock(job: Callable[[], object]) -> float:
    """The seconds of a call."""
    began = perf_counter()
    job()
    return perf_counter() - began
