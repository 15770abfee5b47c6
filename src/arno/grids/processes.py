"""Runs cells in processes on this machine.

The parent writes the configuration of a cell as a line of JSON to the standard input of a process. The process answers
on its standard output with lines of JSON: `{"rounds": [done, total]}` while the cell runs, `{"outcome": […]}` at its
end. The line `null` ends the process. The process also exits when its input ends, even during a cell, so that no
process remains after the parent was killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, TextIO

from ..core.metric import Metric
from ..runs.progress import Quiet
from .cells import Config, Ended, Lost, Moved, Outcome, Workers, run_cell

#: Settings of engines that say how many cores a cell takes.
CORES = ("cores", "workers", "threads")
#: Seconds between two messages about the rounds of a cell.
PAUSE = 0.1


class Processes(Workers):
    """Processes on this machine. Their output goes to the file `log`. If a process is lost, only its cell fails."""

    def __init__(self, log: Path) -> None:
        self._log, self._jobs, self._stopped = log, 0, 0
        self._messages: SimpleQueue[tuple[Process, Any]] = SimpleQueue()
        self._processes: list[Process] = []

    def room(self, config: Config) -> int:
        """How many cells can run at the same time on the cores of this machine."""
        cores = os.cpu_count() or 1
        taken = next((config["engine"][name] or cores for name in CORES if name in config["engine"]), 1)
        return max(cores // taken, 1)

    def start(self, jobs: int) -> None:
        """Do nothing: a process starts when it gets its first cell."""
        self._jobs = jobs

    def free(self) -> int:
        """How many processes have no cell."""
        return self._jobs - sum(process.cell is not None for process in self._processes)

    def give(self, cell: int, config: Config) -> None:
        """Run a cell in a process without a cell, or in a new one."""
        process = next((process for process in self._processes if process.cell is None), None)
        if process is None:
            process = Process(self._log, self._messages)
            self._processes.append(process)
        process.give(cell, config)
        if self._stopped:  # the signal arrived while the process was started
            process.signal(self._stopped)

    def wait(self) -> Sequence[Moved | Ended | Lost]:
        """The next message of a process."""
        process, message = self._messages.get()
        cell = process.cell
        if message is None:
            self._processes.remove(process)
            reason = f"its process ended ({process.close()})"
            return [] if cell is None else [Lost(cell, reason)]
        assert cell is not None
        if "rounds" in message:
            return [Moved(cell, *message["rounds"])]
        process.cell = None
        return [Ended(cell, Outcome(*message["outcome"]))]

    def stop(self, times: int) -> None:
        """First call: rounds end and runs are saved. Second call: runs stop at once.

        Third call: processes are killed.
        """
        self._stopped = times
        for process in self._processes:
            process.signal(times)

    def close(self) -> None:
        """End the processes that have no cell, and kill the others."""
        for process in self._processes:
            if process.cell is None:
                process.give(None, None)
            else:
                process.signal(3)
        for process in self._processes:
            process.close()
        self._processes = []


class Process:
    """A process that runs one cell after another, in a separate session, so that Ctrl-C does not reach it."""

    def __init__(self, log: Path, messages: SimpleQueue[tuple[Process, Any]]) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "arno.grids.processes"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths},
            )
        self.cell: int | None = None
        self._reader = threading.Thread(target=self._read, args=(messages,), daemon=True)
        self._reader.start()

    def give(self, cell: int | None, config: Config | None) -> None:
        """Run a cell; None ends the process. If the process has ended, the queue of messages reports it."""
        self.cell = cell
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(config) + "\n")
            self._process.stdin.flush()

    def signal(self, times: int) -> None:
        """Send SIGTERM the first two times, then SIGKILL. A suspended process gets SIGCONT, too, so that it can end."""
        if times < 3:
            self._process.terminate()
            if sys.platform != "win32":
                self._process.send_signal(signal.SIGCONT)
        else:
            self._process.kill()

    def close(self) -> str:
        """Wait until the process has ended; return how it ended."""
        status = self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def _read(self, messages: SimpleQueue[tuple[Process, Any]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            messages.put((self, json.loads(line)))
        messages.put((self, None))


class Rounds(Quiet):
    """Sends the number of finished rounds as messages, at most one message per `PAUSE`."""

    def __init__(self, messages: TextIO) -> None:
        self._messages, self._total, self._last = messages, 0, 0.0

    def start(self, title: str, rounds: int, done: int, metrics: Sequence[Metric] = ()) -> None:
        """Keep the number of rounds."""
        self._total = rounds

    def round(self, row: dict[str, Any]) -> None:
        """Report the round."""
        if monotonic() - self._last > PAUSE:
            self._last = monotonic()
            report(self._messages, {"rounds": [row["round"], self._total]})


def report(messages: TextIO, message: dict[str, Any]) -> None:
    """Send a message. If the process that reads the messages was killed, this process ends at once."""
    try:
        print(json.dumps(message), file=messages, flush=True)
    except BrokenPipeError:
        os._exit(1)


def main() -> None:
    """The program of a process: run one cell after another until the line `null`."""
    messages = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of a cell must not be mixed with the messages
    cells: SimpleQueue[Config | None] = SimpleQueue()

    def read() -> None:
        with os.fdopen(os.dup(0)) as lines:
            for line in lines:
                cells.put(json.loads(line))
                if line.strip() == "null":
                    return
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    for config in iter(cells.get, None):
        outcome = run_cell(config, Rounds(messages))
        report(messages, {"outcome": outcome})


if __name__ == "__main__":
    main()
