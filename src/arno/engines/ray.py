"""Clients on a Ray cluster: persistent actors, one core and one thread each, bit for bit what `serial` computes.

The problem goes into the object store once; every node fetches it once and its actors read the data where they lie.
A message carries some rows of a block: the longest first, few enough at a time that nobody ends late, enough that a
message is worth its way. An actor answers with losses at once; the deltas stay on its node until their block's turn.
An actor or node that is lost, or a client that takes too long, is run again elsewhere: a client's result depends on
nothing but its row.

With `reduce=worker` every worker's share of the cohort comes back as one weighted sum, and clients of small dense
networks train together (see `batched`).
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.contracts import Engine, Problem, added
from ..core.serial import Serial
from ..core.work import Result, SumResult, Vec, Work
from ..errors import ArnoError
from ..kernels.allocator import keep_memory
from ..registry import load_target, loaded_targets
from . import engines
from . import pieces as schedule
from .actors import Actors, Call, Ray
from .auto import choose
from .batched import Batched
from .parcel import ask, pack, portable, unpack
from .remote_table import WorkerTable

#: A client that was lost with its worker this often is given up.
TRIES = 3
#: A message should carry at least this many seconds of training.
WORTH = 0.03
#: Tensors of the problem from this size on are read where they lie in the object store.
SHARED = 2**16
#: A model of fewer bytes travels in every message; Ray would put a larger one into the store each time.
LIGHT = 100_000


@engines.register("ray")
def ray_engine(
    problem: Problem,
    *,
    address: str | None = None,
    workers: int = 0,
    reduce: Literal["server", "worker"] = "server",
    timeout: float = 0.0,
) -> RayEngine:
    """Clients in parallel on the cores of a Ray cluster.

    address: of the cluster: auto, HOST:PORT, ray://HOST:PORT; null starts one on this machine.
    workers: how many actors, one core each; 0: one per core of the cluster.
    reduce: who adds the clients' updates up; worker: one sum per worker comes back, equal to rounding.
    timeout: seconds that one client may take before it is run elsewhere; 0: no limit.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    if not timeout >= 0:
        raise ArnoError(f"engine.timeout = {timeout:g}", "it must not be negative", "use 0 for no limit")
    if problem.device.type != "cpu":
        raise ArnoError(f"engine=ray on {problem.device}", "its workers train on the CPU", "use device=cpu")
    torch.set_num_threads(1)  # how the server adds up is part of the bits
    keep_memory()
    return RayEngine(problem, Ray(address, workers), workers, reduce == "worker", timeout)


@dataclass(eq=False)
class Block:
    """A block in flight: its work, the model that all its rows start from (if one), what has come back."""

    work: Work
    start: Any
    waiting: int
    tries: list[int]
    loss: Tensor
    seconds: Tensor
    extra: list[dict[str, Tensor]]
    heavy: list[Call] = field(default_factory=list)
    delta: Tensor | None = None


Piece = tuple[Block, list[int]]  #: some rows of a block


