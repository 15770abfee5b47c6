"""The rounds of a run: evaluation, records, checkpoints, and an orderly end in every case."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..config import settings as configs
from ..core.engine import Caller
from ..core.federation import Federation, Round
from ..errors import ArnoError, StoppedAtOnce, Unanswered, described, named
from ..methods.panels import Panel, headlines, messages, panels
from ..records import checkpoint as checkpoints
from ..records import disk
from ..records.folder import COUNTS, RESULTS, RunFolder, environment
from ..tracking.follow import Tracking
from .progress import Progress
from .result import RunResult
from .signals import stop_signals

#: The most names of clients, and of classes, that the manifest keeps.
NAMES = 10_000


class Interrupted(Exception):
    """The user stopped the run. The run continues from its last checkpoint."""


@dataclass
class Totals:
    """Totals over the rounds of a run.

    best_score: the best score so far, with the sign for which a larger score is better; −∞ before the first score.
    best, best_round: the model with this score, and its round.
    first: the number of the run's first round; None in checkpoints of release 0.1.
    """

    local_steps: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    seconds: float = 0.0
    best_score: float = -inf
    best_round: int = 0
    best: Tensor = field(default_factory=lambda: torch.zeros(0))
    first: int | None = None

    def plain(self) -> bool:
        """Whether all values have the types that a run writes."""
        sums = (self.local_steps, self.uploaded_bytes, self.downloaded_bytes, self.seconds, self.best_score)
        kinds = all(isinstance(x, int | float) for x in sums) and type(self.best_round) is int
        return kinds and isinstance(self.best, Tensor) and (self.first is None or type(self.first) is int)


class Loop:
    """A run in progress. notes: lines for the user about the folder in which it continues."""

    def __init__(
        self,
        config: dict[str, Any],
        fed: Federation,
        totals: Totals,
        folder: RunFolder,
        progress: Progress,
        notes: Sequence[str] = (),
        until: int | None = None,
    ) -> None:
        self.config, self.fed, self.totals, self.folder, self.progress = config, fed, totals, folder, progress
        self.notes, self.status, self.reason, self._engine = notes, "failed", "", fed.engine.name
        self.until = config["rounds"] if until is None else until
        self._own: dict[str, Tensor] | None = None  # statistics on the clients' own test samples, if just computed
        self.caller = Caller(say=lambda line: self.say([line]))

    def run(self, command: bool, pictures: bool) -> None:
        """Run all rounds. command: whether a command line can repeat the run. pictures: whether to draw pictures."""
        began = perf_counter()
        self.start(command)
        tracking = Tracking(self.folder.path, self.config["track"])
        try:
            with stop_signals(self.stop):
                self.rounds()
                if self.ended():
                    self.finish(pictures)
            self.status = "done" if self.ended() else "interrupted"
        except KeyboardInterrupt:
            raise self.interrupted("stopped at once; continue from the last checkpoint") from None
        except Unanswered as error:
            if not self.caller.stopping:
                self.reason = str(error)
                raise
            at = f"stopped in round {self.fed.t + 1}, which cannot end ({error})"
            raise self.interrupted(f"{at}; continue from the last checkpoint") from None
        except Interrupted:
            raise
        except BaseException as error:
            self.reason = str(error) if isinstance(error, ArnoError) else described(error)
            raise
        finally:
            self.close(tracking, perf_counter() - began)

    def start(self, command: bool) -> None:
        """Write the manifest, and show the user what runs."""
        fed, config, problem = self.fed, self.config, self.fed.problem
        counts = problem.label_counts()
        if counts is not None:
            self.folder.write_counts(counts)
        self.folder.update_manifest(
            status="running",
            command=shlex.join(["arno", "run", *configs.as_overrides(config)]) if command else None,
            **environment(),
            engine=self.engine_record(),
            kernel=problem.kernel,
            kernel_reason=problem.kernel_reason,
            device=str(problem.device),
            seed=config["seed"],
            data_fingerprint=problem.fingerprint(),
            parameters=fed.layout.d,
            client_count=problem.clients.n,
            **({"clients": list(problem.client_names)[:NAMES]} if problem.client_names else {}),
            **({"classes": list(problem.class_names)[:NAMES]} if problem.class_names else {}),
            **({"data_notes": list(problem.notes)} if problem.notes else {}),
            **({"validation": problem.validation} if problem.validation else {}),
            **(
                {"references": {name: dict(of) for name, of in problem.references.items()}}
                if problem.references
                else {}
            ),
            metrics=[metric.to_json() for metric in problem.metrics],
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
            resumed_after=fed.t,
            **self.folder.checksums((COUNTS,)),
        )
        title = f"{config['method']['kind']} on {problem.describe()}, engine {fed.engine.name}"
        self.progress.start(title, config["rounds"], fed.t, problem.headline)
        self.folder.log(title)
        fed.engine.keep_logs(self.folder.path / "logs")
        self.say([*self.notes, *fed.advice])
        fed.watch = self.progress.watch
        fed.engine.attach(self.caller)

    def stop(self, times: int) -> None:
        """At the first signal, let the round end and save the run; at the second signal, stop at once."""
        if times > 1:
            raise StoppedAtOnce
        self.caller.stopping = True
        with suppress(RuntimeError):  # the signal can arrive while another line is printed
            again = "Ctrl-C again stops at once, without saving this round"
            self.progress.say(f"stopping: this round ends, then the run is saved ({again})")

    def interrupted(self, what: str) -> Interrupted:
        """The exception for a run that the user stopped."""
        self.status = "interrupted"
        return Interrupted(f"{what} with: arno resume {self.folder.path}")

    def rounds(self) -> None:
        """Run the rounds until the last round or the round `until`, or until the user stops the run."""
        over = self.ended()
        while not over and self.fed.t < self.until:
            self.say(line for part in self.fed.parts for line in headlines(part))
            self.progress.round(self.round())
            if self.fed.engine.name != self._engine:
                self._engine = self.fed.engine.name
                self.say([f"engine: {self._engine}"])
            self.say(line for part in self.fed.parts for line in messages(part))
            over, every = self.ended(), self.config["checkpoint"]["every"]
            stopped = self.caller.stopping
            if stopped or (every and self.fed.t % every == 0) or over or self.fed.t >= self.until:
                self.save()
            if stopped and not over:
                raise self.interrupted(f"stopped after round {self.fed.t}; continue")

    def ended(self) -> bool:
        """Whether the last round is finished, or a part has ended the run before it."""
        return self.fed.t >= self.config["rounds"] or self.fed.stopped()

    def round(self) -> dict[str, Any]:
        """Run one round, evaluate the model if it is time for it, and write the records."""
        began, fed, totals = perf_counter(), self.fed, self.totals
        record, self._own = fed.round(), None
        self.say(dropped(record))
        row = summary(record, totals, fed.w.element_size())
        if fed.t % self.config["eval"]["every"] == 0 or self.ended():
            row |= fed.engine.report(fed.evaluated(), self.config["eval"]["clients"])
            self._own = fed.own_tallies()
            row |= fed.own_scores(self._own)
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
            disk.remove(old)

    def finish(self, pictures: bool) -> None:
        """Write the models, client tables, final scores, panels and pictures of a finished run."""
        fed, folder, totals = self.fed, self.folder, self.totals
        best, best_round = (totals.best, totals.best_round) if len(totals.best) else (fed.w, fed.t)
        for part in fed.parts:
            best, best_round = part.best_model() or (best, best_round)
        checkpoints.write_tensors(folder.path / "final.safetensors", {"w": fed.w})
        checkpoints.write_tensors(folder.path / "best.safetensors", {"w": best})
        own = fed.own_tallies() if self._own is None else self._own
        report = {name: score for part in fed.parts for name, score in part.final(fed.w).items()}
        fed.engine.close()  # frees the memory of the workers before tables and pictures need memory
        folder.merge_clients()
        if own:
            folder.write_client_scores({"round": [fed.t] * fed.n, **fed.problem.own_table(own)})
        folder.update_manifest(best_round=best_round, **({"report": report} if report else {}))
        self.say(f"{name}: {score:.4f}" for name, score in report.items())
        shown = self.panels()
        folder.write_panels(shown)
        if pictures:
            from ..pictures.curves import draw_curves
            from ..pictures.draw import write_panels

            disk.remove(folder.path / "curves.png")
            draw_curves(RunResult(folder.path).rows, fed.problem.headline, folder.path / "curves.png")
            write_panels(shown, folder.path)

    def panels(self) -> list[Panel]:
        """The panels of the parts; the run continues without the panels of a part that fails."""
        result, shown = RunResult(self.folder.path), list[Panel]()
        for part in self.fed.parts:
            try:
                shown += panels(part, result)
            except Exception as error:
                self.say([f"the panels of {type(part).__name__} are missing: {named(error)}"])
        return shown

    def close(self, tracking: Tracking, wall: float) -> None:
        """Release all resources, and write into the manifest how the run ended."""
        self.progress.stop()
        self.fed.engine.close()
        self.folder.close()
        self.folder.log(f"{self.status} after round {self.fed.t}" + (f": {self.reason}" if self.reason else ""))
        try:
            self.folder.end_manifest(
                status=self.status,
                reason=self.reason,
                rounds=self.fed.t,
                seconds=round(self.totals.seconds, 3),
                wall=round(wall, 3),
                engine=self.engine_record(),
                **self.folder.checksums(RESULTS if self.status == "done" else (COUNTS,)),
            )
        except ArnoError:
            if self.status == "done":  # otherwise another error is already being raised
                raise
        finally:
            self.say(tracking.finish())  # the senders read the end of the run from the manifest

    def engine_record(self) -> dict[str, Any]:
        """The engine that trained the clients, and how closely its numbers agree with those of `serial`."""
        engine = self.fed.engine
        return {"name": engine.name, "equality": engine.equality, "threads": torch.get_num_threads()}

    def say(self, lines: Iterable[str]) -> None:
        """Show lines to the user and log them."""
        for line in lines:
            self.progress.say(line)
            self.folder.log(line)


def summary(record: Round, totals: Totals, itemsize: int) -> dict[str, Any]:
    """The numbers of a round for the records; they are added to the totals."""
    clients = record.clients
    steps, weight = clients.get("steps", []), clients.get("weight", [])
    totals.local_steps += sum(steps)
    totals.uploaded_bytes += itemsize * sum(clients.get("uploaded", []))
    totals.downloaded_bytes += itemsize * sum(clients.get("downloaded", []))
    loss = sum(w * x for w, x in zip(weight, clients.get("loss", []), strict=True))
    if record.failures and weight:  # the mean over the clients that trained
        loss /= sum(weight)
    row: dict[str, Any] = {"round": record.t + 1, "seconds": 0.0, "clients": len(steps), "train_loss": loss}
    row |= {"local_steps": totals.local_steps, "uploaded_bytes": totals.uploaded_bytes}
    row["downloaded_bytes"] = totals.downloaded_bytes
    if taken := ", ".join(sorted(row.keys() & record.numbers.keys())):
        rule = "the run itself records a number of this name"
        raise ArnoError(f"a part records {taken}", rule, "use another name in `record`")
    return row | ({"dropped": record.dropped} if record.dropped else {}) | record.numbers


def dropped(record: Round, most: int = 3) -> list[str]:
    """Lines about the clients whose training failed in a round: one line for each of the first ones, and a number."""
    lines = [f"dropped: {why.rpartition('; ')[0]}" for why in record.failures[:most]]
    more = len(record.failures) - most
    return [*lines, f"dropped: {more} more clients in round {record.t + 1}"] if more > 0 else lines
