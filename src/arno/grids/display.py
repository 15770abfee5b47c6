"""What a person sees while a comparison goes on: cells done, cells running and the time left, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from .worker import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


class Cells:
    """Follows cells without showing anything; others show what it knows."""

    def __init__(self, titles: Sequence[str], total: int) -> None:
        self.titles, self.total, self.done = titles, total, total - len(titles)
        self.running: dict[int, float] = {}
        self.began_at = monotonic()

    def began(self, cell: int) -> None:
        """It runs."""
        self.running[cell] = 0.0

    def moved(self, cell: int, rounds: int, total: int) -> None:
        """So many of its rounds are done."""
        self.running[cell] = min(max(rounds, 0) / total, 1.0)

    def ended(self, cell: int, outcome: Outcome) -> None:
        """It is over."""
        self.running.pop(cell, None)
        self.done += not outcome.interrupted

    @property
    def left(self) -> str:
        """The time left if the cells to come are like those so far."""
        mine = self.done - (self.total - len(self.titles)) + sum(self.running.values())
        if mine < 0.05:
            return "?"
        spent = monotonic() - self.began_at
        return str(timedelta(seconds=round(spent / mine * (len(self.titles) - mine))))


class Lines(Cells):
    """A line per finished cell."""

    def ended(self, cell: int, outcome: Outcome) -> None:
        """Say how."""
        super().ended(cell, outcome)
        how = "diverged" if outcome.diverged else "failed" if outcome.reason else "done"
        left = f"  {self.left} left" if self.done < self.total else ""
        if not outcome.interrupted:
            print(f"{self.done}/{self.total}  {self.titles[cell]}  {how}{left}", flush=True)


class Bars(Cells):
    """A bar for all cells and one for each that runs."""

    def __init__(self, titles: Sequence[str], total: int, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        super().__init__(titles, total)
        name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        more = TextColumn("{task.fields[said]}", table_column=Column(no_wrap=True))
        self.bar = Progress(name, BarColumn(), more, console=console, transient=True)
        self.all = self.bar.add_task("cells", total=total, completed=self.done, said="")
        self.tasks: dict[int, Any] = {}
        self.show()

    def show(self) -> None:
        """Bring the bar of all cells up to date."""
        said = f"{self.done}/{self.total}  {self.left} left"
        self.bar.update(self.all, completed=self.done + sum(self.running.values()), said=said)

    def began(self, cell: int) -> None:
        """A bar more."""
        super().began(cell)
        self.tasks[cell] = self.bar.add_task(f"  {self.titles[cell]}", total=None, said="starts")

    def moved(self, cell: int, rounds: int, total: int) -> None:
        """Move its bar."""
        super().moved(cell, rounds, total)
        self.bar.update(self.tasks[cell], total=total, completed=rounds, said=f"round {rounds}/{total}")
        self.show()

    def ended(self, cell: int, outcome: Outcome) -> None:
        """A bar less."""
        super().ended(cell, outcome)
        self.bar.remove_task(self.tasks.pop(cell))
        self.show()


@contextmanager
def display(titles: Sequence[str], total: int, console: Console | None) -> Iterator[Cells]:
    """The display that suits the console; none without one."""
    if console is None or not titles:
        yield Cells(titles, total)
    elif console.is_terminal:
        bars = Bars(titles, total, console)
        with bars.bar:
            yield bars
    else:
        yield Lines(titles, total)
