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
#: Seconds between two readings of the file; the second number is used after the last round, because the run waits.
LOOK, LAST_LOOK = 0.25, 0.01
#: After the end of the run: the seconds without an answer until the sender stops. Also the longest pause between tries.
PATIENCE = 5.0


def send(path: Path, to: str, follow: bool = False, patience: float = PATIENCE) -> int:
    """Send the records of a run that were not sent yet; with `follow`, continue until the run has ended.

    Returns how many rounds were sent. While the run continues, sending to a tracker that fails is tried again without
    limit. After the end of the run, an error is raised if the tracker does not answer for `patience` seconds.
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
                answered = time.monotonic()  # the limit `patience` counts from the end of the run
            time.sleep(pause)


class Sender:
    """Reads the records of a run and sends them to a tracker. Its state is in a file in the folder of the run.

    state: `sent`: the last round that was sent; `began`: when the run began; `finished`: the status of the run when its
        files were sent; `error`: the last failure; and values that the tracker itself stores.
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
        """Send a batch. Return the seconds to wait before the next batch; None if the run has ended and all is sent."""
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
        """Log a failure, but only once if it repeats; return it on one line."""
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
        """Up to `BATCH` records that were not sent yet. Until they are sent, the same records are returned again."""
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
