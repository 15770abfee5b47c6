"""The processes that send a run's records to its trackers while the run continues."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .destination import Destination, asked

__all__ = ["Tracking", "asked"]

#: Seconds that a run waits at its end for a server, and for files. Afterwards, the sender continues without the run.
WAIT_SERVER, WAIT_FILES = 5.0, 60.0


class Tracking:
    """The senders of one run: one process for each tracker."""

    def __init__(self, path: Path, track: Any) -> None:
        self.path = path
        self._senders = [(to, self._start(to)) for to in asked(track)]

    def finish(self) -> list[str]:
        """After the end of the run: wait some time for the senders; return messages about records not sent yet."""
        began = time.monotonic()
        return [line for to, process in self._senders for line in self._wait(to, process, began)]

    def _start(self, to: Destination) -> subprocess.Popen[bytes]:
        log = to.file(self.path, "log")
        log.parent.mkdir(exist_ok=True)
        if before := to.state(self.path):
            to.write_state(self.path, before | {"finished": ""})  # the run is resumed
        with log.open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "arno", "track", str(self.path), "--to", to.word, "--follow"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([_source(), os.environ.get("PYTHONPATH", "")])},
            )

    def _wait(self, to: Destination, process: subprocess.Popen[bytes], began: float) -> list[str]:
        end = began + (WAIT_SERVER if to.tracker.remote else WAIT_FILES)
        while process.poll() is None and time.monotonic() < end and not self._sent(to):
            time.sleep(0.02)
        later = f"`arno track {self.path} --to {to.word}` sends the rest"
        if process.returncode is None:
            process.returncode = 0  # the process continues alone; without this, Popen warns about it
            if self._sent(to):
                return []
            return [f"records are still being sent to {to.name} in the background; if this fails, {later}"]
        if process.returncode:
            why = to.state(self.path).get("error") or f"see {to.file(self.path, 'log')}"
            return [f"{to.name} did not receive all records ({why}); no record is lost: {later}"]
        return []

    def _sent(self, to: Destination) -> bool:
        """Whether a tracker has all records and files of the run."""
        return bool(to.state(self.path).get("finished"))


def _source() -> str:
    """The folder from which Arno was imported."""
    return str(Path(__file__).parents[2])
