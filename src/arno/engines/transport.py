"""The interface between the pool and its workers: requests, queues and answers.

The pool (`pool.py`) decides what is sent and when. A transport moves requests, vectors and answers. There are two
transports: `processes` (pipes and shared memory) and `ray` (actors and the object store).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import nan
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.work import Mat, Result, Vec, Work
from .packing import Answer, tensor

#: A request is given up when its worker was lost this often.
TRIES = 3


@dataclass(eq=False)
class Block:
    """A block of work in progress, with the answers that have arrived.

    waiting: the number of rows without an answer.
    """

    work: Work
    waiting: int = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.work)
        self.waiting, self._loss, self._seconds = n, torch.zeros(n), torch.zeros(n)
        self._extra: list[dict[str, Tensor]] = []  # empty, or one dictionary per row
        self._failed: dict[int, str] = {}

    def add(self, rows: list[int], answer: Answer) -> None:
        """Store the answer for some rows."""
        loss, seconds, extra, failed = answer
        self._failed |= {rows[j]: why for j, why in failed.items()}
        self._loss.numpy()[rows], self._seconds.numpy()[rows] = loss, seconds
        if extra and not self._extra:
            self._extra = [{}] * len(self.work)
        for j, arrays in zip(rows, extra, strict=False):
            self._extra[j] = {name: tensor(array) for name, array in arrays.items()}
        self.waiting -= len(rows)

    def fail(self, row: int, why: str) -> None:
        """Store why a row has no answer."""
        self._loss[row], self._failed[row] = nan, why
        self.waiting -= 1

    def result(self, delta: Mat) -> Result:
        """The result of the block."""
        if self._failed:
            delta[list(self._failed)] = nan
        return Result(delta, self._loss, self._seconds, tuple(self._extra), failed=self._failed)


@dataclass(eq=False, kw_only=True)
class Request(ABC):
    """What a worker must do.

    steps: the number of steps of local training in it. tries: how often its worker was lost. answer: what the worker
    returned.
    """

    steps: int = 0
    tries: int = 0
    answer: Any = None

    @abstractmethod
    def __str__(self) -> str:
        """The text that names it in a message: clients and round."""

    @property
    @abstractmethod
    def doing(self) -> str:
        """What its worker was doing, for a message."""

    @property
    def units(self) -> int:
        """The time limit of the request is `engine.timeout` times this number."""
        return 1

    def split(self) -> Sequence[Request]:
        """The requests that replace it after its worker was lost."""
        return [self]


@dataclass(eq=False)
class Piece(Request):
    """Train some rows of a block."""

    block: Block
    rows: list[int]

    def __str__(self) -> str:
        return f"client {listed(self.block.work.clients[self.rows].tolist())} in round {self.block.work.round + 1}"

    @property
    def doing(self) -> str:
        """The training of the rows, for a message."""
        return f"while it trained ({self.steps} steps)"

    def split(self) -> list[Piece]:
        """One piece per row, so that the client that ends its worker is found."""
        steps = self.block.work.steps
        return [Piece(self.block, [j], steps=int(steps[j]), tries=self.tries) for j in self.rows]


@dataclass(eq=False)
class Question(Request):
    """Call the method `what` of the problem with a model and other arguments.

    model: what `Transport.share` returned for it. round: the number of rounds whose training has begun.
    """

    what: str
    model: Any
    arguments: tuple[Any, ...]
    round: int = 0

    def __str__(self) -> str:
        return f"scoring after the training of round {self.round}" if self.round else "scoring before the first round"

    @property
    def doing(self) -> str:
        """What the worker scored, for a message."""
        of, *rest = self.arguments
        if not isinstance(of, str):
            return f"while it computed the losses of client {listed(list(map(int, of)))}"
        return f"while it scored {of or 'the objective'}" + (", samples {} to {}".format(*rest) if rest else "")


def listed(numbers: Sequence[int], most: int = 8) -> str:
    """Numbers in a message: the first ones, and how many more there are.

    >>> listed([3, 5]), listed(range(20), 3)
    ('3, 5', '0, 1, 2 and 17 more')
    """
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


class Lost(NamedTuple):
    """A request that has no answer.

    begun: whether its worker had begun it. why, remedy: texts for an error message; without a remedy, the message has
    the remedy of the transport.
    """

    request: Request
    begun: bool
    why: str
    remedy: str = ""


class Worker(Protocol):
    """What the pool knows of a worker."""

    @property
    def load(self) -> tuple[int, int]:
        """The number of requests in its queue, and the number of steps in them."""
        ...


W = TypeVar("W", bound=Worker)


class Transport(ABC, Generic[W]):
    """Starts workers, sends requests to them, and receives their answers.

    name: the name of the engine. count: the number of workers. worth: a message should cause at least this many seconds
    of training. remedy: what a user can do if workers are lost several times.
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
    def wait(self, seconds: float) -> tuple[list[Request], list[Lost]]:
        """Wait at most this many seconds until some requests are answered or lost. Lost workers are replaced.

        An exception in a worker is raised here.
        """

    @abstractmethod
    def first(self) -> list[tuple[W, Request, bool]]:
        """The workers that are busy, with the request that each of them works on, and whether the worker is up."""

    @abstractmethod
    def end(self, worker: W, why: str) -> list[Lost]:
        """End a worker that does not answer, replace it, and return its requests."""

    def fetch(self, block: Block) -> list[Lost]:
        """Fetch updates that are still at the workers. Returns the pieces whose updates were lost there."""
        return []

    @abstractmethod
    def take(self, block: Block) -> Mat:
        """The updates of a complete block. The transport forgets the block."""

    @abstractmethod
    def drop(self, block: Block) -> None:
        """Forget a block that is not needed any more."""

    @abstractmethod
    def share(self, models: Sequence[Vec]) -> AbstractContextManager[list[Any]]:
        """Put models where the workers can read them. Returns, for each model, what a `Question` carries."""

    @abstractmethod
    def stop(self) -> None:
        """End the workers and forget their queues. `start` makes new ones."""

    def close(self) -> None:
        """End the workers and release everything."""
        self.stop()
