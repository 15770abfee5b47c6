"""The display of a run: a progress bar on a terminal, lines on other outputs, nothing with --quiet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any, Protocol

from ..core.metric import TRAIN_LOSS, Metric

SILENCE = 5.0  # seconds without a line, after which `Lines` prints the progress within a round


class Progress(Protocol):
    """The interface of a display."""

    def start(self, title: str, rounds: int, done: int, metrics: Sequence[Metric] = ()) -> None:
        """The run begins or continues after `done` rounds. metrics: the metrics that are shown."""
        ...

    def round(self, row: dict[str, Any]) -> None:
        """A round has ended. row: its record."""
        ...

    def watch(self, line: str) -> None:
        """Show a line about the progress within a round."""
        ...

    def say(self, line: str) -> None:
        """Show a line to the user."""
        ...

    def stop(self) -> None:
        """The run has ended."""
        ...


def choose(quiet: bool = False) -> Progress:
    """The display for this output: a bar on a terminal, lines on other outputs, nothing with `quiet`."""
    return Quiet() if quiet else Bar() if sys.stdout.isatty() else Lines()


class Quiet:
    """Shows nothing."""

    def start(self, title: str, rounds: int, done: int, metrics: Sequence[Metric] = ()) -> None:
        """Nothing."""

    def round(self, row: dict[str, Any]) -> None:
        """Nothing."""

    def watch(self, line: str) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Lines(Quiet):
    """One line per evaluated round; in a long round, also lines about the progress within the round."""

    def start(self, title: str, rounds: int, done: int, metrics: Sequence[Metric] = ()) -> None:
        """Print the title of the run."""
        self.rounds, self.first, self.began, self.seen = rounds, done, perf_counter(), 0
        self.metrics = metrics
        self.say(title)

    def round(self, row: dict[str, Any]) -> None:
        """Print the scores of an evaluated round."""
        self.seen += row["clients"]
        if any(metric.name in row for metric in scored(self.metrics)):
            spent = perf_counter() - self.began
            left = timedelta(seconds=round(spent / (row["round"] - self.first) * (self.rounds - row["round"])))
            speed = rate(self.seen / spent)
            self.say(f"round {row['round']}/{self.rounds}  {scores(row, self.metrics)}  {speed}  {left} left")

    def watch(self, line: str) -> None:
        """Print the line if nothing was printed in the last seconds."""
        if perf_counter() - self.spoke > SILENCE:
            self.say(f"  {line}")

    def say(self, line: str) -> None:
        """Print the line."""
        self.spoke = perf_counter()
        print(line, flush=True)


class Bar(Quiet):
    """A progress bar with round, scores, clients per second and time left."""

    def start(self, title: str, rounds: int, done: int, metrics: Sequence[Metric] = ()) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        self.bar = Rich(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[scores]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(),
            expand=True,
        )
        self.metrics = scored(metrics)[:2] if self.bar.console.width < 120 else metrics
        self.began, self.seen, self.last = perf_counter(), 0, ""
        self.bar.console.print(title, highlight=False)
        self.task = self.bar.add_task("round", total=rounds, completed=max(done, 0), scores="")
        self.bar.start()

    def round(self, row: dict[str, Any]) -> None:
        """Advance the bar."""
        self.seen += row["clients"]
        if any(metric.name in row for metric in scored(self.metrics)):
            self.last = scores(row, self.metrics)
        speed = self.seen / (perf_counter() - self.began)
        self.bar.update(self.task, completed=row["round"], scores=f"{self.last}  {rate(speed)}")

    def watch(self, line: str) -> None:
        """Show the line in place of the scores until the round ends."""
        self.bar.update(self.task, scores=line)

    def say(self, line: str) -> None:
        """Print the line above the bar."""
        self.bar.console.print(line, highlight=False)

    def stop(self) -> None:
        """Stop the bar; it stays on the screen."""
        self.bar.stop()


def rate(speed: float) -> str:
    """Clients per second, with enough digits for slow rounds.

    >>> rate(1234.5), rate(0.0321)
    ('1234 clients/s', '0.032 clients/s')
    """
    return f"{speed:.0f} clients/s" if speed >= 10 else f"{speed:.2g} clients/s"


def scored(metrics: Sequence[Metric]) -> Sequence[Metric]:
    """The metrics of an evaluation, that is, all metrics except the training loss."""
    return [metric for metric in metrics if metric != TRAIN_LOSS]


def scores(row: dict[str, Any], metrics: Sequence[Metric]) -> str:
    """The scores of a round that are shown.

    >>> scores({"gap": 0.5}, [Metric("gap", "F(w) − F(w*)", "less")])
    'F(w) − F(w*) 0.5000'
    """
    shown = (
        f"{metric.short or metric.label} {metric.show(row[metric.name])}" for metric in metrics if metric.name in row
    )
    lost = [f"dropped {row['dropped']}"] if row.get("dropped") else []
    return "  ".join([*shown, *lost])
