"""The interface between the pool and its workers: requests, queues and answers.

The pool (`pool.py`) decides what is sent and when. A transport moves requests, vectors and answers. There are two
transports: `processes` (pipes and shared memory) and `ray` (actors and the object store).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.work import Mat, Result, Vec, Work
from .parcel import tensor

#: A request is given up when its worker was lost this often.
TRIES = 3


@dataclass(eq=False)
class Block:
    """A block of work in flight, with the answers that have arrived. waiting: the number of rows without an answer."""

    work: Work
    waiting: int = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.work)
        self.waiting, self._loss, self._seconds = n, torch.zeros(n), torch.zeros(n)
        self._extra: list[dict[str, Tensor]] = []  # empty, or one per row

    def add(self, rows: list[int], loss: Any, seconds: Any, extra: list[dict[str, Any]]) -> None:
        """Store the answer for some rows."""
        self._loss.numpy()[rows], self._seconds.numpy()[rows] = loss, seconds
        if extra and not self._extra:
            self._extra = [{}] * len(self.work)
        for j, arrays in zip(rows, extra, strict=False):
            self._extra[j] = {name: tensor(array) for name, array in arrays.items()}
        self.waiting -= len(rows)

    def result(self, delta: Mat) -> Result:
        """The result of the block."""
        return Result(delta, self._loss, self._seconds, tuple(self._extra))


@dataclass(eq=False, kw_only=True)
class Request(ABC):
    """What a worker must do.

    steps: the number of steps of local training in it. tries: how often its worker was lost. answer: what came back.
    """

    steps: int = 0
    tries: int = 0
    answer: Any = None

    @abstractmethod
    def __str__(self) -> str:
        """How an error message names it."""

    def split(self) -> Sequence[Request]:
        """The requests that replace it after its worker was lost."""
        return [self]


@dataclass(eq=False)
class Piece(Request):
    """Train some rows of a block. The answer holds losses, seconds and extras."""

    block: Block
    rows: list[int]

    def __str__(self) -> str:
        clients = ", ".join(str(int(self.block.work.clients[j])) for j in self.rows)
        return f"client {clients} in round {self.block.work.round + 1}"

    def split(self) -> list[Piece]:
        """One piece per row, so that the client that ends its worker is found."""
        steps = self.block.work.steps
        return [Piece(self.block, [j], steps=int(steps[j]), tries=self.tries) for j in self.rows]


@dataclass(eq=False)
class Question(Request):
    """Call the method `what` of the problem with a model and other arguments. model: as `Transport.share` gave it."""

    what: str
    model: Any
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return "scoring"


class Lost(NamedTuple):
    """A request that has no answer. begun: whether its worker had begun it. why: the reason, for an error message."""

    request: Request
    begun: bool
    why: str


class Worker(Protocol):
    """What the pool sees of a worker."""

    @property
    def load(self) -> tuple[int, int]:
        """The number of requests in its queue, and the number of steps in them."""
        ...


W = TypeVar("W", bound=Worker)


class Transport(ABC, Generic[W]):
    """Workers, and the way to them.

    name: of the engine. count: the number of workers. worth: a message should carry at least this many seconds of
    training. remedy: what a user can do when workers are lost again and again.
    """

    name: str
    count: int
    worth: float = 0.0
    remedy: str

    @abstractmethod
    def start(self) -> None:
        """Start the workers that are missing."""

    @abstractmethod
    def room(self, depth: int) -> list[W]:
        """The workers that are ready and have fewer than `depth` requests in their queues."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a request has no answer yet."""

    @abstractmethod
    def open(self, block: Block) -> None:
        """Put the vectors of a block where the workers can read them."""

    def may_wait(self, piece: Piece) -> bool:
        """Whether a piece may be sent to a worker that is busy."""
        return True

    @abstractmethod
    def send(self, worker: W, request: Request) -> None:
        """Put a request into the queue of a worker."""

    @abstractmethod
    def wait(self) -> tuple[list[Request], list[Lost]]:
        """Wait until some requests are answered or lost. Workers that are lost are replaced.

        An exception in a worker is raised here.
        """

    def fetch(self, block: Block) -> list[Lost]:
        """Fetch deltas that still wait at the workers; pieces whose deltas were lost there are returned."""
        return []

    @abstractmethod
    def take(self, block: Block) -> Mat:
        """The deltas of a complete block. The transport forgets the block."""

    @abstractmethod
    def drop(self, block: Block) -> None:
        """Forget a block that is not needed any more."""

    @abstractmethod
    def share(self, models: Sequence[Vec]) -> AbstractContextManager[list[Any]]:
        """Put models where the workers can read them; for each model, what a `Question` carries."""

    @abstractmethod
    def stop(self) -> None:
        """End the workers and forget their queues. `start` makes new ones."""

    def close(self) -> None:
        """End the workers and release everything."""
        self.stop()
