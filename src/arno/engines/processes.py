"""Trains clients in parallel processes on this machine, with one torch thread each; the bits are those of `serial`.

Workers share one copy of the data (`fork`: inherited; `spawn`: in shared memory). Models and other matrices are in
shared memory: the server writes start and drift rows into a slab, and a worker writes the updates into the same slab.
Messages on the pipes hold the other fields of the work and of the results.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import resource_sharer
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.problem import Problem
from ..core.serial import Serial
from ..core.work import Mat, Vec, Work
from ..errors import ArnoError
from . import engines
from .packing import pack
from .pool import Pool
from .process_worker import Package, serve
from .shared_memory import Slab, Slabs
from .timing import TIMEOUT
from .transport import Block, Lost, Piece, Question, Request, Transport

#: Seconds for sending a message. A worker that reads nothing for so long does not respond any more, and is ended.
SENDING = 20
#: The server keeps the index vectors of windows that workers have, up to this many numbers.
KNOWN = 2**23


@engines.register("processes")
def processes(
    problem: Problem,
    *,
    workers: int = 0,
    start: Literal["auto", "fork", "spawn"] = "auto",
    timeout: float = TIMEOUT,
) -> Pool:
    """Clients in parallel on the cores of this machine.

    workers: how many processes; 0: one per core.
    start: how they are started; auto: fork on Linux, spawn elsewhere.
    timeout: seconds that a worker may take for a piece of work before it is replaced; 0: no limit.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    if problem.device.type != "cpu":
        raise ArnoError(f"engine=processes on {problem.device}", "its workers train on the CPU", "use engine=serial")
    torch.set_num_threads(1)  # the sum on the server rounds differently with more threads
    return Pool(problem, Processes(problem, workers or os.cpu_count() or 1, start), timeout)


@dataclass(eq=False)
class WorkerProcess:
    """A worker process, the server's end of its pipe, and its queue.

    slabs, windows: the numbers of the slabs and the keys of the index vectors that were sent to it. up: whether it has
    reported that it is ready.
    """

    process: Any
    pipe: Connection
    queue: deque[Request] = field(default_factory=deque)
    slabs: set[int] = field(default_factory=set)
    windows: set[int] = field(default_factory=set)
    up: bool = False

    @property
    def load(self) -> tuple[int, int]:
        """The number of requests in its queue, and the number of steps in them."""
        return len(self.queue), sum(request.steps for request in self.queue)


@dataclass(eq=False)
class Vectors:
    """The vectors of a block in a slab: first the updates, then the vectors that the clients receive.

    light: the work with None in place of its vectors. where: for each matrix by name, its first row in the slab, and
    whether all its rows are equal; such a matrix is stored as one row.
    """

    slab: Slab
    light: Work
    where: dict[str, tuple[int, bool]]


