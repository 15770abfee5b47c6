"""Where the cells of a comparison run: here, in processes of their own, some at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TextIO

from .worker import Outcome, record_failure

Config = dict[str, Any]


class Watcher(Protocol):
    """Told of every cell, by its place among those that are to run."""

    def began(self, cell: int) -> None:
        """It runs."""
        ...

    def moved(self, cell: int, rounds: int, total: int) -> None:
        """So many of its rounds are done."""
        ...

    def ended(self, cell: int, outcome: Outcome) -> None:
        """It is over."""
        ...


#: Runs cells of these whole configurations, at most so many at a time; false if some were stopped before their end.
Runner = Callable[[Sequence[Config], int, Watcher], bool]


class Worker:
    """A process that runs one cell after another, out of reach of the terminal's Ctrl-C."""

    def __init__(self, log: TextIO, heard: SimpleQueue[tuple[Worker, Any]]) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "arno.grids.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.cell: int | None = None
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def give(self, cell: int | None, config: Config | None) -> None:
        """A cell, or None to end; whether it has died meanwhile one hears."""
        self.cell = cell
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(config) + "\n")
            self.process.stdin.flush()

    def close(self) -> int:
        """Wait for its end; returns the exit status."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        return self.process.wait()

    def _listen(self, heard: SimpleQueue[tuple[Worker, Any]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            heard.put((self, json.loads(line)))
        heard.put((self, None))


def local(log: Path) -> Runner:
    """Processes on this machine; what they print goes to the log. A process that is lost takes only its cell along."""

    def run(configs: Sequence[Config], jobs: int, watcher: Watcher) -> bool:
        waiting, whole = list(range(len(configs)))[::-1], True
        heard: SimpleQueue[tuple[Worker, Any]] = SimpleQueue()
        crew: list[Worker] = []

        def give(worker: Worker) -> None:
            if not waiting or stopped:
                worker.give(None, None)
                return
            cell = waiting.pop()
            watcher.began(cell)
            worker.give(cell, configs[cell])

        with log.open("a") as file, _signals(crew) as stopped:
            try:
                for _ in range(min(jobs, len(configs))):
                    crew.append(Worker(file, heard))
                    give(crew[-1])
                while crew:
                    worker, said = heard.get()
                    if said is not None and "rounds" in said:
                        watcher.moved(worker.cell or 0, *said["rounds"])
                        continue
                    cell = worker.cell
                    if said is not None:
                        outcome = Outcome(*said["outcome"])
                    else:
                        crew.remove(worker)
                        outcome = _lost(worker.close(), bool(stopped))
                    if cell is not None:
                        whole = whole and not outcome.interrupted
                        if said is None and not outcome.interrupted:
                            record_failure(configs[cell], outcome)
                        watcher.ended(cell, outcome)
                    if said is None and waiting and not stopped:
                        crew.append(worker := Worker(file, heard))
                    if worker in crew:
                        give(worker)
            finally:
                for worker in crew:
                    worker.process.kill()
                    worker.process.wait()
        return whole and not waiting

    return run


def _lost(status: int, stopped: bool) -> Outcome:
    if stopped:
        return Outcome("interrupted", interrupted=True)
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return Outcome(f"its process ended ({how})")


@contextmanager
def _signals(crew: Sequence[Worker]) -> Iterator[list[int]]:
    """Hand the first Ctrl-C or SIGTERM on (rounds end, runs are saved), the second too (at once); the third kills."""
    seen: list[int] = []

    def on_signal(number: int, frame: Any) -> None:
        seen.append(number)
        for worker in crew:
            if len(seen) < 3:
                worker.process.terminate()
            else:
                worker.process.kill()

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
