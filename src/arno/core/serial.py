"""The reference engine: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..errors import ArnoError
from .contracts import Engine, Learner, Problem
from .steps import train
from .work import Job, Mat, Result, Vec, Work


class Serial(Engine):
    """Trains rows in order; a learner is made once per network shape and kept."""

    name = "serial"
    equality = "reference"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._learners: dict[Any, Learner] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train block after block."""
        for work in works:
            yield work, self.block(work, work.start.new_empty(work.start.shape))

    def block(self, work: Work, delta: Mat) -> Result:
        """Train a block and write the rows' updates into `delta`."""
        loss, seconds, extra = [], [], []
        for j, job in enumerate(work.jobs()):
            began = perf_counter()
            mean, more = self.client(job, delta[j])
            loss.append(mean)
            extra.append(more)
            seconds.append(perf_counter() - began)
        return Result(delta, torch.tensor(loss), torch.tensor(seconds), tuple(extra) if work.answers else ())

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
