"""An engine in one file: one client after another, with a log of how long each client trained.

    arno run engine=custom engine.target=examples/my_engine.py:factory engine.slowest=5

Arno calls the factory with the problem and the settings. An engine must define `train`: it gets blocks of work and
returns their results in the same order. Scoring has a default in `Engine`. The log is `logs/slowest.csv` in the run's
folder.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from arno import Result, Work
from arno.core.engine import Engine
from arno.core.problem import Problem
from arno.core.serial import Serial


def factory(problem: Problem, *, slowest: int = 3) -> Engine:
    """slowest: how many clients of a round are written to the log."""
    return Timed(problem, slowest)


class Timed(Engine):
    name = "timed"
    equality = "as serial, bit for bit"

    def __init__(self, problem: Problem, slowest: int) -> None:
        self.problem, self.slowest = problem, slowest
        self.inner = Serial(problem)
        self.log: Path | None = None

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        seconds: dict[int, float] = {}
        for work, out in self.inner.train(works):
            seconds |= zip(work.clients.tolist(), out.seconds.tolist(), strict=True)
            yield work, out
        slow = sorted(seconds, key=lambda client: seconds[client], reverse=True)[: self.slowest]
        if self.log is not None and seconds:
            with self.log.open("a") as file:
                file.writelines(f"{work.round + 1},{client},{seconds[client]:.6f}\n" for client in slow)

    def keep_logs(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / "slowest.csv"
        self.log.write_text("round,client,seconds\n")
