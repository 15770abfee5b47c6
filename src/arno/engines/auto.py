"""Chooses the engine: `batched` for many small models, `processes` for other networks, otherwise `serial`.

The choice depends only on the problem, the number of cores and the first block of a round. So the same run makes the
same choice again:

    a small network (see `kernels/choose_kernel.py`), at least 4 clients, nothing that `batched` refuses: batched
    several clients of any other network: processes
    a problem without a network (quadratics): serial, because sending a row takes longer than training it
    one client at a time (a sequential method, or a network of more than 2²³ numbers): serial, on all cores unless the
    network is small

With one core, and on a GPU, `serial` replaces `processes`. Small networks are computed with one thread: two
threads that wait for each other in every step are slower as soon as another process runs on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from ..core.engine import Caller, Engine
from ..core.federation import BLOCK
from ..core.problem import Problem
from ..core.serial import Serial
from ..core.work import Result, SumResult, Vec, Work
from ..errors import ArnoError
from ..kernels.glibc_memory import keep_memory
from . import engines
from .batched import Batched, unsupported
from .processes import processes
from .timing import TIMEOUT, checked

#: `batched` is chosen from this many clients on.
TOGETHER = 4


@engines.register("auto")
def auto(problem: Problem, *, cores: int = 0, timeout: float = TIMEOUT) -> Auto:
    """Chooses batched, processes or serial, and reports the choice.

    cores: how many to use; 0: all. Part of the run: training one client on several cores rounds differently.
    timeout: seconds that a worker process may take for a piece of work before it is replaced; 0: no limit.
    """
    if cores < 0:
        raise ArnoError(f"engine.cores = {cores}", "it must not be negative", "use 0 for all cores")
    keep_memory()
    return Auto(problem, cores or os.cpu_count() or 1, timeout)


class Auto(Engine):
    """Chooses an engine in every round."""

    equality = "as serial to rounding"

    def __init__(self, problem: Problem, cores: int, timeout: float = TIMEOUT) -> None:
        self.problem, self.cores, self.timeout = problem, cores, checked(timeout)
        self._engines: dict[str, Engine] = {}
        self._used: dict[str, None] = {}

    @property
    def name(self) -> str:  # type: ignore[override]
        """`auto`, with the engines that were used so far."""
        return f"auto ({', '.join(self._used)})" if self._used else "auto"

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Choose an engine by the first block, and train with it."""
        works = iter(works)
        first = next(works, None)
        if first is None:
            return
        kind = choose(self.problem, first, self.cores)
        self._used[kind] = None
        alone = kind == "serial" and len(first) == 1 and not self.problem.small
        torch.set_num_threads(self.cores if alone else 1)
        yield from self._engine(kind).train(chain([first], works))

    def workers_for(self, work: Work) -> tuple[str, int]:
        """The engine of a round whose first block is `work`, and the number of its worker processes."""
        kind = choose(self.problem, work, self.cores)
        return ("processes", self.cores) if kind == "processes" else self._engine(kind).workers_for(work)

    def scorers(self) -> int:
        """How many workers score models: all for a network that is neither small nor large, otherwise none."""
        parallel = not self.problem.small and self.cores > 1 and self.problem.device.type == "cpu"
        return self.cores if parallel and not large(self.problem) else 0

    def tally(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a split."""
        return self._scorer().tally(w, split)

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """The scores of models on a split."""
        return self._scorer().score(models, split)

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on the data of each client."""
        return self._scorer().loss(w, clients)

    def batch_loss(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of `loss` from one mini-batch of each client, drawn for round t."""
        return self._scorer().batch_loss(w, clients, batch_size, seed, t)

    def attach(self, caller: Caller) -> None:
        """Set the run that uses this engine, also in the engines that were used so far."""
        self.caller = caller
        for engine in self._engines.values():
            engine.attach(caller)

    def close(self) -> None:
        """Close all engines that were used."""
        for engine in self._engines.values():
            engine.close()

    def _scorer(self) -> Engine:
        """The engine that scores: workers, or this process.

        Small networks are scored in this process, because messages to workers would take longer. A large network is
        scored in this process on all cores, as it is trained: workers would only take memory.
        """
        torch.set_num_threads(self.cores if large(self.problem) else 1)
        return self._engine("processes" if self.scorers() else "serial")

    def _engine(self, kind: str) -> Engine:
        if kind not in self._engines:
            made: Engine
            if kind == "processes":
                made = processes(self.problem, workers=self.cores, timeout=self.timeout)
            elif kind == "batched":
                made = Batched(self.problem, self.cores, self.timeout, self.cores)
            else:
                made = Serial(self.problem)
            made.attach(self.caller)
            self._engines[kind] = made
        return self._engines[kind]


def large(problem: Problem) -> bool:
    """Whether a block of work holds one client only."""
    return 2 * problem.layout.size > BLOCK


def choose(problem: Problem, work: Work, cores: int) -> str:
    """The engine for a round whose first block is `work`."""
    if problem.kernel and problem.small and len(work) >= TOGETHER and not unsupported(problem, work):
        return "batched"
    if len(work) > 1 and cores > 1 and problem.device.type == "cpu" and problem.kernel:
        return "processes"
    return "serial"
