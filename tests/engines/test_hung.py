"""Workers that hang: they are ended and replaced, their clients run again with the same bits, and a run can be stopped.

Attack: "worker hangs (SIGSTOP)".
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
import torch
from training import parts

import arno
from arno.core.engine import Caller
from arno.core.federation import Federation, Local
from arno.core.method_part import Part
from arno.engines import timing
from arno.engines.auto import auto
from arno.engines.batched import batched
from arno.engines.processes import processes
from arno.engines.timing import Timing
from arno.engines.transport import Question
from arno.errors import ArnoError
from arno.records import checkpoint as checkpoints
from arno.runs.result import RunResult


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def pool(digits):
    engine = processes(digits, workers=2, timeout=0.5)
    yield engine
    engine.close()


def suspend(engine, which=0):
    process = engine._transport.workers[which].process
    os.kill(process.pid, signal.SIGSTOP)
    return process


def test_attack_worker_hangs(digits, pool):
    said = []
    pool.attach(Caller(say=said.append))
    a, b = (Federation(digits, parts("scaffold"), engine=e, local=Local(epochs=2)) for e in (None, pool))
    for t in range(3):
        hung = suspend(pool) if t else None
        a.round()
        b.round()
        assert hung not in [worker.process for worker in pool._transport.workers]
        assert hung is None or hung.exitcode == -signal.SIGKILL
    assert torch.equal(a.w, b.w)
    assert len(said) == 2
    assert "it took longer than engine.timeout = 0.5 s while it trained (" in said[0]
    assert said[0].endswith("steps); another worker does it again")


def test_hung_worker_that_scores(digits, pool):
    w = digits.init(0)
    expected = pool.tally(w, "test")
    hung = [suspend(pool, i) for i in range(2)]
    assert torch.equal(pool.tally(w, "test"), expected)
    assert all(process.exitcode == -signal.SIGKILL for process in hung)


@dataclass(frozen=True)
class Hang:
    """A probe in which one client never ends."""

    client: int

    def __call__(self, learner, job):
        if job.client == self.client:
            threading.Event().wait()
        return {}


@dataclass
class Hanging(Part):
    roles: ClassVar = frozenset({"loss"})
    client: int

    def send(self, work):
        return replace(work, probe=Hang(self.client))


def test_a_client_that_hangs_three_times_stops_the_run(digits, pool):
    fed = Federation(digits, [Hanging(4)], engine=pool)
    late = r"it took longer than engine\.timeout = 0\.5 s while it trained \(\d+ steps\), 3 times; does it hang"
    with pytest.raises(ArnoError, match=f"^client 4 in round 1: {late}"):
        fed.round()


def test_a_worker_that_does_not_read_its_messages_is_replaced(digits, pool, monkeypatch):
    monkeypatch.setattr("arno.engines.processes.SENDING", 1)
    monkeypatch.setattr(type(digits), "losses", lambda self, w, clients: w[:1] + clients)
    pool.timing.timeout = 0.0
    pool._transport.start()
    hung, many, w = suspend(pool), torch.arange(200_000), digits.init(0)  # more than a pipe holds
    assert torch.equal(pool.loss(w, many), w[:1] + many)
    assert hung.exitcode == -signal.SIGKILL


def test_only_the_time_in_which_the_server_waits_counts(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(timing, "monotonic", lambda: clock[0])

    class Silent:
        """One worker that never answers."""

        request, ended = Question("tally", None, ("test", 0, 10)), []

        def first(self):
            return [("worker", self.request, True)]

        def end(self, worker, why):
            self.ended.append(why)
            return []

    def pauses(seconds):
        def wait(most):
            clock[0] += seconds
            return [], []

        return wait

    times, silent, caller = Timing(8.0), Silent(), Caller()
    for seconds in (1.0, 3600.0, 0.5, 7200.0, 1.0):  # the whole run was suspended twice
        times.waits(pauses(seconds))
        times.late(silent, caller)
    clock[0] += 1e6  # the server did something else
    assert not silent.ended
    for _ in range(6):
        times.waits(pauses(1.0))
        times.late(silent, caller)
    assert silent.ended == ["it took longer than engine.timeout = 8 s"]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(seconds, digits):
    for make in (processes, batched, auto):
        with pytest.raises(ArnoError, match=r"engine\.timeout = .*: it must be 0 or more seconds"):
            make(digits, timeout=seconds)


#: A run whose patience after a signal is short.
DRIVER = """
import sys
from arno import cli
from arno.engines import timing
timing.HURRY = timing.HURRY_UNKNOWN = 0.5
cli.main(sys.argv[1:])
"""
WORDS = ("rounds=200", "clients=8", "local.epochs=3", "checkpoint.every=50", "model.hidden=[16]", "data.limit=400")


def rounds(run: Path) -> int:
    records = run / "metrics.jsonl"
    return records.read_text().count("\n") if records.exists() else 0


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_the_first_signal_ends_a_run_whose_worker_hangs(engine, tmp_path):
    if engine == "ray":
        pytest.importorskip("ray")
    out = tmp_path / "run"
    words = [*WORDS, f"engine={engine}", "engine.workers=2", f"out={out}"]
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def workers() -> list[psutil.Process]:
        family = psutil.Process(process.pid).children(recursive=True)
        return [p for p in family if engine == "processes" or p.name().startswith("ray::Trainer")]

    until(lambda: rounds(out) >= 3 and len(workers()) >= 2, 120)
    family = psutil.Process(process.pid).children(recursive=True)
    several = workers()
    several[0].suspend()
    time.sleep(1.0)
    done = rounds(out)
    assert rounds(out) == done < 200, "it hangs"
    process.terminate()
    said, error = process.communicate(timeout=90)
    assert process.returncode == 130, error
    assert "Traceback" not in said + error
    assert "stopped after round" in error
    done = rounds(out)
    saved = checkpoints.load(out / "checkpoints" / f"{done:08d}.safetensors").federation["w"]
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not [p for p in several if p in alive]
    whole = arno.run(*WORDS, "engine=serial", f"rounds={done}", out=str(tmp_path / "whole"))
    assert torch.equal(saved, whole.final)


def test_the_first_signal_ends_a_comparison_whose_cell_is_suspended(tmp_path):
    out = tmp_path / "grid"
    words = ["method=fedavg", "seed=0", *WORDS, f"out={out}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "arno", "compare", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until(lambda: out.exists() and any(rounds(cell) >= 3 for cell in out.glob("*/")), 120)
    (cell,) = out.glob("*/")
    (worker,) = psutil.Process(process.pid).children(recursive=True)
    worker.suspend()
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "stopped; the same command continues it"
    assert RunResult(cell).folder.manifest()["status"] == "interrupted"
