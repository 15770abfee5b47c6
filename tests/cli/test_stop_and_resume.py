"""Runs that are stopped, killed or starved of disk go on as if nothing had happened, to the bit."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from arno import cli

#: About a second of rounds, a checkpoint every other one.
ROUNDS = 30
LONG = (f"rounds={ROUNDS}", "clients=10", "local.epochs=3", "checkpoint.every=2", "seed=3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was not stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["run", *LONG, f"out={out}", "--quiet"])
    return out


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def rounds(run: Path) -> int:
    records = run / "metrics.jsonl"
    return records.read_text().count("\n") if records.exists() else 0


def status(run: Path) -> str:
    return str(json.loads((run / "manifest.json").read_text())["status"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_round_saves_and_can_be_resumed(number, arno, whole, same_run, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "arno", "run", *LONG, f"out={out}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: rounds(out) >= 5)
    process.send_signal(number)
    said, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1].endswith(f"continue with: arno resume {out}")
    assert "Traceback" not in said + error
    assert status(out) == "interrupted"
    done = rounds(out)
    assert 5 <= done < ROUNDS
    assert f"{done:08d}" in {p.stem for p in (out / "checkpoints").glob("[0-9]*.safetensors")}, "nothing is lost"
    assert arno("resume", out).folder == out
    assert status(out) == "done"
    same_run(whole, out)


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """Runs the command in another process that has torch at hand; returns its id."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["arno.cli", "arno.runs.run", "arno.engines.serial", "pyarrow.parquet"])
    started = []

    def go(*arguments: object) -> int:
        process = context.Process(target=cli.main, args=([str(a) for a in arguments],))
        process.start()
        started.append(process)
        assert process.pid is not None
        return process.pid

    go.processes = started  # type: ignore[attr-defined]
    yield go
    for process in started:
        process.kill()
        process.join()
        process.close()


@pytest.mark.parametrize("attempt", range(6))
def test_killed_at_a_random_moment_and_resumed(attempt, start, arno, whole, same_run, tmp_path):
    out = tmp_path / "run"
    pid = start("run", *LONG, f"out={out}", "--quiet")
    until(lambda: (out / "manifest.json").exists())
    moment = random.random() * (1 if attempt % 2 else 0.2)
    wanted = int(moment * ROUNDS)
    until(lambda: rounds(out) >= wanted)
    time.sleep(random.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
    start.processes[-1].join()
    print(f"killed after {rounds(out)} rounds")
    if (out / "final.safetensors").exists():
        pytest.skip("it was over before the kill")
    assert status(out) == "running", "the manifest was not updated"
    arno("resume", out)
    same_run(whole, out)
    assert not list(out.rglob("*.part"))


def test_killed_twice(start, arno, whole, same_run, tmp_path):
    out = tmp_path / "run"
    for command, wanted in ((("run", *LONG, f"out={out}", "--quiet"), 7), (("resume", out, "--quiet"), 19)):
        pid = start(*command)
        until(lambda wanted=wanted: rounds(out) >= wanted)
        os.kill(pid, signal.SIGKILL)
        start.processes[-1].join()
    arno("resume", out)
    same_run(whole, out)


#: A run whose files may not grow beyond a size: that of `metrics.jsonl` is the first one to reach it.
SMALL_DISK = """
import resource, sys
from arno import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
cli.main(sys.argv[2:])
"""


def test_full_disk(arno, same_run, tmp_path):
    """Attack: a full disk, which left the manifest at "running"."""
    words = ("rounds=150", "clients=4", "model=softmax", "data.limit=200", "checkpoint.every=7", "engine=serial")
    out = tmp_path / "run"
    command = [sys.executable, "-c", SMALL_DISK, "24000", "run", *words, f"out={out}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: cannot write {out / 'metrics.jsonl'}: File too large")
    assert status(out) == "failed"
    assert 7 < rounds(out) < 150
    assert arno("resume", out).status == 0
    assert status(out) == "done"
    same_run(arno("run", *words, f"out={tmp_path / 'whole'}").folder, out)


def test_full_disk_at_the_end_of_a_run(arno, small, monkeypatch):
    """There is no room for a second manifest: the copy of the one before gives way."""
    from arno.core.federation import Federation
    from arno.records import disk

    plain, write = Federation.round, disk.write

    def fails(self):
        if self.t == 2:
            monkeypatch.setattr(disk, "write", full)
        return plain(self)

    def full(path, data, sync=False):
        if path.name.startswith("manifest.json") and (path.parent / "manifest.json.previous").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data, sync)

    monkeypatch.setattr(Federation, "round", fails)
    said = arno("run", *small, "out=run")
    assert said.status == 2
    assert said.error.startswith("error: cannot write run/manifest.json: No space left on device")
    assert status(Path("run")) == "failed"
    monkeypatch.setattr(Federation, "round", plain)
    monkeypatch.setattr(disk, "write", write)
    assert arno("resume", "run").status == 0
    assert status(Path("run")) == "done"


def test_a_second_signal_stops_at_once(arno, small, monkeypatch):
    """The first lets the round end; the second, in the same round, does not wait for that."""
    from arno.core.federation import Federation

    plain = Federation.round

    def impatient(self):
        if self.t == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return plain(self)

    monkeypatch.setattr(Federation, "round", impatient)
    said = arno("run", *small, "out=run")
    assert said.status == 130
    assert "stopped at once" in said.err
    assert rounds(Path("run")) == 2
    assert status(Path("run")) == "interrupted"


