"""Ray actors as workers. Large vectors are in the object store; updates stay on the node where they were computed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.problem import Problem
from ..core.work import Mat, Vec
from ..registry import loaded_targets
from .actors import Actor, Actors, Call, Ray
from .packing import pack
from .ray_worker import Trainer
from .transport import Block, Lost, Piece, Question, Request, Transport, listed

#: A message should cause at least this many seconds of training.
WORTH = 0.03
#: Tensors of the problem with at least this many bytes are read in place, in the object store.
SHARED = 2**16
#: A model of fewer bytes is part of every message; Ray would put a larger one into the object store for each message.
LIGHT = 100_000


@dataclass(eq=False)
class Share(Request):
    """Train rows of several blocks and add up their updates (`engine.reduce=worker`).

    rows: the rows by the number of their block. blocks: the same rows, packed. start: the model from which all rows
        start.
    total: a reference to the sum, which stays on the node of the worker.
    """

    rows: dict[int, list[int]]
    blocks: list[dict[str, Any]]
    start: Any
    total: Any = None

    def __str__(self) -> str:
        clients = [int(client) for packed in self.blocks for client in packed["clients"]]
        return f"client {listed(clients)} in round {self.blocks[0]['round'] + 1}"

    @property
    def doing(self) -> str:
        """The training of the rows, for a message."""
        return f"while it trained {self.units} clients"

    @property
    def units(self) -> int:
        """The time limit of the request is `engine.timeout` for each client."""
        return sum(map(len, self.rows.values()))


@dataclass(eq=False)
class Vectors:
    """The vectors of a block.

    start: the model from which all rows start; None if each row has its own. arrived: the pieces that are answered,
    with references to their updates. delta: the updates that were fetched; it is made when the block is the next in
    order.
    """

    start: Any
    arrived: list[tuple[Piece, Any]] = field(default_factory=list)
    delta: Mat | None = None


class RayActors(Transport[Actor]):
    """Actors of a Ray cluster, one core each."""

    name = "ray"
    worth = WORTH
    remedy = "is there enough memory? Ray's logs are in the run's folder"

    def __init__(self, problem: Problem, cluster: Ray, workers: int) -> None:
        self.cluster, self._problem = cluster, problem
        self.count = workers or max(1, cluster.cpus)
        self.actors = Actors(self._make, self.count)
        self._stored: Any = None  # a reference to the problem
        self._open: dict[Block, Vectors] = {}
        self._start: tuple[Vec, int, Any] | None = (
            None  # the last start: the vector, its version, what a message carries
        )

    def start(self) -> None:
        """Start the actors that are missing."""
        self.actors.start()

    def room(self, depth: int) -> list[Actor]:
        """The actors that are ready and have fewer than `depth` calls in their queues."""
        return list(self.actors.room(depth))

    @property
    def busy(self) -> bool:
        """Whether a call has no answer yet."""
        return self.actors.busy

    def open(self, block: Block) -> None:
        """Put the start of a block into the object store, if all its rows have the same start."""
        start = block.work.start
        self._open[block] = Vectors(self._shared(start[0]) if start.stride(0) == 0 else None)

    def send(self, worker: Actor, request: Request) -> None:
        """Send a request as a call of the actor's method."""
        match request:
            case Piece(block=block, rows=rows):
                start = self._open[block].start
                arguments = pack(block.work, rows, shared=start is not None), start
                call = Call("train", arguments, True, request, request.steps)
            case Share():
                call = Call("sum", (request.blocks, request.start), True, request)
            case Question():
                call = Call("ask", (request.what, request.model, *request.arguments), what=request)
        self.actors.send(worker, call)

    def first(self) -> list[tuple[Actor, Request, bool]]:
        """The actors that are busy, with the request that each of them works on. All of them have started."""
        return [(actor, call.what, True) for actor, call in self.actors.first()]

    def end(self, worker: Actor, why: str) -> list[Lost]:
        """End an actor, start another one, and return its requests."""
        return [Lost(call.what, begun, why) for call, begun, why in self.actors.end(worker, why)]

    def wait(self, seconds: float) -> tuple[list[Request], list[Lost]]:
        """Wait for the first objects of answers. The updates stay on their nodes."""
        answered, lost = list[Request](), list[Lost]()
        for call, begun, why in self.actors.wait(seconds):
            request = call.what
            if why:
                lost.append(Lost(request, begun, why))
                continue
            request.answer = call.answer
            answered.append(request)
            if isinstance(request, Piece):
                self._open[request.block].arrived.append((request, call.heavy))
            elif isinstance(request, Share):
                request.total = call.heavy
        return answered, lost

    def fetch(self, block: Block) -> list[Lost]:
        """Copy the updates that have arrived into the matrix of the block. Some may be lost with their node."""
        vectors, lost = self._open[block], list[Lost]()
        if vectors.delta is None:
            vectors.delta = block.work.start.new_empty(block.work.start.shape)
        while vectors.arrived:  # each reference is released as soon as possible, so that the store can free its object
            piece, reference = vectors.arrived.pop()
            array, why = get(reference)
            if why:
                lost.append(Lost(piece, True, why))
            else:
                vectors.delta.numpy()[piece.rows] = array
        return lost

    def take(self, block: Block) -> Mat:
        """The updates of a complete block."""
        delta = self._open[block].delta
        assert delta is not None
        self.drop(block)
        return delta

    def drop(self, block: Block) -> None:
        """Forget a block. After the last block, forget also the start that the blocks share."""
        del self._open[block]
        if not self._open:
            self._start = None

    @contextmanager
    def share(self, models: Sequence[Vec]) -> Iterator[list[Any]]:
        """Put models into the object store."""
        yield [put(w) for w in models]

    def stop(self) -> None:
        """End the actors."""
        self.actors.close()

    def close(self) -> None:
        """End the actors and disconnect from the cluster."""
        self.stop()
        self._stored = None
        self.cluster.close()

    def _make(self) -> Any:
        import ray

        if self._stored is None:
            self._stored = ray.put(dumps(self._problem))
        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Trainer)
        return actor.remote(self._stored, loaded_targets())

    def _shared(self, start: Vec) -> Any:
        """The start as messages carry it; all blocks of a round share one object."""
        last = self._start
        if last is None or last[0].data_ptr() != start.data_ptr() or last[0]._version != last[1]:
            self._start = last = (start, start._version, put(start))
        return last[2]


def put(w: Vec) -> Any:
    """What messages carry for a vector: `w` itself if it has fewer than LIGHT bytes, otherwise a reference."""
    import ray

    return w.numpy() if w.nbytes < LIGHT else ray.put(w.numpy())


def get(reference: Any) -> tuple[Any, str]:
    """An object and an empty text, or None and the reason why the object was lost."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(reference), ""
    except RayError as error:
        return None, f"its result was lost ({type(error).__name__})"


def dumps(problem: Problem) -> tuple[bytes, list[Any]]:
    """The problem for the object store. Workers read its large tensors in place."""
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
