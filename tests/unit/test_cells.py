"""The loop over cells: at most so many at a time, lost workers, the signals of the user."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arno.grids.cells import Ended, Lost, Moved, Outcome, Workers, run_cells

Event = Moved | Ended | Lost


class Script(Workers):
    """Workers without a process. `answers` holds the events of a cell, one list for each time that it is given."""

    tries = 3

    def __init__(self, answers: dict[int, list[list[Event]]]) -> None:
        self.answers, self.queue = answers, list[Event]()
        self.given, self.running, self.most = list[int](), set[int](), 0
        self.jobs, self.stops, self.closed = 0, list[int](), 0

    def room(self, config: dict[str, Any]) -> int:
        return 2

    def start(self, jobs: int) -> None:
        self.jobs = jobs

    def free(self) -> int:
        return self.jobs - len(self.running)

    def give(self, cell: int, config: dict[str, Any]) -> None:
        assert Path(config["out"]).name == str(cell)
        self.given.append(cell)
        self.running.add(cell)
        self.most = max(self.most, len(self.running))
        self.queue += self.answers[cell].pop(0)

    def wait(self) -> Sequence[Event]:
        event = self.queue.pop(0)
        if not isinstance(event, Moved):
            self.running.remove(event.cell)
        return [event]

    def stop(self, times: int) -> None:
        self.stops.append(times)

    def close(self) -> None:
        self.closed += 1


class Notes:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def began(self, cell: int) -> None:
        self.told.append(("began", cell))

    def moved(self, cell: int, rounds: int, total: int) -> None:
        self.told.append(("moved", cell, rounds, total))

    def ended(self, cell: int, outcome: Outcome) -> None:
        self.told.append(("ended", cell, outcome))


def configs(folder: Path, n: int) -> list[dict[str, Any]]:
    return [{"out": str(folder / str(i))} for i in range(n)]


def done(cell: int) -> list[list[Event]]:
    return [[Moved(cell, 1, 2), Ended(cell, Outcome())]]


@pytest.mark.parametrize(("jobs", "most"), [(1, 1), (3, 3), (None, 2), (9, 5)])
def test_every_cell_runs_once_and_only_so_many_at_a_time(tmp_path, jobs, most):
    workers, notes = Script({i: done(i) for i in range(5)}), Notes()
    assert run_cells(configs(tmp_path, 5), workers, jobs, notes)
    assert workers.given == list(range(5))
    assert workers.most == workers.jobs == most
    assert workers.closed == 0  # the caller closes them: they may run more cells
    assert Counter(word for word, *_ in notes.told) == {"began": 5, "moved": 5, "ended": 5}


def test_a_cell_that_loses_its_worker_is_given_again_at_most_three_times(tmp_path):
    lost = [[Lost(0, "its worker was lost")]] * 3
    workers, notes = Script({0: [*lost], 1: [[Lost(1, "gone")], *done(1)]}), Notes()
    assert run_cells(configs(tmp_path, 2), workers, 1, notes)
    assert workers.given == [0, 0, 0, 1, 1]
    assert [told for told in notes.told if told[0] == "began"] == [("began", 0), ("began", 1)]
    ended = {cell: outcome for word, cell, outcome in (t for t in notes.told if t[0] == "ended")}
    assert ended == {0: Outcome("its worker was lost, 3 times"), 1: Outcome()}
    record = json.loads((tmp_path / "0" / "failure.json").read_text())
    assert (record["reason"], record["diverged"]) == ("its worker was lost, 3 times", False)
    assert not (tmp_path / "1").exists()


def test_after_a_signal_nothing_is_given_and_what_runs_may_end(tmp_path):
    class Stopped(Script):
        def wait(self) -> Sequence[Event]:
            if not self.stops:
                os.kill(os.getpid(), signal.SIGINT)
            return super().wait()

    workers = Stopped({0: done(0), 1: [[Lost(1, "its process ended")]], 2: done(2)})
    notes, before = Notes(), signal.getsignal(signal.SIGINT)
    assert not run_cells(configs(tmp_path, 3), workers, 2, notes)
    assert (workers.given, workers.stops, workers.closed) == ([0, 1], [1], 0)
    assert notes.told[-1] == ("ended", 1, Outcome("interrupted", interrupted=True))
    assert not (tmp_path / "1").exists(), "it has not failed"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_ends_the_loop_and_an_error_leaves_it(tmp_path):
    class Raises(Script):
        error: BaseException = KeyboardInterrupt()

        def wait(self) -> Sequence[Event]:
            raise self.error

    workers = Raises({0: done(0)})
    assert not run_cells(configs(tmp_path, 1), workers, 1, Notes())
    assert workers.closed == 0  # the caller closes them: they may run more cells
    workers = Raises({0: done(0)})
    workers.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        run_cells(configs(tmp_path, 1), workers, 1, Notes())
    assert workers.closed == 0  # the caller closes them: they may run more cells