class RayEngine(Engine):
    """The driver's side."""

    def __init__(self, problem: Problem, ray: Ray, workers: int, sums: bool, timeout: float) -> None:
        self.problem, self._ray, self.sums = problem, ray, sums
        self._count = workers or max(1, ray.cpus)
        self._actors = Actors(self._hire, self._count, timeout)
        self._problem: Any = None
        self._shared: tuple[Vec, int, Any] | None = None
        self._pace = 0.0  # seconds per step, as seen so far
        self.equality = f"as serial to rounding, by {self._count} workers" if sums else "bit for bit as serial"
        self.name = f"ray ({self._count} workers{', reduce=worker: ' + self.equality if sums else ''})"

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Train blocks, enough of them in flight to keep everybody busy; yields them in order."""
        self._actors.start()
        if self.sums:
            yield from self._summed(list(works))
            return
        source, flight, todo = iter(works), deque[Block](), deque[Piece]()
        try:
            while True:
                while len(flight) < 2 or sum(len(block.work) for block in flight) < 2 * self._count:
                    if (work := next(source, None)) is None:
                        break
                    flight.append(self._open(work))
                    least = WORTH / self._pace if self._pace else 0.0
                    pieces = schedule.pieces(work.steps, self._count, least)
                    todo.extend((flight[-1], rows.tolist()) for rows in pieces)
                if not flight:
                    return
                while (delta := self._fetched(flight[0], todo)) is None:
                    self._feed(todo)
                    self._collect(todo)
                block = flight.popleft()
                extra = tuple(block.extra) if block.work.probe else ()
                yield block.work, Result(delta, block.loss, block.seconds, extra)
        finally:
            self._shared = None
            if self._actors.busy:  # left in the middle: nobody waits for those results
                self._actors.close()

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """The scores of models on a split: a model per worker, or few models in pieces."""
        models = list(models)
        if len(models) < self._count:
            return super().score(models, split)
        found = self._map([Call("ask", ("total", w.numpy(), split)) for w in models])
        return [self.problem.scores(torch.tensor(tally)) for tally in found]

    def tally(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a split, whose pieces the workers score."""
        shared = _put(w)
        found = self._map([Call("ask", ("tally", shared, split, *piece)) for piece in self.problem.pieces(split)])
        return added(map(torch.tensor, found))

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on the data of each client; every worker takes some of the clients."""
        return self._losses("losses", w, clients)

    def batch_loss(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of it from one mini-batch of each client."""
        return self._losses("batch_losses", w, clients, batch_size, rest=(seed, t))

    def _losses(self, what: str, w: Vec, *columns: Tensor, rest: tuple[int, ...] = ()) -> Tensor:
        pieces, shared = zip(*(column.chunk(self._count) for column in columns), strict=True), _put(w)
        found = self._map([Call("ask", (what, shared, *(c.numpy() for c in piece), *rest)) for piece in pieces])
        return torch.cat([torch.tensor(losses) for losses in found])

    def table(self, n: int, seen: int, like: Vec) -> WorkerTable:
        """A row per client in the memory of the cluster (`state=workers`); refused where it cannot fit."""
        size, room = seen * like.numel() * like.element_size(), self._ray.memory
        if size > room:
            need = f"a table of up to {seen:,} clients × {like.numel():,} parameters takes {size / 2**30:,.1f} GiB"
            raise ArnoError(need, f"the cluster has {room / 2**30:,.1f} GiB", "use state=disk, or a smaller model")
        return WorkerTable(n, like, self._count)

    def keep_logs(self, folder: Path) -> None:
        """Ray's logs belong to the run's folder."""
        self._ray.keep_logs(folder)

    def close(self) -> None:
        """Dismiss the actors and leave the cluster."""
        self._actors.close()
        self._problem = None
        self._ray.close()

    def _hire(self) -> Any:
        import ray

        if self._problem is None:
            self._problem = ray.put(dumps(self.problem))
        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Trainer)
        return actor.remote(self._problem, loaded_targets())

    def _open(self, work: Work) -> Block:
        n = len(work)
        shared = self._share(work.start[0]) if work.start.stride(0) == 0 else None
        return Block(work, shared, n, [0] * n, torch.zeros(n), torch.zeros(n), [{}] * n)

    def _share(self, start: Vec) -> Any:
        """The model that a block's rows start from, in the object store: once for all blocks of a round."""
        last = self._shared
        if last is None or last[0].data_ptr() != start.data_ptr() or last[0]._version != last[1]:
            self._shared = last = (start, start._version, _put(start))
        return last[2]

    def _feed(self, todo: deque[Piece]) -> None:
        """Give every idle actor its next piece; and one more, to whoever has least to do, while there are plenty.

        A piece that takes no longer than its message is not worth the wait for somebody to be idle.
        """
        room = list(self._actors.room(2))
        while todo and room:
            worker = min(room, key=lambda worker: sum(call.steps for call in worker.queue))
            block, rows = todo[0]
            steps = int(block.work.steps[rows].sum())
            if worker.queue and len(todo) <= self._count and not 0 < self._pace * steps < WORTH / 4:
                break
            todo.popleft()
            packed = pack(block.work, rows, shared=block.start is not None)
            self._actors.send(worker, Call("train", (packed, block.start), len(rows), (block, rows), steps))
            if len(worker.queue) == 2:
                room.remove(worker)

    def _collect(self, todo: deque[Piece]) -> None:
        """Wait for news; rows that were lost go to the front of the queue."""
        for call, begun, why in self._actors.wait():
            block, rows = call.what
            if why:
                self._again(block, rows, begun, why, todo)
                continue
            loss, seconds, extra = call.answer
            block.loss[rows], block.seconds[rows] = torch.tensor(loss), torch.tensor(seconds)
            for j, more in zip(rows, extra, strict=False):
                block.extra[j] = {name: torch.tensor(array) for name, array in more.items()}
            block.waiting -= len(rows)
            block.heavy.append(call)
            pace = float(block.seconds[rows].sum()) / max(1, int(block.work.steps[rows].sum()))
            self._pace = pace if not self._pace else 0.8 * self._pace + 0.2 * pace

    def _again(self, block: Block, rows: list[int], begun: bool, why: str, todo: deque[Piece]) -> None:
        for j in rows:
            block.tries[j] += begun
            if block.tries[j] >= TRIES:
                client = int(block.work.clients[j])
                _give_up(f"client {client} in round {block.work.round + 1}", why)
        todo.extendleft((block, [j]) for j in reversed(rows))  # alone, so that the one to blame is found

    def _fetched(self, block: Block, todo: deque[Piece]) -> Tensor | None:
        """Fetch the deltas of the block whose turn it is, as they come: all of them, or None while some are missing.

        What was lost with its node since it was answered is run again.
        """
        import ray
        from ray.exceptions import RayError

        if block.delta is None:
            block.delta = block.work.start.new_empty(block.work.start.shape)
        while block.heavy:  # nothing is left in it: block and calls hold each other, and the store would wait for both
            call = block.heavy.pop()
            _, rows = call.what
            try:
                block.delta.numpy()[rows] = ray.get(call.heavy)
            except RayError as error:
                block.waiting += len(rows)
                self._again(block, rows, True, f"its result was lost ({type(error).__name__})", todo)
        return None if block.waiting else block.delta

    def _summed(self, works: Sequence[Work]) -> Iterator[tuple[Work, SumResult]]:
        """One sum per worker: who adds what follows from the cohort and the number of workers alone."""
        if not works:
            return
        shared, calls = _put(works[0].start[0]), []
        for share in shares(works, self._count):
            rows = [pack(works[b], js, shared=True) for b, js in share.items()]
            calls.append(Call("sum", (rows, shared), sum(map(len, share.values())), share))
        self._map(calls)
        total = works[0].start.new_zeros(works[0].start.shape[1])
        columns = [torch.zeros(3, len(work)) for work in works]  # loss, seconds, norm of the delta
        for call in calls:
            total.numpy()[:] += self._heavy(call)
            for (b, rows), column in zip(call.what.items(), call.answer, strict=True):
                columns[b].numpy()[:, rows] = column
        for b, (work, (loss, seconds, norm)) in enumerate(zip(works, columns, strict=True)):
            mine = total if b == len(works) - 1 else torch.zeros_like(total)
            yield work, SumResult(mine, loss, seconds, norm, len(total))

    def _heavy(self, call: Call) -> Any:
        """What an answered call left on its node; made again if that node is gone."""
        import ray
        from ray.exceptions import RayError

        while True:
            try:
                return ray.get(call.heavy)
            except RayError as error:
                _count(call, True, f"its result was lost ({type(error).__name__})")
                self._map([call])

    def _map(self, calls: Sequence[Call]) -> list[Any]:
        """The answers to some calls, in order."""
        self._actors.start()
        todo, waiting = deque(calls), len(calls)
        try:
            while waiting:
                for worker in self._actors.room():
                    if todo:
                        self._actors.send(worker, todo.popleft())
                for call, begun, why in self._actors.wait():
                    if why:
                        _count(call, begun, why)
                        todo.appendleft(call)
                    else:
                        waiting -= 1
        finally:
            if self._actors.busy:
                self._actors.close()
        return [call.answer for call in calls]


