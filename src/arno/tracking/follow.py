"""Trackers that cost the run nothing: a second process reads what the run folder records and sends it on.

The run writes `metrics.jsonl` whether it is tracked or not. `track=mlflow` starts `arno track RUN --to mlflow --follow`
beside it: that process tails the file, sends batches, and notes in `track/mlflow.json` how far it came. The file is the
queue, so memory stays bounded, a server that is slow, dead or comes back delays and loses nothing, and `arno track RUN
--to mlflow` sends the rest whenever it likes. (A thread would do the same with half of the interpreter's time.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ..config.settings import flat
from ..errors import ArnoError, need, unknown
from ..records.folder import RunFolder

Row = dict[str, Any]
#: Seconds since the run began, which `Tail` adds to every row.
ELAPSED = "elapsed"
#: Values in one request; MLflow takes no more.
BATCH = 1000
#: Seconds: between looks at the file; the same after the last round, when the run is about to wait for us; without
#: an answer after the run's end.
LOOK, LAST_LOOK, PATIENCE = 0.25, 0.01, 5.0
#: Seconds that a run waits at its end: for a server, which goes on being served by the sender, and for files.
WAIT_SERVER, WAIT_FILES = 5.0, 60.0


class Sink(Protocol):
    """Where records go. Sending the same thing twice must do no harm."""

    def open(self, folder: RunFolder, state: Row) -> None:
        """Connect; `state` is what the last connection left, and may be added to."""
        ...

    def send(self, rows: Sequence[Row], began: float) -> None:
        """Take some rounds; `began` is when the run began, in seconds since 1970."""
        ...

    def finish(self, folder: RunFolder, status: str) -> None:
        """The run is over: take what it left in its folder."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


def files(folder: RunFolder) -> list[Path]:
    """What a tracker keeps of a finished run: configuration, manifest, pictures, models, tables."""
    kinds = (".yaml", ".json", ".png", ".safetensors", ".parquet", ".txt", ".npz")
    return sorted(p for p in folder.path.iterdir() if p.is_file() and p.suffix in kinds)


def numbers(row: Row) -> dict[str, float]:
    """The values of a round."""
    return {k: float(v) for k, v in row.items() if k not in ("round", ELAPSED) and isinstance(v, int | float)}


class Mlflow:
    """An MLflow store: the server at `uri`, else MLFLOW_TRACKING_URI, else SQLite in `mlruns.db` where one is."""

    STATUS: ClassVar = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

    def __init__(self, uri: str = "") -> None:
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "") or f"sqlite:///{Path('mlruns.db').resolve()}"

    def open(self, folder: RunFolder, state: Row) -> None:
        """Make the run, with its configuration as parameters and its versions as tags."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient(self.uri)
        manifest = folder.manifest()
        if state.get("uri") != self.uri:
            state.pop("run", None)
            state["uri"] = self.uri
        if "run" not in state:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "arno")
            found = self._client.get_experiment_by_name(name)
            where = None
            if self.uri.startswith("sqlite:///"):
                where = (Path(self.uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
            experiment = found.experiment_id if found else self._client.create_experiment(name, where)
            made = self._client.create_run(experiment, run_name=folder.path.name)
            state |= {"run": made.info.run_id, "described": False, "sent": 0, "finished": ""}
        self._run = state["run"]
        if not state.get("described"):
            params = [Param(key, str(value)[:500]) for key, value in flat(folder.config())]
            shown = ("arno", "python", "torch", "numpy", "platform", "command", "data_fingerprint", "seed")
            tags = [RunTag(key, str(manifest[key])[:5000]) for key in shown if manifest.get(key) is not None]
            for at in range(0, len(params), 100):
                self._client.log_batch(self._run, params=params[at : at + 100])
            self._client.log_batch(self._run, tags=tags)
            state["described"] = True

    def send(self, rows: Sequence[Row], began: float) -> None:
        """One request for up to a thousand values."""
        values = [
            self._metric(name, value, int(1000 * (began + row[ELAPSED])), row["round"])
            for row in rows
            for name, value in numbers(row).items()
        ]
        for at in range(0, len(values), BATCH):
            self._client.log_batch(self._run, metrics=values[at : at + BATCH])

    def finish(self, folder: RunFolder, status: str) -> None:
        """The folder's files as artifacts; the run's end."""
        for path in files(folder):
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, self.STATUS.get(status, "FAILED"))

    def close(self) -> None:
        """Nothing to let go."""


class TensorBoard:
    """Event files in the run's own `tensorboard` folder, written without torch."""

    def __init__(self, uri: str = "") -> None:
        self.uri = uri

    def open(self, folder: RunFolder, state: Row) -> None:
        """Start an event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(self.uri or str(folder.path / "tensorboard"))
        if not state.get("described"):
            self._add(0, datetime.now().timestamp(), [self._text("config", json.dumps(folder.config(), indent=2))])
            state["described"] = True

    def send(self, rows: Sequence[Row], began: float) -> None:
        """One event a round."""
        for row in rows:
            values = [self._summary.Value(tag=k, simple_value=v) for k, v in numbers(row).items()]
            self._add(row["round"], began + row[ELAPSED], values)
        self._writer.flush()

    def finish(self, folder: RunFolder, status: str) -> None:
        """The pictures and the manifest."""
        import struct

        now = datetime.now().timestamp()
        for path in sorted(folder.path.glob("*.png")):
            data = path.read_bytes()
            width, height = struct.unpack(">II", data[16:24])
            image = self._summary.Image(height=height, width=width, colorspace=4, encoded_image_string=data)
            self._add(0, now, [self._summary.Value(tag=path.stem, image=image)])
        self._add(0, now, [self._text("manifest", json.dumps(folder.manifest(), indent=2))])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _text(self, tag: str, text: str) -> Any:
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype="DT_STRING", string_val=[f"```\n{text}\n```".encode()])
        return self._summary.Value(tag=tag, metadata=about, tensor=tensor)

    def _add(self, step: int, when: float, values: Sequence[Any]) -> None:
        self._writer.add_event(self._event(wall_time=when, step=step, summary=self._summary(value=values)))


class Wandb:
    """Weights & Biases, as its own environment variables set it up."""

    def __init__(self, uri: str = "") -> None:
        self.uri = uri

    def open(self, folder: RunFolder, state: Row) -> None:
        """Make or continue the run."""
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "arno"),
            id=state.get("run"),
            name=folder.path.name,
            config=folder.config() | {"manifest": folder.manifest()},
            resume="allow",
            dir=str(folder.path),
        )
        state["run"] = self._run.id

    def send(self, rows: Sequence[Row], began: float) -> None:
        """One call a round; the library sends them in batches."""
        for row in rows:
            self._run.log(numbers(row), step=row["round"])

    def finish(self, folder: RunFolder, status: str) -> None:
        """The folder's files."""
        for path in files(folder):
            self._run.save(str(path), base_path=str(folder.path), policy="now")

    def close(self) -> None:
        """End the run."""
        self._run.finish()


