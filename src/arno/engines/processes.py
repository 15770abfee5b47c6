"""Clients in parallel: persistent worker processes, one torch thread each, bit for bit what the serial engine computes.

Parallelism lies over clients, not inside them. Workers hold the data once (inherited by `fork`, in shared memory with
`spawn`). Vectors cross in shared memory: the parent writes start and drift rows into a slab, a worker writes its delta
beside them. Clients with most steps go first; whoever is free takes the next; blocks come back in their order.

Workers train with the serial engine, or with another kernel: see `batched`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from time import perf_counter, sleep
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor

from ..core.contracts import Engine, Problem, added
from ..core.serial import Serial
from ..core.work import Mat, Result, Vec, Work
from ..errors import ArnoError
from ..kernels.allocator import keep_memory
from ..registry import load_target, loaded_targets
from . import engines
from .parcel import ask, pack, portable, span, unpack
from .pieces import pieces

#: A client that takes its worker down this often is given up.
TRIES = 3
#: Seconds that a worker looks for its next rows before it goes to sleep: a core that slept is slow to come back.
AWAKE = 0.005
#: Numbers in the index vectors (of windows) that a worker keeps from one block to the next.
KNOWN = 2**23


#: Cuts the rows of a block into the pieces that a worker takes at a time.
Cut = Callable[[Problem, Work, int], list[Tensor]]


def by_steps(problem: Problem, work: Work, workers: int) -> list[Tensor]:
    """Pieces of similar length in steps."""
    return pieces(work.steps, workers)


@engines.register("processes")
def processes(problem: Problem, *, workers: int = 0, start: Literal["auto", "fork", "spawn"] = "auto") -> Processes:
    """Clients in parallel on the cores of this machine.

    workers: how many processes; 0: one per core.
    start: how they are started; auto: fork on Linux, spawn elsewhere.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    if problem.device.type != "cpu":
        raise ArnoError(f"engine=processes on {problem.device}", "its workers train on the CPU", "use engine=serial")
    torch.set_num_threads(1)  # how the server adds up is part of the bits
    return Processes(problem, workers or os.cpu_count() or 1, start)


@dataclass(eq=False)
class Slab:
    """Shared memory for a block's vectors: deltas first, then what the clients are given."""

    number: int
    rows: Mat
    busy: bool = False
    held: Any = None  # a weak reference to what was handed out of it

    @property
    def free(self) -> bool:
        """Whether it may be written again: no block is in flight in it, and nobody holds rows of it."""
        return not self.busy and (self.held is None or self.held() is None)


@dataclass(eq=False)
class Block:
    """A block in flight: its work, the work without its vectors, and where in the slab these begin."""

    work: Work
    light: Work
    slab: Slab
    places: dict[str, int]
    waiting: int
    loss: Tensor
    seconds: Tensor
    extra: list[dict[str, Tensor]]


@dataclass(eq=False)
class Parcel:
    """Rows of a block that one worker takes at a time."""

    block: Block
    rows: list[int]
    tries: int = 0

    @property
    def light(self) -> bool:
        """Whether nothing but numbers crosses with them, there and back."""
        work = self.block.work
        return work.windows is None and not work.terms and work.probe is None


@dataclass(eq=False)
class Worker:
    """A process, the parent's end of its pipe, what it has to do, which slabs and windows it knows."""

    process: Any
    pipe: Connection
    queue: deque[Parcel] = field(default_factory=deque)
    slabs: set[int] = field(default_factory=set)
    windows: set[int] = field(default_factory=set)


