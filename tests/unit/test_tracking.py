"""Trackers: nothing is lost, nothing is sent twice, and a dead server does not hurt the run."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import arno
from arno import ArnoError
from arno.records.folder import RunFolder
from arno.records.lock import writing
from arno.tracking import destination, trackers
from arno.tracking import send as sending
from arno.tracking.destination import asked
from arno.tracking.send import BATCH, send
from arno.tracking.tracker import Record, State, Tracker, files

ROWS = 40
BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_tracker.py"


class Memory(Tracker):
    """A tracker in memory, that fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.sizes: list[int] = []
        self.opened, self.fail, self.status, self.files = 0, 0, "", list[str]()

    def open(self, folder: RunFolder, state: State) -> None:
        self.opened += 1
        self._fail()

    def send(self, records: Sequence[Record]) -> None:
        self._fail()
        self.records += records
        self.sizes.append(len(records))

    def finish(self, folder: RunFolder, status: str) -> None:
        self._fail()
        self.status, self.files = status, [p.name for p in files(folder)]

    def close(self) -> None:
        pass

    @property
    def rounds(self) -> list[int]:
        return [record.round for record in self.records]

    def _fail(self) -> None:
        if self.fail:
            self.fail -= 1
            raise ConnectionError("no answer")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    tracker = Memory()
    monkeypatch.setattr(trackers, "_factories", {})
    monkeypatch.setattr(trackers, "_info", {})
    trackers.register("memory", needs=())(lambda uri: tracker)
    monkeypatch.setattr(sending, "LOOK", 0.01)
    monkeypatch.setattr(sending, "PATIENCE", 0.05)
    return tracker


def state_of(run: Path, name: str) -> dict[str, Any]:
    return asked(name)[0].state(run)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("method:\n  kind: fedavg\nrounds: 40\n")
    (path / "manifest.json").write_text(
        json.dumps({"status": "done", "arno": "0", "started": "2026-01-01T00:00:00+00:00"})
    )
    lines = [json.dumps({"round": t, "seconds": 0.5, "gap": 1 / t}) for t in range(1, ROWS + 1)]
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
    assert memory.rounds == list(range(1, ROWS + 1))
    assert memory.records[1] == Record(2, BEGAN + 1.0, {"seconds": 0.5, "gap": 0.5})
    assert memory.status == "done"
    assert {"config.yaml", "manifest.json", "curves.png", "final.safetensors"} <= set(memory.files)
    memory.status = ""
    assert send(run, "memory") == 0
    assert len(memory.records) == ROWS
    assert memory.status == "", "it knew the end already"


def test_a_tracker_that_fails_for_a_while_loses_nothing(memory: Memory, run: Path) -> None:
    memory.fail = 3
    assert send(run, "memory", patience=5) == ROWS
    assert len(memory.records) == ROWS


def test_a_dead_tracker_gives_up_after_the_run_and_goes_on_later(memory: Memory, run: Path) -> None:
    memory.fail = 10**9
    with pytest.raises(ArnoError, match="no answer"):
        send(run, "memory", patience=0.1)
    assert state_of(run, "memory")["error"] == "no answer"
    memory.fail = 0
    assert send(run, "memory") == ROWS
    assert memory.rounds == list(range(1, ROWS + 1))


def test_batches_are_bounded(memory: Memory, run: Path) -> None:
    lines = [json.dumps({"round": t, "gap": 0.0}) + "\n" for t in range(1, 2001)]
    (run / "metrics.jsonl").write_text("".join(lines))
    assert send(run, "memory") == 2000
    assert memory.sizes == [BATCH] * 8


def test_a_last_line_that_a_kill_cut_off_is_left_out(memory: Memory, run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 41, "ga')
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace("done", "running"))
    assert send(run, "memory") == ROWS
    assert memory.status == "", "the run may be resumed"
    with (run / "metrics.jsonl").open("a") as file:
        file.write('p": 0.5}\n')
    manifest.write_text(manifest.read_text().replace("running", "done"))
    assert send(run, "memory") == 1
    assert memory.records[-1].values == {"gap": 0.5}
    assert memory.status == "done"


def test_a_damaged_line_is_named(memory: Memory, run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:3], "not json\n", *lines[4:]]))
    with pytest.raises(ArnoError, match="line 4: is no record of a round"):
        send(run, "memory")


