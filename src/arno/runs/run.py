"""Run a configuration: rounds, evaluation, records, checkpoints, and an orderly end whatever happens."""

from __future__ import annotations

import json
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.federation import Federation, Round
from ..core.part import Part
from ..errors import ArnoError
from ..config import build
from . import stages
from ..records import checkpoint as checkpoints
from ..config import settings as configs
from ..records.folder import RunFolder, environment
from .progress import Progress, Quiet
from ..tracking.follow import Tracking, asked

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


class Interrupted(Exception):
    """The user stopped the run; it was saved first."""


@dataclass
class Totals:
    """What the run itself carries from round to round."""

    local_steps: int = 0
    uploaded_bytes: int = 0
    seconds: float = 0.0
    best_score: float = -1.0
    best_round: int = 0
    best: Tensor = field(default_factory=lambda: torch.zeros(0))


class RunResult:
    """A finished run, read from its folder.

    history: one row per round. clients: one row per client and round. final, best: the vector after the last round and
    at the best validation F1. model(): the network with those weights.
    """

    def __init__(self, path: Path | str) -> None:
        self.folder = RunFolder.open(Path(path))
        self.path = self.folder.path

    def __repr__(self) -> str:
        return f"RunResult({str(self.path)!r})"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self.folder.config()

    @cached_property
    def history(self) -> pd.DataFrame:
        """`metrics.jsonl`, one row per round."""
        import pandas as pd

        rows = []
        for line in (self.path / "metrics.jsonl").read_text().splitlines():
            with suppress(ValueError):  # a kill may have cut the last one short
                rows.append(json.loads(line))
        return pd.DataFrame(rows, columns=None if rows else ["round"]).set_index("round")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """`clients.parquet`, one row per client and round it took part in; of a run not over, what it has saved."""
        import pandas as pd

        pieces = [pd.read_parquet(piece) for piece in self.folder.client_records()]
        return pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame(columns=["round", "client"])

    @cached_property
    def counts(self) -> NDArray[np.int32] | None:
        """How many samples of each class each client holds, [clients, classes]; None if the run did not note it."""
        import numpy as np

        path = self.path / "counts.npy"
        return np.load(path) if path.exists() else None

    @cached_property
    def final(self) -> Tensor:
        """The model after the last round."""
        return checkpoints.read_tensors(self.path / "final.safetensors")[0]["w"]

    @cached_property
    def best(self) -> Tensor:
        """The model with the best validation F1 (the last one if nothing was held out)."""
        return checkpoints.read_tensors(self.path / "best.safetensors")[0]["w"]

    @cached_property
    def problem(self) -> Any:
        """The problem (data, partition, network), built again from the configuration."""
        return build.problems.build(self.config["problem"], self.config)

    def model(self, which: str = "best") -> nn.Module:
        """The network with the weights of `best` or `final`, in evaluation mode."""
        network: nn.Module = self.problem.model(self.best if which == "best" else self.final)
        return network


def run(*overrides: str, method: Any = None, progress: Progress | None = None, **settings: Any) -> RunResult:
    """Train a federation; the same settings as on the command line, as strings or keywords.

    >>> import arno
    >>> result = arno.run("partition.alpha=0.1", method="fedprox", rounds=2, clients=5)    # doctest: +SKIP
    >>> result.history["test_accuracy"]                                                    # doctest: +SKIP

    overrides: `key=value` strings.
    method: a method's name, or a list of parts.
    settings: anything else, sections as dictionaries: `local={"lr": 0.1}`, `data="digits"`.
    """
    parts = None
    if isinstance(method, Sequence) and not isinstance(method, str):
        parts, method = list(method), None
    given = settings if method is None else {"method": method, **settings}
    config = configs.plain(configs.compose(overrides, given))
    return execute(config, progress or Quiet(), parts)


