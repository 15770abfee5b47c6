"""Runs cells in this process, one after another, for data and networks that only this process has."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ArnoError
from ..runs.progress import Quiet
from .cells import Config, Ended, Lost, Moved, Workers, run_cell


class ThisProcess(Workers):
    """This process as the only worker. A cell runs while the loop waits for it."""

    def __init__(self) -> None:
        self._given: list[tuple[int, Config]] = []

    def room(self, config: Config) -> int:
        """One cell at a time."""
        return 1

    def start(self, jobs: int) -> None:
        """Refuse more than one cell at a time."""
        if jobs > 1:
            rule = "data and networks that are Python objects train in this process, one cell at a time"
            raise ArnoError(
                f"jobs = {jobs}", rule, "leave out jobs=, or write the data to a file: arno.Data(…, path=…)"
            )

    def free(self) -> int:
        """1 if no cell waits, otherwise 0."""
        return 1 - len(self._given)

    def give(self, cell: int, config: Config) -> None:
        """Keep the cell until `wait`."""
        self._given.append((cell, config))

    def wait(self) -> Sequence[Moved | Ended | Lost]:
        """Run the cell. The first Ctrl-C lets the current round end and saves the run, as in a single run."""
        cell, config = self._given.pop()
        outcome = run_cell(config, Quiet())
        if outcome.interrupted:
            raise KeyboardInterrupt
        return [Ended(cell, outcome)]

    def stop(self, times: int) -> None:
        """Leave the loop. This is called between two cells."""
        raise KeyboardInterrupt

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