def test_more_rounds_later_are_the_same_as_at_once(arno, small, same_run):
    whole = arno("run", *small, "rounds=7", "out=a").folder
    arno("run", *small, "rounds=3", "out=b")
    more = arno("resume", "b", "rounds=7").folder
    same_run(whole, more)
    again = arno("run", "--config", more / "config.yaml", "out=c").folder
    same_run(whole, again)


def test_resuming_a_finished_run_changes_nothing(arno, small, same_run):
    arno("run", *small, "out=a")
    arno("run", *small, "out=b")
    same_run(Path("a"), arno("resume", "b").folder)


def test_only_what_does_not_matter_may_change(arno, small):
    arno("run", *small, "out=run")
    before = (Path("run") / "final.safetensors").read_bytes()
    for change in ("local.lr=0.1", "seed=1", "method=fedprox", "clients=6", "partition.alpha=1"):
        error = arno("resume", "run", "rounds=6", change).error
        assert change.split("=")[0] in error
        assert "only rounds, eval, checkpoint, track, out, state, on_client_error, engine" in error
    assert (Path("run") / "final.safetensors").read_bytes() == before
    assert arno("resume", "run", "rounds=5", "eval.every=2", "checkpoint.keep=1").status == 0


def test_fewer_rounds_than_are_done_are_refused(arno, small):
    run = arno("run", *small, "out=run").folder
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    error = arno("resume", "run", "rounds=3").error
    assert "rounds = 3: 4 rounds are finished, and finished rounds cannot be removed; try rounds=14" in error
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert arno("resume", "run", "rounds=4").status == 0


def test_changed_data_are_refused(arno, small):
    import numpy as np

    random = np.random.default_rng(0)
    x, y = random.normal(size=(200, 6)), random.integers(3, size=200)
    np.savez("mine.npz", x=x, y=y)
    arno("run", *small, "data=npz", "data.path=mine.npz", "out=run")
    x[7, 2] += 1
    np.savez("mine.npz", x=x, y=y)
    assert "changed since the run began" in arno("resume", "run", "rounds=6").error


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(arno, small, same_run):
    whole = arno("run", *small, "rounds=6", "out=a").folder
    run = arno("run", *small, "out=b").folder
    last = run / "checkpoints" / "00000004.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    said = arno("resume", run, "rounds=6")
    assert f"warning: {last} cannot be read" in said.out
    assert "the run continues from the previous checkpoint" in said.out
    same_run(whole, said.folder)


def test_no_earlier_checkpoint(arno, small):
    arno("run", *small, "checkpoint.every=0", "out=run")
    assert "no checkpoint before the last one" in arno("resume", "run", "--previous").error


def test_a_folder_that_is_no_run(arno, tmp_path):
    assert "is no run" in arno("resume", tmp_path).error
    assert "is no run" in arno("resume", tmp_path / "nowhere").error
    assert "give the run's folder" in arno("resume").error


def test_a_run_is_not_written_over(arno, small):
    arno("run", *small, "out=run")
    error = arno("run", *small, "out=run").error
    assert "holds a run already" in error
    assert "arno resume run" in error


def test_a_full_disk_while_checkpointing_loses_nothing(arno, same_run):
    settings = ("clients=5", "model=mlp", "checkpoint.every=2")
    whole = arno("run", *settings, "rounds=8", "out=a").folder
    run = arno("run", *settings, "rounds=4", "out=b").folder
    kept = {p.name: p.read_bytes() for p in (run / "checkpoints").glob("[0-9]*.safetensors")}
    code = (
        "import resource\nfrom arno.cli import main\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))\n"  # a checkpoint has 80 kB
        "main(['resume', 'b', 'rounds=8'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot write" in done.stderr
    assert "free some space" in done.stderr
    assert "intact" in done.stderr
    assert kept == {p.name: p.read_bytes() for p in (run / "checkpoints").glob("[0-9]*.safetensors")}
    assert status(run) == "failed"
    same_run(whole, arno("resume", run, "rounds=8").folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "clients-"])
def test_a_disk_that_is_full_for_small_files_too(name, arno, small, monkeypatch):
    """Whichever file the last byte is missing for: one line, and what was there stays."""
    import errno

    from arno.records import folder

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    arno("run", *small, "rounds=2", "out=run")
    before = {p: p.read_bytes() for p in Path("run").rglob("*.safetensors")}

    def refuse(*_: object, **__: object) -> None:
        raise full

    plain = Path.open

    def guarded(self, mode="r", *rest, **more):
        if self.name.startswith(name) and ("w" in mode or "a" in mode):
            raise full
        return plain(self, mode, *rest, **more)

    def write(self, text):
        with guarded(self, "w") as file:
            file.write(text)

    with monkeypatch.context() as patch:
        if name == "clients-":
            patch.setattr("pyarrow.parquet.write_table", refuse)
        else:
            patch.setattr(folder.Path, "open", guarded)
            patch.setattr(folder.Path, "write_text", write)
        assert "No space left on device" in arno("resume", "run", "rounds=4").error
    assert {p: p.read_bytes() for p in before} == before
    assert arno("resume", "run", "rounds=4").status == 0