def resume(
    path: Path | str,
    *overrides: str,
    parts: Sequence[Part] | None = None,
    progress: Progress | None = None,
    previous: bool = False,
    pictures: bool = True,
) -> RunResult:
    """Continue a run from its last checkpoint (or the one before it); the result is that of a run never stopped."""
    folder = RunFolder.open(Path(path))
    config = configs.plain(configs.compose(overrides, folder.config()))
    saved = folder.saved()
    if not saved:
        odd = configs.differences(folder.config(), config)
        if odd:
            raise _other_config(odd)
        folder.rewind(-1)
        return execute(config, progress or Quiet(), parts, folder, pictures=pictures)
    if previous and len(saved) < 2:
        raise ArnoError(f"{path}", "it has no checkpoint before the last one", "leave out --previous")
    loaded = checkpoints.load(saved[-2 if previous else -1])
    odd = configs.differences(loaded.config, config)
    if odd:
        raise _other_config(odd)
    if config["rounds"] < loaded.round:
        done = f"{loaded.round} rounds are done, and none is undone"
        raise ArnoError(f"rounds = {config['rounds']}", done, f"try rounds={loaded.round + 10}")
    return execute(config, progress or Quiet(), parts, folder, loaded, pictures)


def execute(
    config: dict[str, Any],
    progress: Progress,
    parts: Sequence[Part] | None = None,
    folder: RunFolder | None = None,
    saved: checkpoints.Checkpoint | None = None,
    pictures: bool = True,
) -> RunResult:
    """Run or continue a resolved configuration in its folder."""
    asked(config["track"])
    fed, totals = build.federation(config, parts), Totals()
    if config["load"] and saved is None:
        stages.begin(fed, config)
    if folder is None:
        folder = RunFolder.create(config)
    else:
        _same_data(folder, fed)
    if saved is not None:
        fed.restore(saved.federation)
        totals = Totals(**saved.run)
        folder.rewind(saved.round)
        folder.write_config(config)
    began = perf_counter()
    folder.update_manifest(
        status="running",
        command=None if parts is not None else shlex.join(["arno", "run", *configs.as_overrides(config)]),
        **environment(),
        engine=engine_record(fed, config),
        device=str(fed.problem.device),
        seed=config["seed"],
        data_fingerprint=fed.problem.fingerprint(),
        parameters=fed.layout.d,
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        resumed_after=fed.t,
    )
    counts = getattr(fed.problem, "label_counts", None)
    if counts is not None:
        folder.write_counts(counts())
    title = f"{config['method']['kind']} on {fed.problem.describe()}, engine {fed.engine.name}"
    progress.start(title, config["rounds"], fed.t)
    folder.log(title)
    if keep_logs := getattr(fed.engine, "keep_logs", None):
        keep_logs(folder.path / "logs")
    advice = getattr(fed.problem, "advice", None)
    for line in advice(fed) if advice else ():
        progress.say(line)
        folder.log(line)
    fed.watch = progress.watch
    tracking = Tracking(folder.path, config["track"])
    status, engine = "failed", fed.engine.name
    try:
        with stop_signals(progress) as stopped:
            over = ended(fed, config)
            while not over:
                row = one_round(fed, config, totals, folder)
                progress.round(row)
                if fed.engine.name != engine:
                    engine = fed.engine.name
                    progress.say(f"engine: {engine}")
                    folder.log(f"engine: {engine}")
                for line in (line for part in fed.parts for line in part.lines()):
                    progress.say(line)
                    folder.log(line)
                over, every = ended(fed, config), config["checkpoint"]["every"]
                if stopped.is_set() or (every and fed.t % every == 0) or over:
                    save(fed, config, totals, folder)
                if stopped.is_set() and not over:
                    status = "interrupted"
                    raise Interrupted(f"stopped after round {fed.t}; continue with: arno resume {folder.path}")
            finish(fed, totals, folder, progress, pictures)
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise Interrupted(
            f"stopped at once; continue from the last checkpoint with: arno resume {folder.path}"
        ) from None
    finally:
        progress.stop()
        fed.engine.close()
        folder.close()
        folder.log(f"{status} after round {fed.t}")
        seconds, wall = round(totals.seconds, 3), round(perf_counter() - began, 3)
        try:
            folder.update_manifest(
                status=status, rounds=fed.t, seconds=seconds, wall=wall, engine=engine_record(fed, config)
            )
        except ArnoError:
            if status == "done":  # else what went wrong is on its way already
                raise
        finally:
            for line in tracking.finish():  # the trackers read from the manifest that the run is over
                progress.say(line)
                folder.log(line)
    return RunResult(folder.path)


def engine_record(fed: Federation, config: Mapping[str, Any]) -> dict[str, Any]:
    """Where the clients trained, and how far that may change the result."""
    usual = configs.registry("engine").info(config["engine"]["kind"]).get("equality", "unknown")
    equality = getattr(fed.engine, "equality", usual)
    return {"name": fed.engine.name, "equality": equality, "threads": torch.get_num_threads()}