class Processes(Transport[WorkerProcess]):
    """Worker processes, pipes and shared memory.

    start: how processes are started. kernel: the engine that trains rows in a worker.
    """

    name = "processes"
    remedy = "is there enough memory? try engine.workers=1 or engine=serial"

    def __init__(self, problem: Problem, count: int, start: str = "auto", kernel: type[Serial] = Serial) -> None:
        self.count, self._problem, self._kernel = count, problem, kernel
        self._method = ("fork" if sys.platform == "linux" else "spawn") if start == "auto" else start
        self._context = multiprocessing.get_context(self._method)
        self.workers: list[WorkerProcess] = []
        self.slabs = Slabs()
        self._open: dict[Block, Vectors] = {}
        self._windows: dict[int, Tensor] = {}

    def start(self) -> None:
        """Start the processes that are missing."""
        while len(self.workers) < self.count:
            self.workers.append(self._started())

    def room(self, depth: int) -> list[WorkerProcess]:
        """The workers with fewer than `depth` requests in their queues."""
        return [worker for worker in self.workers if len(worker.queue) < depth]

    @property
    def busy(self) -> bool:
        """Whether a request has no answer yet."""
        return any(worker.queue for worker in self.workers)

    def open(self, block: Block) -> None:
        """Write the vectors of a block into a slab."""
        work = block.work
        self._remember(work)
        matrices: dict[str, Mat] = {name: x for name, x in vars(work).items() if isinstance(x, Tensor) and x.ndim == 2}
        none: dict[str, Any] = dict.fromkeys(matrices)
        matrices |= {f"given.{name}": rows for name, rows in work.given.items()}
        same = {name: rows.stride(0) == 0 for name, rows in matrices.items()}
        stored = {name: rows[:1] if same[name] else rows for name, rows in matrices.items()}
        at, where = len(work), {}
        slab = self.slabs.take(at + sum(map(len, stored.values())), work.start.shape[1], work.start.dtype)
        for name, rows in stored.items():
            slab.rows[at : at + len(rows)] = rows
            where[name], at = (at, same[name]), at + len(rows)
        self._open[block] = Vectors(slab, replace(work, **none, given={}), where)

    def may_wait(self, piece: Piece) -> bool:
        """Whether the message is small: a message that fills the pipe would block both sides."""
        work = piece.block.work
        return work.windows is None and not work.terms and work.criterion is None and not work.answers

    def send(self, worker: WorkerProcess, request: Request) -> None:
        """Write a request into the pipe of a worker."""
        worker.queue.append(request)
        try:
            match request:
                case Piece(block=block, rows=rows):
                    self._send_rows(worker, self._open[block], rows)
                case Question(what=what, model=(slab, row), arguments=arguments):
                    self._send_slab(worker, slab)
                    worker.pipe.send(("ask", slab.number, what, row, *arguments))
        except BlockingIOError:  # the worker does not read its messages
            worker.process.kill()
        except OSError:  # the process has ended: `wait` reports it
            pass

    def wait(self, seconds: float) -> tuple[list[Request], list[Lost]]:
        """Wait for answers on the pipes. If a pipe ends, its process has ended."""
        answered, lost = list[Request](), list[Lost]()
        busy = {worker.pipe: worker for worker in self.workers if worker.queue}
        for pipe in wait(list(busy), seconds):
            worker = busy[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                lost += self._replace(worker)
                continue
            if not worker.up:  # its first message says that it is ready
                worker.up = True
                continue
            request = worker.queue.popleft()
            if isinstance(answer, Exception):
                raise answer
            request.answer = answer
            answered.append(request)
        return answered, lost

    def first(self) -> list[tuple[WorkerProcess, Request, bool]]:
        """The workers that are busy, with the request that each of them works on, and whether the worker is up."""
        return [(worker, worker.queue[0], worker.up) for worker in self.workers if worker.queue]

    def end(self, worker: WorkerProcess, why: str) -> list[Lost]:
        """Kill a process, even if it is suspended, start another one, and return its requests."""
        worker.process.kill()
        return self._replace(worker, why)

    def take(self, block: Block) -> Mat:
        """The updates of a complete block, in shared memory."""
        return self._open.pop(block).slab.give(len(block.work))

    def drop(self, block: Block) -> None:
        """Forget a block; its slab can be used again."""
        self._open.pop(block).slab.busy = False

    @contextmanager
    def share(self, models: Sequence[Vec]) -> Iterator[list[tuple[Slab, int]]]:
        """Write models into a slab; yield the slab and the row of each model."""
        slab = self.slabs.take(len(models), len(models[0]), models[0].dtype)
        try:
            for row, w in zip(slab.rows, models, strict=False):
                row.copy_(w)
            yield [(slab, i) for i in range(len(models))]
        finally:
            slab.busy = False

    def stop(self) -> None:
        """End the processes. Those that are busy are killed."""
        if any(
            worker.queue for worker in self.workers
        ):  # they are killed: none of them may be served a handle meanwhile
            resource_sharer.stop(timeout=5)
        for worker in self.workers:
            if worker.queue:
                worker.process.kill()
            with suppress(OSError):
                worker.pipe.send(None)
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join(5)
        self.workers = []

    def _started(self) -> WorkerProcess:
        ours, theirs = self._context.Pipe()
        forked = self._method == "fork"
        inherited = [ours, *(worker.pipe for worker in self.workers)] if forked else []
        arguments = (self._problem if forked else Package(self._problem), self._kernel, theirs, inherited)
        process = self._context.Process(target=serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        limit_sends(ours)
        return WorkerProcess(process, ours)

    def _replace(self, worker: WorkerProcess, why: str = "") -> list[Lost]:
        """Start a process in place of one that has ended, and return the requests of the latter."""
        worker.process.join(5)  # a process that waits for a lost network disk does not end even when it is killed
        worker.pipe.close()
        self.workers.remove(worker)
        self.workers.append(self._started())
        why = why or f"its worker died (exit status {worker.process.exitcode})"
        return [Lost(request, i == 0, why) for i, request in enumerate(worker.queue)]

    def _send_rows(self, worker: WorkerProcess, vectors: Vectors, rows: list[int]) -> None:
        packed, forget = pack(vectors.light, rows), not worker.windows
        if "windows" in packed:
            indices, windows = packed["windows"]
            packed["windows"] = {key: index for key, index in indices.items() if key not in worker.windows}, windows
            worker.windows |= indices.keys()
        self._send_slab(worker, vectors.slab)
        worker.pipe.send(("train", vectors.slab.number, rows, packed, vectors.where, forget))

    def _send_slab(self, worker: WorkerProcess, slab: Slab) -> None:
        """Send a slab to a worker that does not have it yet, with the numbers of the slabs that the worker may keep."""
        if slab.number not in worker.slabs:
            worker.slabs &= self.slabs.numbers
            worker.pipe.send(("slab", slab.number, slab.rows, worker.slabs))
            worker.slabs.add(slab.number)

    def _remember(self, work: Work) -> None:
        """Keep the index vectors that workers have, so that each vector is sent once.

        If there are too many, forget all.
        """
        new = {id(window.index): window.index for window in work.windows or ()}
        if sum(map(len, (self._windows | new).values())) > max(KNOWN, 2 * sum(map(len, new.values()))):
            self._windows = {}
            for worker in self.workers:
                worker.windows = set()
        self._windows |= new


def limit_sends(pipe: Connection) -> None:
    """Set a time limit for messages into a pipe that nobody reads, if the system has such limits."""
    if sys.platform != "win32":
        with socket.socket(fileno=os.dup(pipe.fileno())) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SENDING, 0))
