"""Runs the cells of a grid: one loop for workers on this machine and on a cluster.

A cell is one run. `Workers` is the interface to the workers; `processes` implements it with processes of this machine,
`this_process` with the process itself, `cluster` with the actors of a Ray cluster.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar, NamedTuple, Protocol

from ..analysis.comparison import FAILURE
from ..errors import ArnoError, Busy, Diverged, described
from ..records import checksummed, disk
from ..records.folder import RunFolder
from ..runs.progress import Progress
from ..runs.signals import stop_signals
from ..runs.trust import targets

#: The resolved configuration of a cell; `out` is its folder. After the round `until`, if it is given, the cell is saved
#: and stops: the search for settings continues only the best trials.
Config = dict[str, Any]
#: Seconds to wait if another process still writes into the folder of a cell: a worker of a comparison that was killed.
PATIENCE = 20.0


class Outcome(NamedTuple):
    """How a cell ended.

    reason: why it has no result; empty if it has one.
    diverged: whether the reason is that its numbers are not finite.
    interrupted: whether the user stopped it; the same command continues it.
    """

    reason: str = ""
    diverged: bool = False
    interrupted: bool = False


class Moved(NamedTuple):
    """A cell has finished `rounds` of its `total` rounds."""

    cell: int
    rounds: int
    total: int


class Ended(NamedTuple):
    """A cell has ended."""

    cell: int
    outcome: Outcome


class Lost(NamedTuple):
    """The worker of a cell ended before the cell did."""

    cell: int
    reason: str


class Workers(ABC):
    """Workers that run one cell each at a time. The number of a cell is its position in the list of cells to run.

    tries: how often a cell may lose its worker until it counts as failed.
    """

    tries: ClassVar[int] = 1

    @abstractmethod
    def room(self, config: Config) -> int:
        """How many cells like this one can run at the same time."""

    @abstractmethod
    def start(self, jobs: int) -> None:
        """Prepare `jobs` workers."""

    @abstractmethod
    def free(self) -> int:
        """How many workers are free."""

    @abstractmethod
    def give(self, cell: int, config: Config) -> None:
        """Run a cell on a free worker."""

    @abstractmethod
    def wait(self) -> Sequence[Moved | Ended | Lost]:
        """Wait for messages of the workers. The list may be empty, for example if a worker has become free."""

    @abstractmethod
    def stop(self, times: int) -> None:
        """Stop: the user has asked for it, `times` times so far. A signal handler may call this method."""

    @abstractmethod
    def close(self) -> None:
        """End all workers, even if they run a cell."""


class Watcher(Protocol):
    """Receives the events of the cells: a cell began, has finished rounds, or has ended."""

    def began(self, cell: int) -> None:
        """The cell has begun to run."""
        ...

    def moved(self, cell: int, rounds: int, total: int) -> None:
        """`rounds` of its `total` rounds are done."""
        ...

    def ended(self, cell: int, outcome: Outcome) -> None:
        """The cell has ended."""
        ...


def run_cells(configs: Sequence[Config], workers: Workers, jobs: int | None, watcher: Watcher) -> bool:
    """Run the cells of these configurations, at most `jobs` at a time; false if the user stopped some of them.

    The workers are not closed, so that they can run more cells.
    """
    try:
        workers.start(min(jobs or workers.room(configs[0]), len(configs)))
        with stop_signals(workers.stop) as stopped:  # after the start, because Ray installs its own handler
            return _loop(configs, workers, watcher, stopped)
    except KeyboardInterrupt:
        return False


def _loop(configs: Sequence[Config], workers: Workers, watcher: Watcher, stopped: Sequence[int]) -> bool:
    waiting, running = deque(range(len(configs))), set[int]()
    losses, whole = Counter[int](), True
    while running or (waiting and not stopped):
        while waiting and not stopped and workers.free():
            cell = waiting.popleft()
            running.add(cell)
            if not losses[cell]:
                watcher.began(cell)
            workers.give(cell, configs[cell])
        for event in workers.wait():
            if isinstance(event, Moved):
                watcher.moved(*event)
                continue
            running.remove(event.cell)
            if isinstance(event, Ended):
                outcome = event.outcome
            elif stopped:
                outcome = Outcome("interrupted", interrupted=True)
            else:
                losses[event.cell] += 1
                if losses[event.cell] < workers.tries:
                    waiting.appendleft(event.cell)
                    continue
                outcome = Outcome(event.reason + (f", {workers.tries} times" if workers.tries > 1 else ""))
                record_failure(configs[event.cell], outcome)
            whole = whole and not outcome.interrupted
            watcher.ended(event.cell, outcome)
    return whole and not waiting


def run_cell(config: Config, progress: Progress) -> Outcome:
    """Run or continue one cell in its folder, in this process. A failure is recorded in this folder."""
    from ..runs.run import Interrupted

    path, end = Path(config["out"]), monotonic() + PATIENCE
    try:
        while not _begun(config, progress, wait=monotonic() < end):
            sleep(0.1)
    except (Interrupted, KeyboardInterrupt):
        return Outcome("interrupted", interrupted=True)
    except ArnoError as error:
        outcome = Outcome(str(error), isinstance(error, Diverged))
    except (Exception, SystemExit) as error:  # a user's own method can raise any exception; the other cells continue
        with suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            with (path / "log.txt").open("a") as log:
                log.write(traceback.format_exc())
        outcome = Outcome(f"{described(error)} (see {path / 'log.txt'})")
    else:
        return Outcome()
    record_failure(config, outcome)
    return outcome


def _begun(config: Config, progress: Progress, wait: bool) -> bool:
    """Run or continue a cell; false if another process still writes into its folder, so that this process must wait."""
    from ..runs.run import execute, resume

    path, until = Path(config["out"]), config.get("until")
    try:
        if (path / "manifest.json").exists() or RunFolder(path).saved():
            resume(path, progress=progress, pictures=False, allowed=targets(config), until=until)
        else:
            plain = {key: value for key, value in config.items() if key != "until"}
            execute(plain, progress, pictures=False, until=until)
    except Busy:
        if not wait:
            raise
        return False
    return True


def record_failure(config: Config, outcome: Outcome) -> None:
    """Write into the cell's folder why the cell failed; the cell is then run again only on request."""
    path = Path(config["out"])
    settings = {key: value for key, value in config.items() if key != "until"}
    record = {"reason": outcome.reason, "diverged": outcome.diverged, "config": settings}
    with suppress(OSError):  # without the file the cell runs again
        path.mkdir(parents=True, exist_ok=True)
        disk.write(path / FAILURE, checksummed.text(record).encode())
