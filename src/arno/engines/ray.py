"""Trains clients on a Ray cluster: persistent actors with one core and one thread each, bit for bit equal to `serial`.

The problem is put into the object store once; each node fetches it once, and its actors read the data in place. A
message carries some rows of a block. An actor returns the losses at once. The updates stay on its node until their
block is the next in order. If an actor or a node is lost, or a client takes too long, its rows are trained again on
another actor.

With `reduce=worker`, each worker trains a share of the cohort and returns one weighted sum. The clients of small
networks are then trained together (see `batched`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ..core.problem import Problem
from ..core.work import Result, SumResult, Vec, Work
from ..errors import ArnoError
from ..kernels.glibc_memory import keep_memory
from . import engines
from .actors import Ray
from .packing import pack
from .pool import Pool
from .ray_transport import RayActors, Share, get, put
from .remote_table import WorkerTable
from .timing import TIMEOUT, checked
from .transport import Lost, Request


@engines.register("ray")
def ray_engine(
    problem: Problem,
    *,
    address: str | None = None,
    workers: int = 0,
    reduce: Literal["server", "worker"] = "server",
    timeout: float = TIMEOUT,
) -> RayEngine:
    """Clients in parallel on the cores of a Ray cluster.

    address: of the cluster: auto, HOST:PORT, ray://HOST:PORT; null starts one on this machine.
    workers: how many actors, one core each; 0: one per core of the cluster.
    reduce: where the clients' updates are added up; worker: one sum per worker comes back, equal to rounding.
    timeout: seconds that a worker may take for a piece of work before it is replaced; 0: no limit.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    checked(timeout)
    if problem.device.type != "cpu":
        raise ArnoError(f"engine=ray on {problem.device}", "its workers train on the CPU", "use device=cpu")
    torch.set_num_threads(1)  # the sum on the server rounds differently with more threads
    keep_memory()
    transport = RayActors(problem, Ray(address, workers), workers)
    return RayEngine(problem, transport, timeout, sums=reduce == "worker")


class RayEngine(Pool):
    """A pool of Ray actors.

    Workers can add up updates, and tables with a row per client can be in the cluster's memory.
    """

    def __init__(self, problem: Problem, transport: RayActors, timeout: float = TIMEOUT, sums: bool = False) -> None:
        super().__init__(problem, transport, timeout)
        self._cluster, self._count, self.sums = transport.cluster, transport.count, sums
        self.name = f"ray ({self._count} workers)"
        if sums:
            self.equality = f"as serial to rounding, by {self._count} workers"
            self.name = f"ray ({self._count} workers, reduce=worker: {self.equality})"

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Train blocks, as rows or as sums."""
        return self._summed(works) if self.sums else self.rows(works)

    def table(self, n: int, seen: int, like: Vec) -> WorkerTable:
        """A row per client in the memory of the cluster (`state=workers`); an error if the table cannot fit."""
        size, room = seen * like.numel() * like.element_size(), self._cluster.memory
        if size > room:
            need = f"a table of up to {seen:,} clients × {like.numel():,} parameters takes {size / 2**30:,.1f} GiB"
            raise ArnoError(need, f"the cluster has {room / 2**30:,.1f} GiB", "use state=disk, or a smaller model")
        return WorkerTable(n, like, self._count, lambda: self.timing.limit(self.caller.stopping))

    def keep_logs(self, folder: Path) -> None:
        """Link Ray's logs into a folder; at the end, the logs of a local Ray are copied there."""
        self._cluster.keep_logs(folder)

    def _summed(self, blocks: Iterable[Work]) -> Iterator[tuple[Work, SumResult]]:
        """Train all blocks of a round; each worker returns one sum.

        The rows in a sum depend only on the cohort and the number of workers.
        """
        if not (works := list(blocks)):
            return
        start, parts = put(works[0].start[0]), list[Share]()
        for share in shares(works, self._count):
            parts.append(Share(share, [pack(works[b], rows, shared=True) for b, rows in share.items()], start))
        self._run(parts)
        total = works[0].start.new_zeros(works[0].start.shape[1])
        columns = [torch.zeros(3, len(work)) for work in works]  # loss, seconds, norm of the delta
        failed = [dict[int, str]() for _ in works]
        for part in parts:
            total.numpy()[:] += self._total(part)
            for (b, rows), (column, wrong) in zip(part.rows.items(), part.answer, strict=True):
                columns[b].numpy()[:, rows] = column
                failed[b] |= {rows[j]: why for j, why in wrong.items()}
        for b, (work, (loss, seconds, norm)) in enumerate(zip(works, columns, strict=True)):
            mine = total if b == len(works) - 1 else torch.zeros_like(total)
            yield work, SumResult(mine, loss, seconds, norm, failed[b])

    def _total(self, share: Share) -> Any:
        """The sum of a share. If the sum was lost with its node, the share is trained again."""
        while True:
            total, why = get(share.total)
            if not why:
                return total
            todo = deque[Request]()
            self._again([Lost(share, True, why)], todo)
            self._run(todo)


def shares(works: Sequence[Work], workers: int) -> list[dict[int, list[int]]]:
    """Divide a cohort among workers. A share holds the rows of one worker by the number of their block.

    The clients are assigned in decreasing order of their steps, each one to the worker with the fewest steps so far.
    """
    rows = [(steps, b, j) for b, work in enumerate(works) for j, steps in enumerate(work.steps.tolist())]
    rows.sort(key=lambda row: -row[0])
    load, given = [0] * workers, [list[tuple[int, int]]() for _ in range(workers)]
    for steps, b, j in rows:
        least = load.index(min(load))
        load[least] += steps
        given[least].append((b, j))
    found = []
    for mine in filter(None, given):
        share: dict[int, list[int]] = {}
        for b, j in sorted(mine):
            share.setdefault(b, []).append(j)
        found.append(share)
    return found
