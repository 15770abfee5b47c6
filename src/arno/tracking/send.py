"""Send the records of a run to one tracker."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

from ..errors import ArnoError
from ..records import metrics_file
from ..records.damage import damaged
from ..records.folder import RunFolder
from ..records.lock import refuse_links, writing
from .destination import Destination, single
from .tracker import Record

#: Rounds in one batch.
BATCH = 250
#: Seconds between two looks at the file: usually; after the last round, when the run waits for its trackers.
LOOK, LAST_LOOK = 0.25, 0.01
#: Seconds without an answer, after the end of the run, until the sender gives up; the longest pause between attempts.
PATIENCE = 5.0


def send(path: Path, to: str, follow: bool = False, patience: float = PATIENCE) -> int:
    """Send the records of a run that were not sent yet; with `follow`, continue until the run has ended.

    Returns how many rounds were sent. While the run continues, a tracker that fails is tried again without end; after
    that, a tracker that does not answer for `patience` seconds raises ArnoError.
    """
    refuse_links(path)
    sender, parent = Sender(path, single(to)), os.getppid()
    answered, pause = time.monotonic(), LOOK
    lock = sender.destination.file(path, "lock")
    with writing(lock.parent, f"the sender to {to}", lock.name):
        while True:
            running = follow and sender.folder.manifest()["status"] == "running" and os.getppid() == parent
            try:
                wait = sender.step(running)
                if wait is None:
                    return sender.total
                answered, pause = time.monotonic(), wait
            except ArnoError:
                raise
            except Exception as error:  # a tracker may fail in any way
                why = sender.note(error)
                if not running and time.monotonic() - answered > patience:
                    remedy = f"the records stay in {path}; try again later"
                    raise ArnoError(f"{to} does not answer", why, remedy) from error
                pause = min(2 * max(pause, LAST_LOOK), PATIENCE)
            if running:
                answered = time.monotonic()  # patience is for the time after the run
            time.sleep(pause)


class Sender:
    """Reads the records of a run and sends them to a tracker; its state in the run's folder says how far it is.

    state: `sent`, the last round that was sent; `began`, when the run began; `finished`, the status of the run whose
    files were sent; `error`, the last failure; and what the tracker itself keeps.
    total: how many rounds this sender has sent.
    """

    def __init__(self, path: Path, destination: Destination) -> None:
        self.folder, self.destination, self.total = RunFolder.open(path), destination, 0
        self._tracker = destination.tracker
        destination.file(path).parent.mkdir(exist_ok=True)
        self.state = destination.state(path)
        self._rounds = self.folder.config().get("rounds")
        if not isinstance(self._rounds, int):
            raise damaged(path / "config.yaml", "holds no number of rounds", path)
        self._reader, self._elapsed = metrics_file.Reader(path / metrics_file.NAME, self.folder.mark), 0.0
        self._pending: list[Record] = []
        self._connected = False

    def step(self, running: bool) -> float | None:
        """Send a batch; returns the seconds to wait before the next one, None when the run is over and all is sent."""
        if not self._connected:
            self._connect()
        batch = self._next()
        if batch:
            self._tracker.send(batch)
            self.total += len(batch)
            self.state |= {"sent": batch[-1].round, "finished": "", "error": ""}
            self._write()
            self._pending = []
        elif not running:
            self._finish()
            return None
        if len(batch) == BATCH or not running:
            return 0.0
        return LOOK if self.state["sent"] < self._rounds else LAST_LOOK

    def note(self, error: Exception) -> str:
        """Log a failure, once if it repeats; returns it in one line."""
        why = " ".join(str(error).split())[:200] or type(error).__name__
        if self.state.get("error") != why:
            print(f"{datetime.now():%H:%M:%S} {self.destination.name}: {why}", flush=True)
            self.state["error"] = why
            self._write()
        return why

    def _connect(self) -> None:
        self._tracker.open(self.folder, self.state)
        self.state.setdefault("sent", 0)
        self.state.setdefault("began", self._began())
        self._write()
        self._connected = True

    def _next(self) -> list[Record]:
        """Up to `BATCH` records that were not sent yet; the same ones until they are sent."""
        while not self._pending:
            records = [self._record(row) for row in self._reader.rows(BATCH)]
            if not records:
                break
            self._pending = [record for record in records if record.round > self.state["sent"]]
        return self._pending

    def _record(self, row: metrics_file.Row) -> Record:
        self._elapsed += row.get("seconds", 0.0)
        values = {k: float(v) for k, v in row.items() if k != "round" and isinstance(v, int | float)}
        return Record(row["round"], self.state["began"] + self._elapsed, values)

    def _finish(self) -> None:
        """Send the files of a run that has ended, once, and disconnect."""
        status = self.folder.manifest()["status"]
        if status != "running":
            self.folder.rows()  # refuses records that lack rounds
        if status != "running" and self.state.get("finished") != status:
            self._tracker.finish(self.folder, status)
            self.state |= {"finished": status, "error": ""}
        self._tracker.close()
        self._write()

    def _began(self) -> float:
        """When the run began, in seconds since 1970."""
        started = self.folder.manifest().get("started")
        return datetime.fromisoformat(started).timestamp() if started else self.folder.path.stat().st_mtime

    def _write(self) -> None:
        self.destination.write_state(self.folder.path, self.state)