SINKS: dict[str, tuple[Callable[[str], Sink], tuple[str, ...]]] = {
    "mlflow": (Mlflow, ("mlflow", "sqlalchemy")),
    "tensorboard": (TensorBoard, ("tensorboard",)),
    "wandb": (Wandb, ("wandb",)),
}


def asked(track: Any) -> list[tuple[str, str]]:
    """The trackers of a setting, each with its address: `mlflow,tensorboard`, `mlflow@http://localhost:5000`.

    >>> asked(None), asked("mlflow@sqlite:///a.db, tensorboard")
    ([], [('mlflow', 'sqlite:///a.db'), ('tensorboard', '')])
    """
    words = track.split(",") if isinstance(track, str) else list(track or [])
    found = []
    for word in words:
        name, _, uri = str(word).strip().partition("@")
        if name not in SINKS:
            raise unknown("tracker", name, SINKS)
        for package in SINKS[name][1]:
            if find_spec(package) is None:
                raise need(name, package)
        found.append((name, uri))
    return found


class Tracking:
    """The senders of one run."""

    def __init__(self, path: Path, track: Any) -> None:
        self.path = path
        self._senders: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        for name, uri in asked(track):
            where = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
            remote = name == "wandb" or (name == "mlflow" and where.startswith(("http:", "https:", "databricks")))
            place(path, name).parent.mkdir(exist_ok=True)
            if before := read_state(path, name):
                write_state(path, name, before | {"finished": ""})  # the run goes on
            command = [sys.executable, "-m", "arno", "track", str(path), "--to", f"{name}@{uri}" if uri else name]
            log = (path / "track" / f"{name}.log").open("a")
            with log:
                sender = subprocess.Popen(
                    [*command, "--follow"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join([_home(), os.environ.get("PYTHONPATH", "")])},
                )
            self._senders[name] = (sender, WAIT_SERVER if remote else WAIT_FILES)

    def finish(self) -> list[str]:
        """The run is over: wait a while for the senders, and say what is left to do."""
        lines, began = [], time.monotonic()
        for name, (sender, wait) in self._senders.items():
            while sender.poll() is None and time.monotonic() < began + wait and not self._sent(name):
                time.sleep(0.02)
            if sender.returncode is None and self._sent(name):
                sender.returncode = 0  # all is sent; we need not wait for an interpreter to put its things away
            later = f"`arno track {self.path} --to {name}` sends the rest"
            if sender.returncode is None:
                sender.returncode = 0  # it goes on without us; no warning that it does
                lines.append(f"{name} is still being sent, in the background; should that fail, {later}")
            elif sender.returncode:
                why = read_state(self.path, name).get("error", f"see {self.path / 'track' / f'{name}.log'}")
                lines.append(f"{name} did not take everything ({why}); nothing is lost: {later}")
        return lines

    def _sent(self, name: str) -> bool:
        """Whether a tracker has everything of the run that is over."""
        return bool(read_state(self.path, name).get("finished"))


