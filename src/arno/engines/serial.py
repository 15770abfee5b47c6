"""The reference engine: one client after another, in plain sight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..core.local import Learner, Problem, train
from ..core.work import Job, Mat, Result, Vec, Work
from ..errors import ArnoError
from ..kernels.allocator import keep_memory
from . import engines
from . import pieces as schedule


@engines.register("serial", equality="reference")
def serial(problem: Problem, *, threads: int = 1) -> Serial:
    """One client after another; with one thread (the default) other engines reproduce its bits.

    threads: torch's threads inside one client.
    """
    if threads < 1:
        raise ArnoError(f"engine.threads = {threads}", "it must be at least 1", "try engine.threads=1")
    torch.set_num_threads(threads)
    keep_memory()
    return Serial(problem)


class Serial:
    """Trains rows in order; a learner is made once per network shape and kept.

    together: whether a row's bits depend on those that train with it.
    """

    name = "serial"
    together = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._learners: dict[Any, Learner] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train block after block."""
        for work in works:
            yield work, self.block(work, work.start.new_empty(work.start.shape))

    def block(self, work: Work, delta: Mat) -> Result:
        """Train a block and leave the rows' updates in `delta`."""
        loss, seconds, extra = [], [], []
        for j, job in enumerate(work.jobs()):
            began = perf_counter()
            mean, more = self.client(job, delta[j])
            loss.append(mean)
            extra.append(more)
            seconds.append(perf_counter() - began)
        return Result(delta, torch.tensor(loss), torch.tensor(seconds), tuple(extra) if work.probe else ())

    @staticmethod
    def pieces(problem: Problem, work: Work, workers: int) -> list[Tensor]:
        """Rows that a worker takes at a time."""
        return schedule.pieces(work.steps, workers)

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """Scores of models on a split."""
        return [self.problem.evaluate(w, split) for w in models]

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on each client's own data."""
        return self.problem.losses(w, clients)

    def close(self) -> None:
        """Nothing to give back."""

    def report(self, w: Vec, clients: bool = False) -> dict[str, float]:
        """The scores of a round's record."""
        return self.problem.report(w, clients)

    def client(self, job: Job, delta: Vec) -> tuple[float, dict[str, Tensor]]:
        """Train one client; an exception says which one it was."""
        try:
            return train(self._learner(job), job, delta)
        except ArnoError:
            raise
        except Exception as error:
            error.add_note(f"while training client {job.client} in round {job.round + 1}")
            raise

    def _learner(self, job: Job) -> Learner:
        window = job.window if job.window is not None and job.window.extract else None
        shape = None if window is None else window.units
        if shape not in self._learners:
            self._learners[shape] = self.problem.learner(window)
        return self._learners[shape]
