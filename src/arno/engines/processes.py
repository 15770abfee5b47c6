"""Clients in parallel: persistent worker processes, one torch thread each, bit for bit what the serial engine computes.

Parallelism lies over clients, not inside them. Workers hold the data once (inherited by `fork`, in shared memory with
`spawn`). Vectors cross in shared memory: the parent writes start and drift rows into a slab, a worker writes its delta
beside them. Clients with most steps go first; whoever is free takes the next; blocks come back in their order.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.local import Problem
from ..core.work import Job, Result, SubModel, Vec, Work
from ..errors import ArnoError
from ..registry import load_target, loaded_targets
from . import engines
from .malloc import keep_memory
from .serial import Serial

#: Blocks in flight: workers begin the next one while the last clients of this one train.
AHEAD = 2
#: A client that takes its worker down this often is given up.
TRIES = 3


@engines.register("processes", equality="bit for bit as serial")
def processes(problem: Problem, *, workers: int = 0, start: Literal["auto", "fork", "spawn"] = "auto") -> Processes:
    """Clients in parallel on the cores of this machine.

    workers: how many processes; 0: one per core.
    start: how they are started; auto: fork on Linux, spawn elsewhere.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    if problem.device.type != "cpu":
        raise ArnoError(f"engine=processes on {problem.device}", "its workers train on the CPU", "use engine=serial")
    method = ("fork" if sys.platform == "linux" else "spawn") if start == "auto" else start
    torch.set_num_threads(1)  # how the server adds up is part of the bits
    return Processes(problem, workers or os.cpu_count() or 1, method)


@dataclass
class Row:
    """One client of a block on its way: its job without vectors, and the slab's rows that hold them."""

    block: int
    index: int
    job: Job
    start: int
    drift: int | None
    given: dict[str, int]
    out: int
    tries: int = 0


@dataclass
class Block:
    """A block in flight."""

    work: Work
    slab: int
    waiting: int
    loss: list[float]
    seconds: list[float]
    extra: list[dict[str, Tensor]]


@dataclass
class Worker:
    """A process, the parent's end of its pipe, what it is busy with and which windows it knows."""

    process: Any
    pipe: Connection
    busy: list[Row] = field(default_factory=list)
    windows: set[int] = field(default_factory=set)
    slabs: set[int] = field(default_factory=set)


