"""The reference engine: one client after another, in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from math import nan
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..errors import ArnoError, ClientError, StoppedAtOnce, described
from .engine import Engine
from .local_rules import train
from .problem import Learner, Problem
from .resources import exhausted
from .work import Job, Mat, Result, SubModel, Vec, Work

#: How many times the training of a client is tried with `on_client_error=retry`.
TRIES = 3


class Serial(Engine):
    """Trains the rows of a block one after another. It makes one learner per shape of the network and keeps it."""

    name = "serial"
    equality = "reference"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._learners: dict[Any, Learner] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train one block after another."""
        for work in works:
            yield work, self.block(work, work.start.new_empty(work.start.shape))

    def block(self, work: Work, delta: Mat) -> Result:
        """Train a block and write the updates of its rows into `delta`."""
        loss, seconds, extra, failed = [], [], [], {}
        for j, job in enumerate(work.jobs()):
            began = perf_counter()
            try:
                mean, more = self.client(job, delta[j], TRIES if work.on_error == "retry" else 1)
            except ArnoError as error:
                if work.on_error != "drop":
                    raise
                mean, more, failed[j] = nan, {}, str(error)
                delta[j] = nan
            loss.append(mean)
            extra.append(more)
            seconds.append(perf_counter() - began)
        answers = tuple(extra) if work.answers else ()
        return Result(delta, torch.tensor(loss), torch.tensor(seconds), answers, failed=failed)

    def client(self, job: Job, delta: Vec, tries: int = 1) -> tuple[float, dict[str, Tensor]]:
        """Train one client; an error names the client and the line of the user's own code."""
        for left in reversed(range(tries)):
            try:
                return train(self._learner(job), job, delta)
            except BaseException as error:
                self._learners.clear()  # the error may have left a learner in a wrong state
                if not of_the_client(error) or (isinstance(error, ArnoError) and not left):
                    raise
                if not left:
                    raise client_error(job, error, tries) from error
        raise AssertionError("at least one try")

    def _learner(self, job: Job) -> Learner:
        window = job.window if job.window is not None and job.window.extract else None
        shape = None if window is None else window.units
        if shape not in self._learners:
            self._learners[shape] = self.new_learner(window)
        return self._learners[shape]

    def new_learner(self, window: SubModel | None) -> Learner:
        """A learner for the whole network, or for a window of it."""
        return self.problem.learner(window)


def of_the_client(error: BaseException) -> bool:
    """Whether the code of the client raised the exception; SystemExit counts, too.

    A KeyboardInterrupt is the user's Ctrl-C only in the main thread with Python's default handler of SIGINT: a run has
    its own handler, and workers ignore Ctrl-C. Any other KeyboardInterrupt is an error of the client. Missing memory is
    not an error of the client.
    """
    if isinstance(error, KeyboardInterrupt):
        main = threading.current_thread() is threading.main_thread()
        ctrl_c = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return not (isinstance(error, StoppedAtOnce) or ctrl_c)
    return isinstance(error, Exception | SystemExit) and exhausted(error) is None


def client_error(job: Job, error: BaseException, tries: int) -> ClientError:
    """The error that names the client whose training failed."""
    times = f", {tries} times" if tries > 1 else ""
    remedy = "correct that code, or continue without the client: on_client_error=drop"
    return ClientError(f"client {job.client} in round {job.round + 1}", described(error) + times, remedy)
