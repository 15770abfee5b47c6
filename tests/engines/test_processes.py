"""The parallel engine gives the serial engine's bits, for every method and start method, and leaves nothing behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from training import parts, same_bits, same_scores, train

from arno import run
from arno.client_selection.uniform import Uniform
from arno.conform import PACKAGED, replay
from arno.core import federation as rounds
from arno.core.federation import Federation, Local
from arno.core.serial import Serial
from arno.engines.processes import processes
from arno.errors import ArnoError, ClientError
from arno.methods import methods
from arno.records.folder import RunFolder
from arno.registry import load_target


@pytest.fixture(scope="module", params=["fork", "spawn"])
def parallel(request, digits, tmp_path_factory):
    if request.param == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    gone = tmp_path_factory.mktemp("targets") / "gone.py"  # a user's file that was imported once and is no longer there
    gone.write_text("def factory():\n    return []\n")
    load_target(f"{gone}:factory")
    gone.unlink()
    engine = processes(digits, workers=2, start=request.param)
    yield engine
    engine.close()


@pytest.fixture
def forked(digits):
    engine = processes(digits, workers=2, start="fork")
    yield engine
    engine.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", methods.names())
def test_the_bits_are_those_of_serial(name, digits, parallel):
    same_bits(digits, parallel, name)


def test_values_that_change_every_round_have_the_same_bits(digits, parallel):
    laws = {"epochs": "each_round(mix(0.5, integers(1, 4), 2))", "batch_size": "each_round(choice(4, 8, 100))"}
    same_bits(digits, parallel, "fednova", **laws, lr="each_round(loguniform(0.01, 0.1))")


def test_many_blocks_in_flight_come_back_in_order(digits, parallel, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 2 * digits.layout.size)
    a, _ = train(digits, Serial(digits), "scaffold")
    b, _ = train(digits, parallel, "scaffold")
    assert torch.equal(a.w, b.w)


def test_results_that_somebody_keeps_are_not_written_over(digits, parallel, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 2 * digits.layout.size)
    fed = Federation(digits, engine=parallel)
    kept = [out.delta[1:] for t in range(3) for _, out in parallel.train(fed.blocks(range(7), t))]  # views alone
    again = [out.delta[1:].clone() for t in range(3) for _, out in Serial(digits).train(fed.blocks(range(7), t))]
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    made = len(parallel._transport.slabs)
    del kept
    for t in range(3):
        list(parallel.train(fed.blocks(range(7), t)))
    assert len(parallel._transport.slabs) <= made


def test_index_vectors_are_sent_again_once_they_were_forgotten(digits, forked, monkeypatch):
    monkeypatch.setattr("arno.engines.processes.KNOWN", 1)
    same_bits(digits, forked, "fedrolex")


def test_scores_and_losses_are_those_of_serial(digits, parallel):
    same_scores(digits, parallel)


def kill_one(engine):
    """Kill a worker; the engine finds out when it uses it."""
    process = engine._transport.workers[0].process
    os.kill(process.pid, signal.SIGKILL)
    return process


def test_a_dead_worker_is_replaced_and_its_clients_run_again(digits, forked):
    a, b = (
        Federation(digits, [Uniform(0.6), *parts("scaffold")], engine=e, local=Local(epochs=2))
        for e in (Serial(digits), forked)
    )
    for t in range(4):
        dead = kill_one(forked) if t else None
        a.round()
        b.round()
        assert dead not in [worker.process for worker in forked._transport.workers]
    assert torch.equal(a.w, b.w)


def test_a_worker_that_dies_while_it_scores_is_replaced(digits, forked):
    same_scores(digits, forked)
    dead = kill_one(forked)
    same_scores(digits, forked)
    assert dead not in [worker.process for worker in forked._transport.workers]


def test_a_client_that_kills_its_workers_is_named(digits, monkeypatch):
    learner = type(digits.learner())
    real = learner.gradient

    def deadly(self, batch, job):
        if job.client == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, batch, job)

    monkeypatch.setattr(learner, "gradient", deadly)
    engine = processes(digits, workers=2, start="fork")
    died = (
        r"client 2 in round 1: its worker died \(exit status -9\) while it trained \(\d+ steps\), 3 times; "
        r"is there enough memory\? try engine\."
    )
    with pytest.raises(ArnoError, match=died):
        Federation(digits, engine=engine).round()
    engine.close()


def test_a_score_that_kills_its_workers_is_given_up(digits, monkeypatch):
    monkeypatch.setattr(type(digits), "tally", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    engine = processes(digits, workers=2, start="fork")
    with pytest.raises(
        ArnoError, match=r"scoring before .*: its worker died \(exit status -9\) while it scored test, .*, 3 times"
    ):
        engine.tally(digits.init(0), "test")
    engine.close()


def test_an_exception_in_a_worker_names_the_client(digits, monkeypatch):
    def burst(self, batch, job):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(type(digits.learner()), "gradient", burst)
    engine = processes(digits, workers=2, start="fork")
    with pytest.raises(
        ClientError, match=r"^client \d in round 1: ZeroDivisionError: boom \(in .*test_processes\.py, line "
    ):
        Federation(digits, engine=engine).round()
    engine.close()


def test_scoring_that_fails_leaves_no_answers_behind(digits, monkeypatch):
    def late(self, w, split):
        if w[0] == 0:
            raise ZeroDivisionError("boom")
        time.sleep(0.3)
        return w[:1].clone()

    monkeypatch.setattr(type(digits), "total", late)
    monkeypatch.setattr(type(digits), "scores", lambda self, tally: {"is": float(tally)})
    engine, w = processes(digits, workers=2, start="fork"), torch.zeros(digits.layout.size)
    with pytest.raises(ZeroDivisionError):
        engine.score([w + 1, w], "test")
    assert engine.score([w + 2, w + 3], "test") == [{"is": 2.0}, {"is": 3.0}]
    engine.close()


@pytest.mark.parametrize("case", ["fedscavar_mlp_extract", "scaffold_softmax_uniform", "lorenzo_softmax_tie"])
def test_conformance_on_this_engine(case):
    assert replay(PACKAGED / f"{case}.npz", "processes").ok


def test_wrong_settings_are_refused(digits):
    with pytest.raises(ArnoError, match=r"engine\.workers = -1"):
        processes(digits, workers=-1)


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in found]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", ["success", "error", "SIGINT", "SIGKILL"])
def test_no_orphans(end, tmp_path):
    rounds_ = 3 if end == "success" else 100_000
    words = ["run", "engine=processes", "engine.workers=2", f"rounds={rounds_}", f"out={tmp_path / 'r'}", "--quiet"]
    if end == "error":
        words += ["local.lr=1e30", "local.epochs=20"]
    process = subprocess.Popen([sys.executable, "-m", "arno", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    workers: list[int] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        workers = children(process.pid) or workers
        if len(workers) == 2 and end.startswith("SIG") and (tmp_path / "r" / "metrics.jsonl").exists():
            process.send_signal(getattr(signal, end))
            break
        time.sleep(0.02)
    process.communicate(timeout=60)
    assert process.returncode == {"success": 0, "error": 2, "SIGINT": 130, "SIGKILL": -9}[end]
    while time.monotonic() < deadline + 10 and any(map(alive, workers)):
        time.sleep(0.1)
    assert len(workers) == 2 or end in ("success", "error")
    assert not any(map(alive, workers))


def test_the_server_adds_up_on_one_thread_as_serial_does(digits):
    torch.set_num_threads(2)
    processes(digits, workers=1).close()
    assert torch.get_num_threads() == 1


def test_workers_have_ended_before_tables_and_pictures_are_made(tmp_path, monkeypatch):
    left, plain = [], RunFolder.merge_clients
    before = multiprocessing.active_children()

    def merge(folder):
        left.append([child for child in multiprocessing.active_children() if child not in before])
        plain(folder)

    monkeypatch.setattr(RunFolder, "merge_clients", merge)
    run("engine=processes", "engine.workers=2", rounds=1, out=tmp_path / "run")
    assert left == [[]]
