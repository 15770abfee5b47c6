"""A comparison that is stopped or killed continues, ends in the same table, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from arno import cli
from arno.analysis.comparison import Comparison

ROUNDS = 50
GRID = ("method=fedavg,scaffold", "seed=0..1", f"rounds={ROUNDS}", "clients=10", "local.epochs=3")
GRID += ("participation=0.5", "checkpoint.every=4", "engine=serial", "target=0.8")


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def numbers(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables without the times."""
    found = Comparison.open(folder)
    table = found.table()
    return table.drop(columns=[name for name in table if name.startswith("seconds")]), found.differences()


def status(cell: Path) -> str:
    try:
        return str(json.loads((cell / "manifest.json").read_text())["status"])
    except (OSError, ValueError):
        return ""


def rounds(cell: Path) -> int:
    records = cell / "metrics.jsonl"
    return records.read_text().count("\n") if records.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison that was not stopped."""
    out = tmp_path_factory.mktemp("whole") / "grid"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["compare", *GRID, f"out={out}"])
    return out


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command in another process, as a leader of its own group."""
    started = []

    def go(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "arno", "compare", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.communicate()


def in_the_middle(out: Path) -> Callable[[], bool]:
    """A cell is over, another is well on its way."""

    def check() -> bool:
        cells = list(out.glob("*/"))
        going = [cell for cell in cells if status(cell) == "running" and 6 <= rounds(cell) < ROUNDS - 20]
        return any(status(cell) == "done" for cell in cells) and bool(going)

    return check


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_called_again(number, start, arno, whole, tmp_path):
    out = tmp_path / "grid"
    process = start(*GRID, f"out={out}", "--jobs", "2")
    until(in_the_middle(out))
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert "Traceback" not in said + (out / "log.txt").read_text()
    done = {cell.name for cell in out.glob("*/") if status(cell) == "done"}
    assert 1 <= len(done) < 4
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert said.splitlines()[-1] == "stopped; the same command continues it"
        (stopped, *_) = [cell for cell in out.glob("*/") if status(cell) == "interrupted"]
        saved = sorted((stopped / "checkpoints").glob("[0-9]*.safetensors"))[-1]
        assert int(saved.stem) == rounds(stopped), "nothing is lost"

    again = arno("compare", *GRID, f"out={out}")
    assert again.status == 0, again
    ran = re.findall(r"^\d/4  (\w+) (seed=\d)  done", again.out, re.M)
    assert {f"method={method}+{seed}" for method, seed in ran} == {p.name for p in whole.glob("*/")} - done
    if number != signal.SIGKILL:
        assert re.search(rf"^\w+ seed=\d continues after round {int(saved.stem)} of {ROUNDS}$", again.out, re.M)
        assert json.loads((stopped / "manifest.json").read_text())["resumed_after"] == int(saved.stem)
    for mine, theirs in zip(numbers(out), numbers(whole), strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
    assert not list(out.rglob("*.part"))


def test_a_second_signal_does_not_wait_for_the_round(start, tmp_path):
    """A client of this method trains until it is stopped."""
    (tmp_path / "mine.py").write_text(
        "import time\nfrom arno import Part\n"
        "def factory():\n    return [Slow()]\n"
        "class Slow(Part):\n"
        "    def finish(self, t, v):\n"
        "        open('there', 'w').close()\n"
        "        time.sleep(300)\n"
        "        return v\n"
    )
    process = start("method=custom", "method.target=mine.py:factory", "clients=3", "model=softmax", "out=grid")
    until(lambda: Path("there").exists())
    (worker,) = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not worker.is_running()


def test_a_lost_process_takes_only_its_cell_along(arno):
    Path("mine.py").write_text("import os\ndef factory():\n    print('oh')\n    os.kill(os.getpid(), 9)\n")
    grid = ("method=custom,fedavg", "custom.target=mine.py:factory", "clients=3", "rounds=2", "model=softmax")
    said = arno("compare", *grid, "seed=0..1", "out=grid", "--jobs", "1")
    assert said.status == 1
    for seed in (0, 1):
        assert f"failed: custom seed={seed}: its process ended (killed by SIGKILL)" in said.out
    table = Comparison.open("grid").table().set_index("name")
    assert (table.loc["fedavg", "seeds"], table.loc["custom", "failed"]) == (2, 2)
    again = arno("compare", *grid, "seed=0..1", "out=grid", "--jobs", "1")
    assert not re.findall(r"^\d/4", again.out, re.M), "failed cells wait for --retry"
    assert again.status == 1


def test_a_worker_whose_reader_was_killed_ends_without_a_traceback():
    code = "import os; from arno.grids.processes import report; r, w = os.pipe(); os.close(r); report(open(w, 'w'), {})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