class Processes(Engine):
    """The parent's side. The workers run the engine `kernel`; `cut` says which rows a worker takes at a time."""

    name = "processes"
    equality = "bit for bit as serial"

    def __init__(
        self, problem: Problem, workers: int, start: str = "auto", kernel: type[Serial] = Serial, cut: Cut | None = None
    ) -> None:
        self.problem, self._count, self._kernel = problem, workers, kernel
        self._cut = cut or by_steps
        self._method = ("fork" if sys.platform == "linux" else "spawn") if start == "auto" else start
        self._context = multiprocessing.get_context(self._method)
        self._workers: list[Worker] = []
        self._slabs: list[Slab] = []
        self._made = 0
        self._windows: dict[int, Tensor] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train blocks, enough of them in flight to keep everybody busy; yields them in order."""
        self._start()
        source, flight, todo = iter(works), deque[Block](), deque[Parcel]()
        try:
            while True:
                while len(flight) < 2 or sum(len(block.work) for block in flight) < 2 * self._count:
                    if (work := next(source, None)) is None:
                        break
                    flight.append(self._open(work))
                    cut = self._cut(self.problem, work, self._count)
                    todo.extend(Parcel(flight[-1], rows.tolist()) for rows in cut)
                if not flight:
                    return
                while flight[0].waiting:
                    self._feed(todo)
                    self._collect(todo)
                yield self._finished(flight.popleft())
        finally:
            if any(worker.queue for worker in self._workers):  # left in the middle: nobody waits for those results
                self.close()
            for block in flight:
                block.slab.busy = False

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """The scores of models on a split: a model per worker, or few models in pieces."""
        models = list(models)
        if len(models) < self._count:
            return super().score(models, split)
        found = self._map("total", models, [(i, split) for i in range(len(models))])
        return [self.problem.scores(torch.from_numpy(tally)) for tally in found]

    def tally(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a split, whose pieces the workers score."""
        found = self._map("tally", [w], [(0, split, *piece) for piece in self.problem.pieces(split)])
        return added(map(torch.from_numpy, found))

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on the data of each client; every worker takes some of the clients."""
        return self._losses("losses", w, clients)

    def batch_loss(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of it from one mini-batch of each client."""
        return self._losses("batch_losses", w, clients, batch_size, rest=(seed, t))

    def _losses(self, what: str, w: Vec, *columns: Tensor, rest: tuple[int, ...] = ()) -> Tensor:
        pieces = zip(*(column.chunk(self._count) for column in columns), strict=True)
        found = self._map(what, [w], [(0, *(column.numpy() for column in piece), *rest) for piece in pieces])
        return torch.cat([torch.from_numpy(losses) for losses in found])

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            with suppress(OSError):
                worker.pipe.send(None)
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(0.2 if worker.queue else 5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _start(self) -> None:
        while len(self._workers) < self._count:
            self._workers.append(self._hire())

    def _hire(self) -> Worker:
        mine, theirs = self._context.Pipe()
        forked = self._method == "fork"
        inherited = [mine, *(worker.pipe for worker in self._workers)] if forked else []
        arguments = (self.problem if forked else Package(self.problem), self._kernel, theirs, inherited)
        process = self._context.Process(target=serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        return Worker(process, mine)

    def _open(self, work: Work) -> Block:
        """Put a block's vectors into a slab."""
        self._remember(work)
        n, one = len(work), work.start.stride(0) == 0
        vectors = {"start": work.start[:1] if one else work.start}
        vectors |= {} if work.drift is None else {"drift": work.drift}
        vectors |= {f"given.{name}": rows for name, rows in work.given.items()}
        slab = self._slab(n + sum(map(len, vectors.values())), work.start.shape[1], work.start.dtype)
        at, places = n, {}
        for name, rows in vectors.items():
            slab.rows[at : at + len(rows)] = rows
            places[name], at = at, at + len(rows)
        light = replace(work, start=work.start[:, :0], drift=None, given={})
        return Block(work, light, slab, places, n, torch.zeros(n), torch.zeros(n), [{}] * n)

    def _slab(self, rows: int, size: int, dtype: torch.dtype) -> Slab:
        """Shared memory that nobody uses; made anew only when there is none that fits."""
        for slab in [slab for slab in self._slabs if slab.free]:
            if slab.rows.shape[1] == size and len(slab.rows) >= rows and slab.rows.dtype == dtype:
                break
            self._slabs.remove(slab)
        else:
            slab = Slab(self._made, torch.zeros(rows, size, dtype=dtype).share_memory_())
            self._slabs.append(slab)
            self._made += 1
        slab.busy, slab.held = True, None
        return slab

    def _feed(self, todo: deque[Parcel]) -> None:
        """Give every idle worker its next rows, and more to wait behind them while there are plenty.

        Only what is light waits: a pipe that is full would hold up both sides.
        """
        for depth in range(2):
            for worker in self._workers:
                if depth and (len(todo) <= self._count or not todo[0].light):
                    return
                if todo and len(worker.queue) == depth:
                    self._send(worker, todo.popleft())

    def _send(self, worker: Worker, parcel: Parcel) -> None:
        worker.queue.append(parcel)
        block = parcel.block
        packed, forget = pack(block.light, parcel.rows), not worker.windows
        if packed["windows"] is not None:
            indices, light = packed["windows"]
            packed["windows"] = {key: index for key, index in indices.items() if key not in worker.windows}, light
            worker.windows |= indices.keys()
        one = block.work.start.stride(0) == 0
        with suppress(OSError):  # it died: `_collect` sees to it
            self._show(worker, block.slab)
            worker.pipe.send(("train", block.slab.number, parcel.rows, packed, block.places, one, forget))

    def _show(self, worker: Worker, slab: Slab) -> None:
        """Let a worker have a slab that it does not know yet, and forget those that are gone."""
        if slab.number not in worker.slabs:
            worker.slabs = {slab.number for slab in self._slabs} & worker.slabs
            worker.pipe.send(("slab", slab.number, slab.rows, worker.slabs))
            worker.slabs.add(slab.number)

    def _remember(self, work: Work) -> None:
        """Keep the index vectors that workers know, so that each crosses once; forget them when they get many."""
        mine = {id(window.index): window.index for window in work.windows or ()}
        if sum(map(len, (self._windows | mine).values())) > max(KNOWN, 2 * sum(map(len, mine.values()))):
            self._windows = {}
            for worker in self._workers:
                worker.windows = set()
        self._windows |= mine

    def _collect(self, todo: deque[Parcel]) -> None:
        """Wait for news; a dead worker is replaced and its rows go to the front of the queue."""
        busy = {worker.pipe: worker for worker in self._workers if worker.queue}
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker, todo)
                continue
            parcel = worker.queue.popleft()
            if isinstance(answer, Exception):
                raise answer
            block, (loss, seconds, extra) = parcel.block, answer
            block.loss[parcel.rows], block.seconds[parcel.rows] = torch.from_numpy(loss), torch.from_numpy(seconds)
            for j, more in zip(parcel.rows, extra, strict=False):
                block.extra[j] = {name: torch.from_numpy(array) for name, array in more.items()}
            block.waiting -= len(parcel.rows)

    def _replace(self, worker: Worker, todo: deque[Parcel]) -> None:
        worker.process.join()
        if worker.queue:
            begun, *waiting = worker.queue
            todo.extendleft(reversed([*self._again(begun, worker.process.exitcode), *waiting]))
        worker.pipe.close()
        self._workers.remove(worker)
        self._workers.append(self._hire())

    def _again(self, parcel: Parcel, status: int) -> list[Parcel]:
        """Rows whose worker died, one by one where the kernel allows it, so that the one to blame is found."""
        block, tries = parcel.block, parcel.tries + 1
        if tries >= TRIES:
            clients = ", ".join(str(int(block.work.clients[j])) for j in parcel.rows)
            raise ArnoError(
                f"client {clients} in round {block.work.round + 1}",
                f"its worker died {TRIES} times (exit status {status})",
                "is there enough memory? try engine.workers=1 or engine=serial",
            )
        apart = [parcel.rows] if self._kernel.together else [[j] for j in parcel.rows]
        return [Parcel(block, rows, tries) for rows in apart]

    def _finished(self, block: Block) -> tuple[Work, Result]:
        work, slab = block.work, block.slab
        delta = slab.rows.numpy()[: len(work)]
        slab.busy, slab.held = False, ref(delta)
        extra = tuple(block.extra) if work.probe else ()
        return work, Result(torch.from_numpy(delta), block.loss, block.seconds, extra)

    def _map(self, what: str, models: Sequence[Vec], calls: list[tuple[Any, ...]]) -> list[Any]:
        """Ask the problem `what` for each call (number of the model, other arguments), in the workers, in order."""
        self._start()
        slab = self._slab(len(models), len(models[0]), models[0].dtype)
        for row, w in zip(slab.rows, models, strict=False):
            row.copy_(w)
        answers: list[Any] = [None] * len(calls)
        todo, tries = deque(enumerate(calls)), 0
        busy: dict[Connection, tuple[Worker, int]] = {}
        try:
            while todo or busy:
                for worker in [w for w in self._workers if w.pipe not in busy]:
                    if todo:
                        index, call = todo.popleft()
                        busy[worker.pipe] = worker, index
                        with suppress(OSError):  # it died: seen below
                            self._show(worker, slab)
                            worker.pipe.send(("ask", slab.number, what, *call))
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
        finally:
            slab.busy = False
            if busy:  # left in the middle: nobody waits for those answers
                self.close()
        return answers


class Package:
    """A problem on its way to a spawned worker: the user's own files are imported there first, tensors are shared."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return unwrap, (loaded_targets(), bytes(ForkingPickler.dumps(self.problem)))


def unwrap(targets: list[str], problem: bytes) -> Problem:
    """The problem, in the worker; the bytes come from the parent through its own pipe, never from a file."""
    for target in targets:
        with suppress(ArnoError):  # a file that is gone by now, and that this problem may not need
            load_target(target)
    unpacked: Problem = pickle.loads(problem)
    return unpacked


def serve(problem: Problem, kernel: type[Serial], pipe: Connection, inherited: Sequence[Connection]) -> None:
    """The worker's side: train what comes until the parent says so, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # not to push the parent aside when it wakes us: others are waiting for its messages
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    keep_memory()
    engine, parent, give_way = kernel(problem), os.getppid(), getattr(os, "sched_yield", lambda: sleep(0))
    slabs: dict[int, Mat] = {}
    windows: dict[int, Tensor] = {}
    while True:
        soon = perf_counter() + AWAKE
        while not pipe.poll(0) and perf_counter() < soon:
            give_way()
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
            slabs = {number: rows for number, rows in slabs.items() if number in message[3]}
            slabs[message[1]] = message[2]
            continue
        try:
            kind, *arguments = message
            answer = _train(engine, slabs, windows, *arguments) if kind == "train" else _ask(problem, slabs, *arguments)
        except Exception as error:
            answer = portable(error)
        try:
            pipe.send(answer)
        except OSError:
            return


def _train(
    engine: Serial,
    slabs: dict[int, Mat],
    windows: dict[int, Tensor],
    number: int,
    rows: list[int],
    packed: dict[str, Any],
    places: dict[str, int],
    one: bool,
    forget: bool,
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Train rows of a slab in place: losses, seconds and extras."""
    if forget:
        windows.clear()
    slab, at, work = slabs[number], torch.tensor(rows), unpack(packed, windows)
    vectors = {name: slab[first + at] for name, first in places.items() if name != "start" or not one}
    work = replace(
        work,
        start=slab[places["start"]].expand(len(rows), -1) if one else vectors["start"],
        drift=vectors.get("drift"),
        given={name[6:]: mat for name, mat in vectors.items() if name.startswith("given.")},
    )
    if side_by_side := span(rows):
        out = engine.block(work, slab[side_by_side])
    else:
        out = engine.block(work, slab.new_empty(len(rows), slab.shape[1]))
        slab[at] = out.delta
    extra = [{name: tensor.numpy() for name, tensor in more.items()} for more in out.extra]
    return out.loss.numpy(), out.seconds.numpy(), extra


def _ask(problem: Problem, slabs: dict[int, Mat], number: int, what: str, row: int, *more: Any) -> Any:
    """What a problem says of the model in a row of a slab."""
    return ask(problem, what, slabs[number][row].clone(), *more)  # a buffer of its own: kernels round by alignment