def ended(fed: Federation, config: Mapping[str, Any]) -> bool:
    """Whether the last round is over, or a part has seen enough."""
    return fed.t >= config["rounds"] or any(part.done() for part in fed.parts)


def one_round(fed: Federation, config: Mapping[str, Any], totals: Totals, folder: RunFolder) -> dict[str, Any]:
    """One round, its evaluation if it is due, and its records."""
    began = perf_counter()
    record = fed.round()
    row = summary(record, totals, fed.w.element_size())
    if fed.t % config["eval"]["every"] == 0 or ended(fed, config):
        row |= fed.engine.report(fed.w, config["eval"]["clients"])
        score = row.get("val_f1")
        if score is not None and score > totals.best_score:
            totals.best_score, totals.best_round, totals.best = score, fed.t, fed.w.clone()
    row["seconds"] = perf_counter() - began
    totals.seconds += row["seconds"]
    folder.add(row, record.clients)
    return row


def summary(record: Round, totals: Totals, itemsize: int) -> dict[str, Any]:
    """The round in numbers; the totals move on."""
    clients = record.clients
    steps, weight = clients.get("steps", []), clients.get("weight", [])
    totals.local_steps += sum(steps)
    totals.uploaded_bytes += itemsize * sum(clients.get("uploaded", []))
    loss = sum(w * x for w, x in zip(weight, clients.get("loss", []), strict=True))
    row: dict[str, Any] = {"round": record.t + 1, "seconds": 0.0, "clients": len(steps), "train_loss": loss}
    row |= {"local_steps": totals.local_steps, "uploaded_bytes": totals.uploaded_bytes}
    return row | ({"dropped": record.dropped} if record.dropped else {}) | record.numbers


def save(fed: Federation, config: dict[str, Any], totals: Totals, folder: RunFolder) -> None:
    """Checkpoint the run and drop the oldest checkpoints."""
    folder.flush_clients(fed.t)
    state = checkpoints.Checkpoint(fed.t, fed.state(), dict(vars(totals)), config)
    checkpoints.save(folder.checkpoint_path(fed.t), state)
    for old in folder.saved()[: -config["checkpoint"]["keep"]]:
        old.unlink()


def finish(fed: Federation, totals: Totals, folder: RunFolder, progress: Progress, pictures: bool) -> None:
    """The models, the clients' table, the final report and the pictures of a finished run."""
    best, best_round = (totals.best, totals.best_round) if len(totals.best) else (fed.w, fed.t)
    for part in fed.parts:  # a part may keep a best model by a rule of its own
        best, best_round = getattr(part, "best", best), getattr(part, "best_round", best_round)
    checkpoints.write_tensors(folder.path / "final.safetensors", {"w": fed.w})
    checkpoints.write_tensors(folder.path / "best.safetensors", {"w": best})
    folder.merge_clients()
    report = {name: score for part in fed.parts for name, score in part.close(fed).items()}
    folder.update_manifest(best_round=best_round, **({"report": report} if report else {}))
    for name, score in report.items():
        progress.say(f"{name}: {score:.4f}")
        folder.log(f"{name}: {score:.4f}")
    if pictures:
        from ..pictures.figures import draw_curves

        draw_curves([folder.path], folder.path / "curves.png")
        for part in fed.parts:
            part.draw(folder.path)


@contextmanager
def stop_signals(progress: Progress) -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM lets the round end and saves; the second stops at once."""
    stopped = threading.Event()

    def on_signal(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()
        progress.say("stopping: this round ends, then the run is saved (again: stop at once)")

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _same_data(folder: RunFolder, fed: Federation) -> None:
    """Refuse to go on with other data than the run began with."""
    earlier = folder.manifest().get("data_fingerprint") if (folder.path / "manifest.json").exists() else None
    if earlier not in (None, fed.problem.fingerprint()):
        raise ArnoError(f"the data of {folder.path}", "they have changed since the run began", "start a new run")


def _other_config(odd: list[str]) -> ArnoError:
    return ArnoError(
        f"the configuration differs from the checkpoint's in {'; '.join(odd)}",
        "only rounds, eval, checkpoint and out may change",
        "start a new run for that",
    )