class Processes:
    """The parent's side."""

    name = "processes"

    def __init__(self, problem: Problem, workers: int, method: str) -> None:
        self.problem, self._count, self._method = problem, workers, method
        self._context = multiprocessing.get_context(method)
        self._workers: list[Worker] = []
        self._slabs: list[Tensor | None] = [None] * AHEAD
        self._windows: dict[int, Tensor] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train blocks with at most `AHEAD` in flight; yields them in order."""
        self._start()
        source, flight = iter(works), deque[Block]()
        todo: deque[Row] = deque()
        number = 0
        try:
            while True:
                while len(flight) < AHEAD and (work := next(source, None)) is not None:
                    block, rows = self._open(work, number)
                    flight.append(block)
                    todo.extend(rows)
                    number += 1
                if not flight:
                    return
                first = number - len(flight)
                while flight[0].waiting:
                    self._feed(todo)
                    for row, loss, seconds, extra in self._collect(todo):
                        block = flight[row.block - first]
                        block.loss[row.index], block.seconds[row.index], block.extra[row.index] = loss, seconds, extra
                        block.waiting -= 1
                yield self._finished(flight.popleft())
        finally:
            if any(worker.busy for worker in self._workers):  # left in the middle: nobody waits for those results
                self.close()

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """Scores of models on a split: a model per worker, or few models in pieces."""
        models = list(models)
        if len(models) < self._count:
            return [self.problem.evaluate(w, split, self._tally) for w in models]
        return self._map("evaluate", [(w, split) for w in models])

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on each client's own data, the clients dealt to the workers."""
        pieces = [piece for piece in clients.chunk(self._count) if len(piece)]
        return torch.cat(self._map("losses", [(w, piece) for piece in pieces]))

    def report(self, w: Vec, clients: bool = False) -> dict[str, float]:
        """The scores of a round's record, the samples dealt to the workers."""
        return self.problem.report(w, clients, self._tally)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            with suppress(OSError):
                worker.pipe.send(None)
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(0.2 if worker.busy else 5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _tally(self, w: Vec, split: str, pieces: Sequence[tuple[int, int]]) -> list[Any]:
        return self._map("tally", [(w, split, *piece) for piece in pieces])

    def _start(self) -> None:
        while len(self._workers) < self._count:
            self._workers.append(self._hire())

    def _hire(self) -> Worker:
        mine, theirs = self._context.Pipe()
        forked = self._method == "fork"
        inherited = [mine, *(worker.pipe for worker in self._workers)] if forked else []
        arguments = (self.problem if forked else Package(self.problem), theirs, inherited)
        process = self._context.Process(target=serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        return Worker(process, mine)

    def _open(self, work: Work, number: int) -> tuple[Block, list[Row]]:
        """Put a block's vectors into its slab and make its rows, the longest first."""
        n, same = len(work), work.start.stride(0) == 0
        starts = work.start[:1] if same else work.start
        inputs = [starts, *([] if work.drift is None else [work.drift]), *work.given.values()]
        place = number % AHEAD
        slab = self._slab(place, n + sum(map(len, inputs)), work.start.shape[1], work.start.dtype)
        at, firsts = n, []
        for vectors in inputs:
            slab[at : at + len(vectors)] = vectors
            firsts.append(at)
            at += len(vectors)
        drift = firsts[1] if work.drift is not None else None
        given = dict(zip(work.given, firsts[1 if drift is None else 2 :], strict=True))
        rows = []
        for j, job in enumerate(replace(work, drift=None, given={}).jobs()):
            job = replace(job, start=EMPTY)
            start = firsts[0] if same else firsts[0] + j
            rows.append(
                Row(
                    number, j, job, start, None if drift is None else drift + j, {k: a + j for k, a in given.items()}, j
                )
            )
        rows.sort(key=lambda row: -int(work.steps[row.index]))
        return Block(work, place, n, [0.0] * n, [0.0] * n, [{}] * n), rows

    def _slab(self, place: int, rows: int, size: int, dtype: torch.dtype) -> Tensor:
        """Shared memory for a block; made anew only when it is too small."""
        slab = self._slabs[place]
        if slab is None or slab.shape[1] != size or len(slab) < rows or slab.dtype != dtype:
            slab = torch.zeros(rows, size, dtype=dtype).share_memory_()
            self._slabs[place] = slab
            for worker in self._workers:
                worker.slabs.discard(place)
        return slab

    def _feed(self, todo: deque[Row]) -> None:
        """Give every idle worker its next clients: few at a time, so that nobody ends late."""
        for worker in self._workers:
            if todo and not worker.busy:
                block = todo[0].block
                share = max(1, sum(row.block == block for row in todo) // (4 * self._count))
                batch = [todo.popleft()]
                while len(batch) < share and todo and todo[0].block == block:
                    batch.append(todo.popleft())
                self._send(worker, batch)

    def _send(self, worker: Worker, rows: list[Row]) -> None:
        worker.busy = rows
        place = rows[0].block % AHEAD
        windows = {}
        for row in rows:
            window = row.job.window
            if window is not None and self._key(window) not in worker.windows:
                windows[self._key(window)] = window.index.numpy()
        worker.windows |= windows.keys()
        light = []
        for row in rows:
            window = row.job.window
            key = None if window is None else self._key(window)
            job = row.job if window is None else replace(row.job, window=replace(window, index=EMPTY))
            light.append((job, key, row.start, row.drift, row.given, row.out))
        with suppress(OSError):  # it died: `_collect` sees to it
            if place not in worker.slabs:
                worker.pipe.send(("slab", place, self._slabs[place]))
                worker.slabs.add(place)
            worker.pipe.send(("train", place, windows, light))

    def _key(self, window: SubModel) -> int:
        """A name for an index vector, so that it crosses once to each worker."""
        key = id(window.index)
        if self._windows.setdefault(key, window.index) is not window.index or len(self._windows) > 256:
            self._windows = {key: window.index}
            for worker in self._workers:
                worker.windows = set()
        return key

    def _collect(self, todo: deque[Row]) -> Iterator[tuple[Row, float, float, dict[str, Tensor]]]:
        """Wait for news; a dead worker is replaced and its clients go to the front of the queue."""
        busy = {worker.pipe: worker for worker in self._workers if worker.busy}
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker, todo)
                continue
            rows, worker.busy = worker.busy, []
            if isinstance(answer, Exception):
                raise answer
            for row, (loss, seconds, extra) in zip(rows, answer, strict=True):
                yield row, loss, seconds, {name: torch.from_numpy(array) for name, array in extra.items()}

    def _replace(self, worker: Worker, todo: deque[Row]) -> None:
        worker.process.join()
        for row in worker.busy:
            row.tries += 1
            if row.tries >= TRIES:
                raise ArnoError(
                    f"client {row.job.client} in round {row.job.round + 1}",
                    f"its worker died {TRIES} times (exit status {worker.process.exitcode})",
                    "is there enough memory? try engine.workers=1 or engine=serial",
                )
        todo.extendleft(reversed(worker.busy))
        worker.pipe.close()
        self._workers.remove(worker)
        self._workers.append(self._hire())

    def _finished(self, block: Block) -> tuple[Work, Result]:
        work, slab = block.work, self._slabs[block.slab]
        assert slab is not None
        delta = slab[: len(work)].clone()
        extra = tuple(block.extra) if work.probe else ()
        return work, Result(delta, torch.tensor(block.loss), torch.tensor(block.seconds), extra)

    def _map(self, what: str, calls: list[tuple[Any, ...]]) -> list[Any]:
        """Ask the problem `what` for each of the arguments, in the workers; answers in order."""
        self._start()
        answers: list[Any] = [None] * len(calls)
        todo, tries = deque(enumerate(calls)), 0
        busy: dict[Connection, tuple[Worker, int]] = {}
        while todo or busy:
            for worker in [w for w in self._workers if w.pipe not in busy]:
                if todo:
                    index, call = todo.popleft()
                    busy[worker.pipe] = worker, index
                    with suppress(OSError):  # it died: seen below
                        worker.pipe.send(("ask", what, [x.numpy() if isinstance(x, Tensor) else x for x in call]))
            for pipe in wait(list(busy)):
                worker, index = busy.pop(pipe)  # type: ignore[call-overload]
                try:
                    answers[index] = worker.pipe.recv()
                except (EOFError, OSError):
                    tries += 1
                    if tries >= TRIES:
                        raise ArnoError(
                            "a worker", f"died {TRIES} times while scoring", "is there enough memory?"
                        ) from None
                    self._replace(worker, deque())
                    todo.appendleft((index, calls[index]))
                    continue
                if isinstance(answers[index], Exception):
                    raise answers[index]
        return answers


EMPTY = torch.zeros(0)


class Package:
    """A problem on its way to a spawned worker: the user's own files are imported there first, tensors are shared."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (loaded_targets(), bytes(ForkingPickler.dumps(self.problem)))


def unpack(targets: list[str], problem: bytes) -> Problem:
    """The problem, in the worker; the bytes come from the parent through its own pipe, never from a file."""
    for target in targets:
        with suppress(ArnoError):  # a file that is gone by now, and that this problem may not need
            load_target(target)
    unpacked: Problem = pickle.loads(problem)
    return unpacked


def serve(problem: Problem, pipe: Connection, inherited: Sequence[Connection]) -> None:
    """The worker's side: train what comes until the parent says so, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    keep_memory()
    engine, parent = Serial(problem), os.getppid()
    slabs: dict[int, Tensor] = {}
    windows: dict[int, Tensor] = {}
    while True:
        while not pipe.poll(2.0):
            if os.getppid() != parent:
                return
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if message is None:
            return
        if message[0] == "slab":
            slabs[message[1]] = message[2]
            continue
        try:
            answer = (
                _train(engine, slabs, windows, *message[1:]) if message[0] == "train" else _ask(problem, *message[1:])
            )
        except Exception as error:
            answer = portable(error)
        try:
            pipe.send(answer)
        except OSError:
            return


def _train(
    engine: Serial,
    slabs: dict[int, Tensor],
    windows: dict[int, Tensor],
    place: int,
    fresh: dict[int, Any],
    rows: list[Any],
) -> list[tuple[float, float, dict[str, Any]]]:
    slab, answers = slabs[place], []
    windows |= {key: torch.from_numpy(index) for key, index in fresh.items()}
    for job, key, start, drift, given, out in rows:
        began = perf_counter()
        window = None if key is None else replace(job.window, index=windows[key])
        whole = replace(
            job,
            start=slab[start],
            drift=None if drift is None else slab[drift],
            given={name: slab[at] for name, at in given.items()},
            window=window,
        )
        slab[out], loss, extra = engine.client(whole)
        answers.append((loss, perf_counter() - began, {name: tensor.numpy() for name, tensor in extra.items()}))
    return answers


def _ask(problem: Problem, what: str, arguments: list[Any]) -> Any:
    import numpy as np

    return getattr(problem, what)(*(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments))


def portable(error: Exception) -> Exception:
    """The exception itself where it can cross to another process, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
