"""The rounds of a run: evaluation, records, checkpoints, and an orderly end in every case."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..config import settings as configs
from ..core.federation import Federation, Round
from ..errors import ArnoError
from ..panels import Panel, messages, panels
from ..records import checkpoint as checkpoints
from ..records.folder import RunFolder, environment
from ..tracking.follow import Tracking
from .progress import Progress
from .result import RunResult

#: The manifest keeps at most so many names of clients.
NAMES = 10_000


class Interrupted(Exception):
    """The user stopped the run; it was saved first."""


@dataclass
class Totals:
    """What the run itself carries from round to round.

    best_score: the largest score of a model so far, more being better; −∞ before the first one.
    first: the number of the run's first round; None in checkpoints of release 0.1.
    """

    local_steps: int = 0
    uploaded_bytes: int = 0
    seconds: float = 0.0
    best_score: float = -inf
    best_round: int = 0
    best: Tensor = field(default_factory=lambda: torch.zeros(0))
    first: int | None = None


class Loop:
    """A run in progress. notes: what the user must know of the folder in which it continues."""

    def __init__(
        self,
        config: dict[str, Any],
        fed: Federation,
        totals: Totals,
        folder: RunFolder,
        progress: Progress,
        notes: Sequence[str] = (),
    ) -> None:
        self.config, self.fed, self.totals, self.folder, self.progress = config, fed, totals, folder, progress
        self.notes, self.status, self._engine = notes, "failed", fed.engine.name

    def run(self, command: bool, pictures: bool) -> None:
        """All rounds; `command`: whether a command line repeats the run; `pictures`: whether to draw some."""
        began = perf_counter()
        self.start(command)
        tracking = Tracking(self.folder.path, self.config["track"])
        try:
            with stop_signals(self.progress) as stopped:
                self.rounds(stopped)
                self.finish(pictures)
            self.status = "done"
        except KeyboardInterrupt:
            self.status = "interrupted"
            again = f"arno resume {self.folder.path}"
            raise Interrupted(f"stopped at once; continue from the last checkpoint with: {again}") from None
        finally:
            self.close(tracking, perf_counter() - began)

    def start(self, command: bool) -> None:
        """Write down what runs, and tell the user."""
        fed, config, problem = self.fed, self.config, self.fed.problem
        self.folder.update_manifest(
            status="running",
            command=shlex.join(["arno", "run", *configs.as_overrides(config)]) if command else None,
            **environment(),
            engine=self.engine_record(),
            kernel=problem.kernel,
            device=str(problem.device),
            seed=config["seed"],
            data_fingerprint=problem.fingerprint(),
            parameters=fed.layout.d,
            client_count=problem.clients.n,
            **({"clients": list(problem.client_names)[:NAMES]} if problem.client_names else {}),
            **({"data_notes": list(problem.notes)} if problem.notes else {}),
            metrics=[metric.to_json() for metric in problem.metrics],
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
            resumed_after=fed.t,
            checksums={},
        )
        counts = problem.label_counts()
        if counts is not None:
            self.folder.write_counts(counts)
        title = f"{config['method']['kind']} on {problem.describe()}, engine {fed.engine.name}"
        self.progress.start(title, config["rounds"], fed.t, problem.headline)
        self.folder.log(title)
        fed.engine.keep_logs(self.folder.path / "logs")
        self.say([*self.notes, *fed.advice])
        fed.watch = self.progress.watch

    def rounds(self, stopped: threading.Event) -> None:
        """Round after round until the last one, or until the user stops the run."""
        over = self.ended()
        while not over:
            self.progress.round(self.round())
            if self.fed.engine.name != self._engine:
                self._engine = self.fed.engine.name
                self.say([f"engine: {self._engine}"])
            self.say(line for part in self.fed.parts for line in messages(part))
            over, every = self.ended(), self.config["checkpoint"]["every"]
            if stopped.is_set() or (every and self.fed.t % every == 0) or over:
                self.save()
            if stopped.is_set() and not over:
                self.status = "interrupted"
                again = f"arno resume {self.folder.path}"
                raise Interrupted(f"stopped after round {self.fed.t}; continue with: {again}")

    def ended(self) -> bool:
        """Whether the last round is over, or a part ends the run before."""
        return self.fed.t >= self.config["rounds"] or self.fed.stopped()

    def round(self) -> dict[str, Any]:
        """One round, its evaluation if it is due, and its records."""
        began, fed, totals = perf_counter(), self.fed, self.totals
        record = fed.round()
        row = summary(record, totals, fed.w.element_size())
        if fed.t % self.config["eval"]["every"] == 0 or self.ended():
            row |= fed.engine.report(fed.evaluated(), self.config["eval"]["clients"])
            row |= fed.own_scores()
            selects = fed.problem.selects
            if selects is not None and selects.sign * row[selects.name] > totals.best_score:
                totals.best_score, totals.best_round = selects.sign * row[selects.name], fed.t
                totals.best = fed.w.clone()
        row["seconds"] = perf_counter() - began
        totals.seconds += row["seconds"]
        names = fed.problem.client_names
        named = {"name": [names[k] for k in record.clients.get("client", [])]} if names else {}
        self.folder.add(row, record.clients | named)
        return row

    def save(self) -> None:
        """Write a checkpoint and remove the oldest ones."""
        t = self.fed.t
        self.folder.sync()
        self.folder.flush_clients(t)
        state = checkpoints.Checkpoint(t, self.fed.state(), dict(vars(self.totals)), self.config)
        checkpoints.save(self.folder.checkpoint_path(t), state)
        for old in self.folder.saved()[: -self.config["checkpoint"]["keep"]]:
            old.unlink()

    def finish(self, pictures: bool) -> None:
        """The models, the clients' table, the final report, the panels and the pictures of a finished run."""
        fed, folder, totals = self.fed, self.folder, self.totals
        best, best_round = (totals.best, totals.best_round) if len(totals.best) else (fed.w, fed.t)
        for part in fed.parts:
            best, best_round = part.best_model() or (best, best_round)
        checkpoints.write_tensors(folder.path / "final.safetensors", {"w": fed.w})
        checkpoints.write_tensors(folder.path / "best.safetensors", {"w": best})
        folder.merge_clients()
        report = {name: score for part in fed.parts for name, score in part.final(fed.w).items()}
        folder.update_manifest(best_round=best_round, **({"report": report} if report else {}))
        self.say(f"{name}: {score:.4f}" for name, score in report.items())
        shown = self.panels()
        folder.write_panels(shown)
        if pictures:
            from ..pictures.curves import draw_curves
            from ..pictures.draw import write_panels

            draw_curves(RunResult(folder.path).rows, fed.problem.headline, folder.path / "curves.png")
            write_panels(shown, folder.path)

    def panels(self) -> list[Panel]:
        """What the parts show of the run; where that fails, the run continues without the panel."""
        result, shown = RunResult(self.folder.path), list[Panel]()
        for part in self.fed.parts:
            try:
                shown += panels(part, result)
            except Exception as error:
                self.say([f"the panels of {type(part).__name__} are missing: {type(error).__name__}: {error}"])
        return shown

    def close(self, tracking: Tracking, wall: float) -> None:
        """Release everything and write down how the run ended."""
        self.progress.stop()
        self.fed.engine.close()
        self.folder.close()
        self.folder.log(f"{self.status} after round {self.fed.t}")
        try:
            self.folder.update_manifest(
                status=self.status,
                rounds=self.fed.t,
                seconds=round(self.totals.seconds, 3),
                wall=round(wall, 3),
                engine=self.engine_record(),
                checksums=self.folder.checksums() if self.status == "done" else {},
            )
        except ArnoError:
            if self.status == "done":  # else another error is being raised
                raise
        finally:
            self.say(tracking.finish())  # trackers read from the manifest that the run is over

    def engine_record(self) -> dict[str, Any]:
        """Where the clients trained, and how far that may change the result."""
        engine = self.fed.engine
        return {"name": engine.name, "equality": engine.equality, "threads": torch.get_num_threads()}

    def say(self, lines: Iterable[str]) -> None:
        """Show lines to the user and log them."""
        for line in lines:
            self.progress.say(line)
            self.folder.log(line)


def summary(record: Round, totals: Totals, itemsize: int) -> dict[str, Any]:
    """The round in numbers; adds them to the totals."""
    clients = record.clients
    steps, weight = clients.get("steps", []), clients.get("weight", [])
    totals.local_steps += sum(steps)
    totals.uploaded_bytes += itemsize * sum(clients.get("uploaded", []))
    loss = sum(w * x for w, x in zip(weight, clients.get("loss", []), strict=True))
    row: dict[str, Any] = {"round": record.t + 1, "seconds": 0.0, "clients": len(steps), "train_loss": loss}
    row |= {"local_steps": totals.local_steps, "uploaded_bytes": totals.uploaded_bytes}
    return row | ({"dropped": record.dropped} if record.dropped else {}) | record.numbers


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
