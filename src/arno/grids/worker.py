"""A process that runs cells of a comparison: a line of JSON in for each cell, lines of JSON out as it goes on.

It ends when its input does, at once and in the middle of a cell: then whoever asked is gone, and nobody is left behind.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TextIO

from ..analysis.comparison import FAILURE
from ..core.metric import Metric
from ..errors import ArnoError, Diverged
from ..runs.progress import Progress, Quiet

PAUSE = 0.1  # seconds between two words on a cell that goes on


class Outcome(NamedTuple):
    """How a cell ended: with a result if there is no reason to say otherwise."""

    reason: str = ""
    diverged: bool = False
    interrupted: bool = False


def run_cell(config: dict[str, Any], progress: Progress) -> Outcome:
    """Run or continue the cell of this configuration in its folder; what went wrong is recorded there."""
    from ..runs.run import Interrupted, execute, resume

    path = Path(config["out"])
    try:
        if (path / "manifest.json").exists():
            resume(path, progress=progress, pictures=False)
        else:
            execute(config, progress, pictures=False)
    except (Interrupted, KeyboardInterrupt):
        return Outcome("interrupted", interrupted=True)
    except ArnoError as error:
        outcome = Outcome(str(error), isinstance(error, Diverged))
    except Exception as error:  # a user's own method may fail in any way; the other cells go on
        path.mkdir(parents=True, exist_ok=True)
        with (path / "log.txt").open("a") as log:
            log.write(traceback.format_exc())
        outcome = Outcome(f"{type(error).__name__}: {error} (see {path / 'log.txt'})")
    else:
        return Outcome()
    record_failure(config, outcome)
    return outcome


def record_failure(config: dict[str, Any], outcome: Outcome) -> None:
    """Leave a word in the cell's folder, so that it is not run again unasked."""
    path = Path(config["out"])
    path.mkdir(parents=True, exist_ok=True)
    record = {"reason": outcome.reason, "diverged": outcome.diverged, "config": config}
    (path / f"{FAILURE}.part").write_text(json.dumps(record, indent=2) + "\n")
    (path / f"{FAILURE}.part").replace(path / FAILURE)


class Told(Quiet):
    """Says now and then how many rounds of a cell are done."""

    def __init__(self, events: TextIO) -> None:
        self.events, self.total, self.last = events, 0, 0.0

    def start(self, title: str, rounds: int, done: int, metrics: Sequence[Metric] = ()) -> None:
        """Note how many there are."""
        self.total = rounds

    def round(self, row: dict[str, Any]) -> None:
        """Say it, if it was not said a moment ago."""
        if monotonic() - self.last > PAUSE:
            self.last = monotonic()
            print(json.dumps({"rounds": [row["round"], self.total]}), file=self.events, flush=True)


def main() -> None:
    """Run cell after cell until the input says null."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a cell prints is no event
    cells: SimpleQueue[dict[str, Any] | None] = SimpleQueue()

    def listen() -> None:
        with os.fdopen(os.dup(0)) as given:
            for line in given:
                cells.put(json.loads(line))
                if line.strip() == "null":
                    return
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    for config in iter(cells.get, None):
        outcome = run_cell(config, Told(events))
        print(json.dumps({"outcome": outcome}), file=events, flush=True)


if __name__ == "__main__":
    main()