def test_a_sender_follows_the_run_to_its_end(memory: Memory, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, records = run / "manifest.json", run / "metrics.jsonl"
    manifest.write_text(manifest.read_text().replace("done", "running"))
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("")

    def write_more(seconds: float) -> None:
        with records.open("a") as file:
            file.write("".join(lines[:7]))
        del lines[:7]
        if not lines:
            manifest.write_text(manifest.read_text().replace("running", "failed"))

    monkeypatch.setattr(sending.time, "sleep", write_more)
    assert send(run, "memory", follow=True) == ROWS
    assert memory.rounds == list(range(1, ROWS + 1))
    assert memory.sizes == [7, 7, 7, 7, 7, 5]
    assert (memory.opened, memory.status) == (1, "failed")


def test_rounds_computed_again_after_a_resume_are_not_sent_twice(memory: Memory, run: Path) -> None:
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text("\n".join(whole.splitlines()[:25]) + "\n")
    assert send(run, "memory") == 25
    (run / "metrics.jsonl").write_text(whole)
    assert send(run, "memory") == 15
    assert memory.rounds == list(range(1, ROWS + 1))


def test_one_sender_at_a_time(memory: Memory, run: Path) -> None:
    (run / "track").mkdir()
    with writing(run / "track", "another sender", "memory.lock"), pytest.raises(ArnoError, match="is being written by"):
        send(run, "memory")
    assert send(run, "memory") == ROWS


def test_unknown_and_missing_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ArnoError, match="did you mean 'mlflow'"):
        asked("mlfow")
    with pytest.raises(ArnoError, match="it must name one tracker"):
        destination.single("mlflow,tensorboard" if find_spec("mlflow") and find_spec("tensorboard") else "")
    monkeypatch.setattr(destination, "find_spec", lambda name: None)
    with pytest.raises(ArnoError, match=r"arno\[mlflow\]"):
        arno.run("problem=quadratic", "track=mlflow", out=str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


def test_every_tracker_has_an_extra_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((EXAMPLE.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    monkeypatch.setattr(destination, "find_spec", lambda name: None)
    assert trackers.names() == ["mlflow", "tensorboard", "wandb"]
    for name in trackers.names():
        with pytest.raises(ArnoError, match=rf"pip install 'arno\[{name}\]'"):
            asked(name)
        assert name in extras


def test_no_tracker_is_imported_with_its_library() -> None:
    code = "import sys; from arno.tracking import trackers; [trackers.get(name) for name in trackers.names()]; "
    code += "assert not {'mlflow', 'tensorboard', 'wandb', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_waits_longer_for_files_than_for_servers() -> None:
    remote = {word: asked(word)[0].tracker.remote for word in ("mlflow@sqlite:///a.db", "mlflow@http://localhost:1")}
    assert remote == {"mlflow@sqlite:///a.db": False, "mlflow@http://localhost:1": True}
    assert trackers.get("wandb")("").remote
    assert not trackers.get("tensorboard")("").remote


def test_a_tracker_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example; it runs in a process of its own beside the run."""
    monkeypatch.chdir(tmp_path)
    word = f"{EXAMPLE}:CsvTracker@records.csv"
    result = arno.run("problem=quadratic", "rounds=12", "clients=5", f"track={word}", out="run")
    state = json.loads((result.path / "track" / "my_tracker.CsvTracker.json").read_text())
    assert (state["sent"], state["finished"]) == (12, "done")
    rows = list(csv.reader((tmp_path / "records.csv").read_text().splitlines()))
    assert [float(value) for _, _, name, value in rows if name == "gap"] == list(result.history["gap"])
    assert rows[-1] == ["end", "", "status", "done"]
    with pytest.raises(ArnoError, match="there is no file"):
        asked("nowhere.py:Tracker")
    with pytest.raises(ArnoError, match="did you mean 'CsvTracker'"):
        asked(f"{EXAMPLE}:CvsTracker")
    Path("wrong.py").write_text("def factory(uri):\n    return []\n")
    with pytest.raises(
        ArnoError, match=r"wrong\.py:factory returned an object of type list: it lacks remote, open, send"
    ):
        asked("wrong.py:factory")


def test_a_tracker_that_fails_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(
        "from arno import ArnoError\n"
        "class Broken:\n"
        "    remote = False\n"
        "    def __init__(self, uri): pass\n"
        "    def open(self, folder, state): raise ArnoError('this server', 'is down')\n"
        "    send = finish = close = open\n"
    )
    result = arno.run("problem=quadratic", "rounds=3", "clients=5", "track=broken.py:Broken", out="run")
    assert result.folder.manifest()["status"] == "done"
    log = (result.path / "log.txt").read_text()
    assert (
        "broken.Broken did not receive all records (see run/track/broken.Broken.log); no record is lost: `arno track"
        in log
    )
    assert "this server: is down" in (result.path / "track" / "broken.Broken.log").read_text()


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
    any(find_spec(name) is None for name in ("mlflow", "sqlalchemy")),
    reason="mlflow with its SQL store is not installed (the extra `mlflow`)",
)
quiet = pytest.mark.filterwarnings("ignore")  # what other packages warn of when they are imported


@needs_mlflow
@quiet
@pytest.mark.slow
def test_a_tracked_run_is_in_the_sqlite_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = arno.run("problem=quadratic", "rounds=30", "clients=5", "track=mlflow", out="run")
    assert "still being sent" not in (result.path / "log.txt").read_text()  # it knew that the run was over
    until = time.monotonic() + 120
    while state_of(result.path, "mlflow").get("finished") != "done" and time.monotonic() < until:
        time.sleep(0.2)  # on a busy machine the sender may outlive the run
    state = state_of(result.path, "mlflow")
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
    any(find_spec(name) is None for name in ("mlflow", "sqlalchemy", "flask", "uvicorn", "aiohttp")),
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
@pytest.mark.slow
def test_a_server_killed_in_the_middle_loses_nothing(server: Server, tmp_path: Path) -> None:
    rounds, part = 400, Killer(server, tmp_path / "run")
    result = arno.run(
        "problem=quadratic", f"rounds={rounds}", "clients=5", f"track=mlflow@{server.uri}",
        method=[part], out=str(tmp_path / "run"),
    )  # fmt: skip
    assert result.folder.manifest()["status"] == "done"
    assert len(result.history) == rounds
    state = state_of(result.path, "mlflow")
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
    state = state_of(result.path, "mlflow")
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
            while not state_of(self._run, "mlflow").get("sent") and time.monotonic() < until:
                time.sleep(0.05)
            self._server.kill()
            self._dead = True
