"""Trackers: nothing is lost, nothing is sent twice, and a dead server does not hurt the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import arno
from arno import ArnoError
from arno.records.folder import RunFolder
from arno.tracking import follow as tracking
from arno.tracking.follow import SINKS, Tail, asked, numbers, read_state, send

ROWS = 40


class Memory:
    """A tracker in memory, that fails when told to."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.opened, self.fail, self.status, self.files = 0, 0, "", list[str]()

    def open(self, folder: RunFolder, state: dict[str, Any]) -> None:
        self.opened += 1
        self._stumble()

    def send(self, rows: Sequence[dict[str, Any]], began: float) -> None:
        self._stumble()
        self.rows += rows

    def finish(self, folder: RunFolder, status: str) -> None:
        self._stumble()
        self.status, self.files = status, [p.name for p in tracking.files(folder)]

    def close(self) -> None:
        pass

    def _stumble(self) -> None:
        if self.fail:
            self.fail -= 1
            raise ConnectionError("no answer")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    sink = Memory()
    monkeypatch.setitem(SINKS, "memory", (lambda uri: sink, ()))
    monkeypatch.setattr(tracking, "LOOK", 0.01)
    monkeypatch.setattr(tracking, "PATIENCE", 0.05)
    return sink


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("method:\n  kind: fedavg\nrounds: 40\n")
    (path / "manifest.json").write_text(
        json.dumps({"status": "done", "arno": "0", "started": "2026-01-01T00:00:00+00:00"})
    )
    lines = [json.dumps({"round": t, "seconds": 0.5, "gap": 1 / t, "note": "text"}) for t in range(1, ROWS + 1)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (path / "curves.png").write_bytes(PNG)
    (path / "final.safetensors").write_bytes(b"w")
    return path


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "0005fe02fe0000000049454e44ae426082"
)


def test_everything_arrives_once(memory: Memory, run: Path) -> None:
    assert send(run, "memory") == ROWS
    assert [row["round"] for row in memory.rows] == list(range(1, ROWS + 1))
    assert numbers(memory.rows[1]) == {"seconds": 0.5, "gap": 0.5}
    assert memory.rows[1]["elapsed"] == 1.0
    assert memory.status == "done"
    assert {"config.yaml", "manifest.json", "curves.png", "final.safetensors"} <= set(memory.files)
    assert send(run, "memory") == 0
    assert len(memory.rows) == ROWS


def test_a_tracker_that_fails_for_a_while_loses_nothing(memory: Memory, run: Path) -> None:
    memory.fail = 3
    assert send(run, "memory", patience=5) == ROWS
    assert len(memory.rows) == ROWS


def test_a_dead_tracker_gives_up_after_the_run_and_goes_on_later(memory: Memory, run: Path) -> None:
    memory.fail = 10**9
    with pytest.raises(ArnoError, match="no answer"):
        send(run, "memory", patience=0.1)
    assert read_state(run, "memory")["error"] == "no answer"
    memory.fail = 0
    assert send(run, "memory") == ROWS
    assert [row["round"] for row in memory.rows] == list(range(1, ROWS + 1))


def test_batches_are_bounded(memory: Memory, run: Path) -> None:
    sizes = []
    plain = memory.send
    memory.send = lambda rows, began: (sizes.append(len(rows)), plain(rows, began))[1]  # type: ignore[method-assign]
    lines = [json.dumps({"round": t, "gap": 0.0}) + "\n" for t in range(1, 2001)]
    (run / "metrics.jsonl").write_text("".join(lines))
    assert send(run, "memory") == 2000
    assert max(sizes) <= tracking.BATCH // 4


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round"')
    tail = Tail(path)
    assert [row["round"] for row in tail.rows(10)] == [1]
    assert tail.more()
    with path.open("a") as file:
        file.write(": 2}\n")
    assert [row["round"] for row in tail.rows(10)] == [2]
    assert not tail.more()


def test_rounds_computed_again_after_a_resume_are_not_sent_twice(memory: Memory, run: Path) -> None:
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text("\n".join(whole.splitlines()[:25]) + "\n")
    assert send(run, "memory") == 25
    (run / "metrics.jsonl").write_text(whole)
    assert send(run, "memory") == 15
    assert [row["round"] for row in memory.rows] == list(range(1, ROWS + 1))


def test_one_sender_at_a_time(memory: Memory, run: Path) -> None:
    (run / "track").mkdir()
    with tracking.locked(run, "memory"), pytest.raises(ArnoError, match="another process"):
        send(run, "memory")


