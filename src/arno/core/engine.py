"""The interface of an engine: where clients train. Optional abilities are declared here.

A class that lacks an ability inherits a default that says so; no code looks for attributes by name.
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
    """The run that uses an engine, as the engine sees it.

    stopping: whether the user has stopped the run, which ends after this round. say: called with a line for the user.
    """

    stopping: bool = False
    say: Callable[[str], None] = lambda line: None


class Engine(ABC):
    """Where clients train. Blocks of work come back in the order in which they were given.

    name: the name of the engine, with its choices. equality: how closely its numbers agree with those of `serial`.
    sums: whether blocks come back as `SumResult`; then no part sees the update of a single client.
    caller: the run that uses it.
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
        """Train block after block, with a bounded number in flight."""

    def workers_for(self, work: Work) -> tuple[str, int]:
        """The engine of a round that begins with this block, and the number of its worker processes on this machine.

        0: it trains in this process.
        """
        return self.name, 0

    def scorers(self) -> int:
        """The number of processes on this machine that score models; 0: this process scores, or those that train."""
        return 0

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """The scores of models on a split."""
        return [self.problem.scores(self.tally(w, split)) for w in models]

    def report(self, w: Vec, clients: bool = False) -> dict[str, float]:
        """The scores of a model on all splits as a round records them; with `clients`, their spread over clients."""
        row: dict[str, float] = {}
        for split in self.problem.splits:
            tally = self.tally(w, split)
            scores = self.problem.scores(tally)
            row |= {f"{split}_{name}" if split else name: score for name, score in scores.items()}
            if clients and split == "test":
                row |= self.problem.spread(tally)
        return row

    def tally(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a split, piece after piece."""
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
        """Put the engine's own logs, if it has any, into a folder."""

    def close(self) -> None:  # noqa: B027
        """Release what the engine holds."""
