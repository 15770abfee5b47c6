"""The end of a run on the command line: its table and its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runs.result import RunResult


def finish(job: Callable[[], RunResult], quiet: bool) -> int:
    """Run the job, print its table and its folder; returns the exit status."""
    from ..runs.loop import Interrupted

    try:
        result = job()
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 130
    if not quiet:
        show(result)
    print(result.path)
    return 0


def show(result: RunResult) -> None:
    """The scores of the last model and of the best one, and where the picture is."""
    from rich.console import Console
    from rich.table import Table

    last, best_round = result.rows[-1], result.folder.manifest()["best_round"]
    best = next((row for row in result.rows if row["round"] == best_round), last)
    table = Table("", "last", "best")
    table.add_row("round", str(last["round"]), str(best["round"]))
    for metric in result.metrics:
        if metric.name in last:
            values = (metric.show(row[metric.name]) if metric.name in row else "–" for row in (last, best))
            table.add_row(metric.label, *values)
    console = Console()
    console.print(table)
    console.print(f"curves: {result.path / 'curves.png'}", highlight=False)