def test_unknown_and_missing_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ArnoError, match="did you mean 'mlflow'"):
        asked("mlfow")
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ArnoError, match=r"arno\[mlflow\]"):
        arno.run("problem=quadratic", "track=mlflow", out=str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


def test_tensorboard_files_hold_every_round(run: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    assert send(run, "tensorboard") == ROWS
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in (run / "tensorboard").iterdir():
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert [step for step, _ in found["gap"]] == list(range(1, ROWS + 1))
    assert found["gap"][3][1] == pytest.approx(0.25)
    assert {"config", "manifest", "curves"} <= found.keys()


def history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    return [(m.step, m.value) for m in MlflowClient(uri).get_metric_history(run_id, name)]


needs_mlflow = pytest.mark.skipif(
    any(tracking.find_spec(name) is None for name in ("mlflow", "sqlalchemy")),
    reason="mlflow with its SQL store is not installed (the extra `mlflow`)",
)
quiet = pytest.mark.filterwarnings("ignore")  # what other packages warn of when they are imported


@needs_mlflow
@quiet
def test_a_tracked_run_is_in_the_sqlite_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = arno.run("problem=quadratic", "rounds=30", "clients=5", "track=mlflow", out="run")
    assert "still being sent" not in (result.path / "log.txt").read_text()  # it knew that the run was over
    until = time.monotonic() + 120
    while read_state(result.path, "mlflow").get("finished") != "done" and time.monotonic() < until:
        time.sleep(0.2)  # on a busy machine the sender may outlive the run
    state = read_state(result.path, "mlflow")
    assert state["sent"] == 30
    assert state["finished"] == "done"
    uri = f"sqlite:///{tmp_path / 'mlruns.db'}"
    assert history(uri, state["run"], "gap") == list(result.history["gap"].items())
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    kept = client.get_run(state["run"])
    assert kept.info.status == "FINISHED"
    assert kept.data.params["problem.kind"] == "quadratic"
    assert kept.data.tags["data_fingerprint"] == result.folder.manifest()["data_fingerprint"]
    names = {f.path for f in client.list_artifacts(state["run"])}
    assert {"config.yaml", "curves.png", "final.safetensors", "manifest.json"} <= names


needs_server = pytest.mark.skipif(
    any(tracking.find_spec(name) is None for name in ("mlflow", "sqlalchemy", "flask", "uvicorn", "aiohttp")),
    reason="an MLflow server is not installed (pip install mlflow)",
)


class Server:
    """A real MLflow server on this machine."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.uri = folder, f"http://127.0.0.1:{self.port}"
        folder.mkdir()

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "log.txt").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        until = time.monotonic() + 180
        while time.monotonic() < until:
            try:
                with urlopen(f"{self.uri}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.3)
        raise AssertionError((self.folder / "log.txt").read_text()[-2000:])

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server")
    server.start()
    yield server
    if server.process.poll() is None:
        server.kill()


@needs_server
@quiet
def test_a_server_killed_in_the_middle_loses_nothing(server: Server, tmp_path: Path) -> None:
    rounds, part = 400, Killer(server, tmp_path / "run")
    result = arno.run(
        "problem=quadratic", f"rounds={rounds}", "clients=5", f"track=mlflow@{server.uri}",
        method=[part], out=str(tmp_path / "run"),
    )  # fmt: skip
    assert result.folder.manifest()["status"] == "done"
    assert len(result.history) == rounds
    state = read_state(result.path, "mlflow")
    assert 0 < state["sent"] < rounds
    assert "arno track" in (result.path / "log.txt").read_text()
    server.start()
    until = time.monotonic() + 60
    while True:  # the run's own sender may still be trying
        try:
            send(result.path, f"mlflow@{server.uri}", patience=30)
            break
        except ArnoError as error:
            if "another process" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.5)
    state = read_state(result.path, "mlflow")
    assert state["sent"] == rounds
    assert state["finished"] == "done"
    assert history(server.uri, state["run"], "gap") == list(result.history["gap"].items())


class Killer(arno.Part):
    """Kills the server as soon as it holds something, in the middle of a run."""

    def __init__(self, server: Server, run: Path) -> None:
        self._server, self._run, self._dead = server, run, False

    def begin(self, t: int) -> None:
        if t == 100:
            until = time.monotonic() + 90
            while not read_state(self._run, "mlflow").get("sent") and time.monotonic() < until:
                time.sleep(0.05)
            self._server.kill()
            self._dead = True