def send(path: Path, to: str, follow: bool = False, patience: float = PATIENCE) -> int:
    """Send what a run recorded and was not sent yet; with `follow`, go on until the run is over.

    Returns how many rounds were sent. Raises ArnoError if the tracker does not answer for `patience` seconds (while the
    run goes on it is asked again and again).
    """
    folder = RunFolder.open(path)
    parent, total, last, pause = os.getppid(), 0, time.monotonic(), LOOK
    rounds = folder.config()["rounds"]
    ((name, uri),) = asked(to)
    place(path, name).parent.mkdir(exist_ok=True)
    state, tail = read_state(path, name), Tail(path / "metrics.jsonl")
    sink: Sink | None = None
    pending: list[Row] = []
    with locked(path, name):
        while True:
            running = follow and folder.manifest()["status"] == "running" and os.getppid() == parent
            try:
                if sink is None:
                    fresh = SINKS[name][0](uri)
                    fresh.open(folder, state)
                    write_state(path, name, state)
                    sink = fresh
                    state.setdefault("sent", 0)
                    state.setdefault("began", _began(folder))
                if not pending:
                    pending = [row for row in tail.rows(BATCH // 4) if row["round"] > state["sent"]]
                if pending:
                    sink.send(pending, state["began"])
                    total += len(pending)
                    state |= {"sent": pending[-1]["round"], "finished": "", "error": ""}
                    write_state(path, name, state)
                    more = len(pending) == BATCH // 4  # else wait until there is something worth sending
                    pending, last = [], time.monotonic()
                    pause = LOOK if state["sent"] < rounds else LAST_LOOK
                    if more or not running:
                        continue
                elif not running and not tail.more():
                    status = folder.manifest()["status"]
                    if status != "running" and state.get("finished") != status:
                        sink.finish(folder, status)
                        state |= {"finished": status, "error": ""}
                    sink.close()
                    write_state(path, name, state)
                    return total
                last = time.monotonic()
            except ArnoError:
                raise
            except Exception as error:
                why = " ".join(str(error).split())[:200] or type(error).__name__
                if state.get("error") != why:
                    print(f"{datetime.now():%H:%M:%S} {name}: {why}", flush=True)
                    state["error"] = why
                    write_state(path, name, state)
                if not running and time.monotonic() - last > patience:
                    raise ArnoError(
                        f"{name} does not answer", why, f"the records stay in {path}; try again later"
                    ) from error
                pause = min(2 * pause, PATIENCE)
            if running:
                last = time.monotonic()  # patience is for the time after the run
            time.sleep(pause)


class Tail:
    """The complete lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.elapsed = path, 0, 0.0

    def rows(self, most: int) -> Iterator[Row]:
        """Up to `most` further rows."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.at)
            for _ in range(most):
                line = file.readline()
                if not line.endswith(b"\n"):
                    return
                self.at += len(line)
                row = json.loads(line)
                self.elapsed += row.get("seconds", 0.0)
                yield row | {ELAPSED: self.elapsed}

    def more(self) -> bool:
        """Whether there is something left to read."""
        return self.path.exists() and self.path.stat().st_size > self.at


def place(path: Path, name: str) -> Path:
    """Where a tracker's state lies."""
    return path / "track" / f"{name}.json"


def read_state(path: Path, name: str) -> Row:
    """How far a tracker came."""
    try:
        loaded: Row = json.loads(place(path, name).read_text())
    except (OSError, ValueError):
        return {}
    return loaded


def write_state(path: Path, name: str, state: Row) -> None:
    """Note how far it came, whole or not at all."""
    temporary = place(path, name).with_suffix(".part")
    temporary.write_text(json.dumps(state))
    temporary.replace(place(path, name))


@contextmanager
def locked(path: Path, name: str) -> Iterator[None]:
    """One sender at a time."""
    with (path / "track" / f"{name}.lock").open("w") as file:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArnoError(
                f"{path}", f"is being sent to {name} by another process", "wait for it, or end that process"
            ) from None
        yield


def _began(folder: RunFolder) -> float:
    started = folder.manifest().get("started")
    return datetime.fromisoformat(started).timestamp() if started else folder.path.stat().st_mtime


def _home() -> str:
    return str(Path(__file__).parents[2])