class Trainer:
    """The actor's side: the serial engine on one thread, with data that it shares with its neighbours."""

    def __init__(self, problem: tuple[bytes, list[Any]], targets: list[str]) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
        torch.set_num_threads(1)
        keep_memory()
        for target in targets:
            with suppress(ArnoError):  # a file that is gone by now, and that this problem may not need
                load_target(target)
        # The bytes come from the driver through Ray's own channel, never from a file.
        self.problem: Problem = pickle.loads(problem[0], buffers=problem[1])
        self.engine, self.batched = Serial(self.problem), Batched(self.problem)

    def ready(self) -> bool:
        """It is up."""
        return True

    def train(self, packed: dict[str, Any], start: Any) -> tuple[Any, Any]:
        """Train some rows: losses, seconds and extras; then the deltas."""
        try:
            _, out = next(iter(self.engine.train([_unpack(packed, start)])))
        except Exception as error:
            return portable(error), None
        extra = [{name: tensor.numpy() for name, tensor in more.items()} for more in out.extra]
        return (out.loss.numpy(), out.seconds.numpy(), extra), out.delta.numpy()

    def sum(self, blocks: list[dict[str, Any]], start: Any) -> tuple[Any, Any]:
        """Train rows of several blocks: each one's losses, seconds and norms; then Σ p_k Δ_k over what is finite."""
        total, columns, d = torch.zeros(len(start), dtype=self.problem.dtype), [], self.problem.layout.d
        try:
            for work in (_unpack(packed, start) for packed in blocks):
                found = []
                for rows, out in self._rows(work):
                    fine = torch.isfinite(out.delta.sum(1))
                    total += rows.weight[fine] @ out.delta[fine]
                    norm = out.delta[:, :d].norm(dim=1).where(fine, torch.nan)
                    found.append(torch.stack([out.loss, out.seconds, norm.to(out.loss.dtype)]))
                columns.append(torch.cat(found, 1).numpy())
        except Exception as error:
            return portable(error), None
        return columns, total.numpy()

    def _rows(self, work: Work) -> Iterator[tuple[Work, Result]]:
        """Its rows trained: small dense networks at once, others one by one, so that only one delta is there."""
        if choose(self.problem, work, 1) == "batched":
            return self.batched.train([work])
        return self.engine.train(work.rows(torch.tensor([j])) for j in range(len(work)))

    def ask(self, what: str, *arguments: Any) -> Any:
        """What the problem answers."""
        try:
            return ask(self.problem, what, *arguments)
        except Exception as error:
            return portable(error)


