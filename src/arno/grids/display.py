"""The display of a comparison: how many cells are done, which ones run, and the time left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from .cells import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


class Display:
    """Counts the cells and shows nothing; subclasses show the counts.

    titles: the titles of the cells to run. total: the number of all cells, including those that were done before.
    failed: the cells without a result.
    """

    def __init__(self, titles: Sequence[str], total: int) -> None:
        self.titles, self.total, self.done = titles, total, total - len(titles)
        self.running: dict[int, float] = {}
        self.failed: list[int] = []
        self.began_at = monotonic()

    def began(self, cell: int) -> None:
        """Note that the cell has begun to run."""
        self.running[cell] = 0.0

    def moved(self, cell: int, rounds: int, total: int) -> None:
        """Note that `rounds` of its `total` rounds are done."""
        self.running[cell] = min(max(rounds, 0) / total, 1.0)

    def ended(self, cell: int, outcome: Outcome) -> None:
        """Note that the cell has ended."""
        self.running.pop(cell, None)
        self.done += not outcome.interrupted
        self.failed += [cell] * bool(outcome.reason)

    @property
    def left(self) -> str:
        """The remaining time as text, if the next cells take as long as the cells so far."""
        mine = self.done - (self.total - len(self.titles)) + sum(self.running.values())
        if mine < 0.05:
            return "?"
        spent = monotonic() - self.began_at
        return str(timedelta(seconds=round(spent / mine * (len(self.titles) - mine))))


class Lines(Display):
    """Prints a line for each cell that has ended."""

    def ended(self, cell: int, outcome: Outcome) -> None:
        """Print how the cell ended."""
        super().ended(cell, outcome)
        how = "diverged" if outcome.diverged else "failed" if outcome.reason else "done"
        left = f"  {self.left} left" if self.done < self.total else ""
        if not outcome.interrupted:
            print(f"{self.done}/{self.total}  {self.titles[cell]}  {how}{left}", flush=True)


class Bars(Display):
    """A bar for all cells and a bar for each cell that runs."""

    def __init__(self, titles: Sequence[str], total: int, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        super().__init__(titles, total)
        name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        text = TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True))
        self.bar = Progress(name, BarColumn(), text, console=console, transient=True)
        self.all = self.bar.add_task("cells", total=total, completed=self.done, text="")
        self.tasks: dict[int, Any] = {}
        self.show()

    def show(self) -> None:
        """Update the bar of all cells."""
        text = f"{self.done}/{self.total}  {self.left} left"
        self.bar.update(self.all, completed=self.done + sum(self.running.values()), text=text)

    def began(self, cell: int) -> None:
        """Add a bar for the cell."""
        super().began(cell)
        self.tasks[cell] = self.bar.add_task(f"  {self.titles[cell]}", total=None, text="starts")

    def moved(self, cell: int, rounds: int, total: int) -> None:
        """Move the bar of the cell."""
        super().moved(cell, rounds, total)
        self.bar.update(self.tasks[cell], total=total, completed=rounds, text=f"round {rounds}/{total}")
        self.show()

    def ended(self, cell: int, outcome: Outcome) -> None:
        """Remove the bar of the cell."""
        super().ended(cell, outcome)
        self.bar.remove_task(self.tasks.pop(cell))
        self.show()


@contextmanager
def display(titles: Sequence[str], total: int, console: Console | None) -> Iterator[Display]:
    """The display: bars on a terminal, lines on other outputs, nothing without a console."""
    if console is None or not titles:
        yield Display(titles, total)
    elif console.is_terminal:
        bars = Bars(titles, total, console)
        with bars.bar:
            yield bars
    else:
        yield Lines(titles, total)
