"""The interface of an engine, which trains the clients and scores models.

The base class declares optional abilities with a default for engines that do not have them. So no code tests whether
an engine has an attribute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ArnoError
from .problem import Problem
from .table import ClientTable
from .work import Result, SumResult, Vec, Work


@dataclass
class Caller:
    """What an engine knows about the run that uses it.

    stopping: whether the user has asked the run to stop; it then ends after this round.
    say: a function that shows one line to the user.
    """

    stopping: bool = False
    say: Callable[[str], None] = lambda line: None


class Engine(ABC):
    """Trains clients. It returns the results of blocks in the order in which it received the blocks.

    name: the name of the engine; `auto` adds the engine that it chose.
    equality: how closely its numbers agree with those of the engine `serial`.
    sums: whether results are `SumResult`; then no part sees the update of a single client.
    caller: the run that uses this engine.
    """

    name: str
    equality: str = "unknown"
    problem: Problem
    sums: bool = False
    caller: Caller = Caller()

    def attach(self, caller: Caller) -> None:
        """Set the run that uses this engine."""
        self.caller = caller

    @abstractmethod
    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Train the blocks; only a limited number of blocks is in progress at the same time."""

    def workers_for(self, work: Work) -> tuple[str, int]:
        """The engine of a round whose first block is `work`, and the number of its worker processes on this machine.

        The number is 0 if the engine trains in this process.
        """
        return self.name, 0

    def scorers(self) -> int:
        """How many processes on this machine only score models; 0: this process or the training processes score."""
        return 0

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """The scores of models on a split."""
        return [self.problem.scores(self.tally(w, split)) for w in models]

    def report(self, w: Vec, clients: bool = False) -> dict[str, float]:
        """The scores of a model on all splits, as a round records them; `clients` adds statistics over the clients."""
        row: dict[str, float] = {}
        for split in self.problem.splits:
            tally = self.tally(w, split)
            scores = self.problem.scores(tally)
            row |= {f"{split}_{name}" if split else name: score for name, score in scores.items()}
            if clients and split == "test":
                row |= self.problem.spread(tally)
        return row

    def tally(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a split, computed piece by piece."""
        return self.problem.total(w, split)

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on the data of each client."""
        return self.problem.losses(w, clients)

    def batch_loss(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of `loss` from one mini-batch of each client, drawn for round t."""
        return self.problem.batch_losses(w, clients, batch_size, seed, t)

    def table(self, n: int, seen: int, like: Vec) -> ClientTable:
        """A table with one row per client, in the memory of the workers (`state=workers`)."""
        raise ArnoError(
            "state=workers", f"engine {self.name} has no workers to hold rows", "use engine=ray, or state=disk"
        )

    def keep_logs(self, folder: Path) -> None:  # noqa: B027
        """Copy or link the engine's own logs into a folder; an engine without logs does nothing."""

    def close(self) -> None:  # noqa: B027
        """Release what the engine holds."""