def shares(works: Sequence[Work], workers: int) -> list[dict[int, list[int]]]:
    """The cohort dealt to `workers`, longest clients first, each to whoever has least: rows by number of block."""
    rows = [(steps, b, j) for b, work in enumerate(works) for j, steps in enumerate(work.steps.tolist())]
    rows.sort(key=lambda row: -row[0])
    load, dealt = [0] * workers, [list[tuple[int, int]]() for _ in range(workers)]
    for steps, b, j in rows:
        least = load.index(min(load))
        load[least] += steps
        dealt[least].append((b, j))
    found = []
    for mine in filter(None, dealt):
        share: dict[int, list[int]] = {}
        for b, j in sorted(mine):
            share.setdefault(b, []).append(j)
        found.append(share)
    return found


def dumps(problem: Problem) -> tuple[bytes, list[Any]]:
    """The problem for the object store: its large tensors as arrays that workers read in place."""
    import numpy as np
    from ray import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            plain = type(value) is Tensor and value.is_contiguous() and value.dtype != torch.bfloat16
            if plain and value.numel() * value.element_size() >= SHARED:
                return torch.from_numpy, (value.detach().numpy(),)
            return super().reducer_override(value)

    buffers: list[Any] = []
    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=buffers.append).dump(problem)
    return file.getvalue(), [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]


def _put(w: Vec) -> Any:
    """A vector on its way to many: as it is where it is light, else in the object store, once for all who read it."""
    import ray

    return w.numpy() if w.nbytes < LIGHT else ray.put(w.numpy())


def _unpack(packed: dict[str, Any], start: Any) -> Work:
    """The work again, in the actor, from the start that all its rows share (if any)."""
    work = unpack(packed)
    return work if start is None else replace(work, start=torch.from_numpy(start).expand(len(work), -1))


def _count(call: Call, begun: bool, why: str) -> None:
    call.tries += begun
    if call.tries >= TRIES:
        _give_up(f"{call.method} on Ray", why)


def _give_up(what: str, why: str) -> None:
    raise ArnoError(what, f"{why}, {TRIES} times", "is there enough memory? Ray's logs are in the run's folder")
