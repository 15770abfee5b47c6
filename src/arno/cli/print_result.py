"""What a command prints at the end of a run: its table and its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..runs.result import RunResult


def finish(job: Callable[[], RunResult], quiet: bool) -> int:
    """Run the job, and print its table and its folder. Return the exit status."""
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
    """Print the scores of the last model, the best model and the reference models, and the path of the picture."""
    from rich.console import Console
    from rich.table import Table

    manifest = result.folder.manifest()
    last, best_round, references = result.rows[-1], manifest["best_round"], manifest.get("references", {})
    best = next((row for row in result.rows if row["round"] == best_round), last)
    table = Table("", "last", "best", *references)
    table.add_row("round", str(last["round"]), str(best["round"]))
    for metric in result.metrics:
        if metric.name in last:
            values = [metric.show(row[metric.name]) if metric.name in row else "–" for row in (last, best)]
            others = [metric.show(of[metric.name]) if metric.name in of else "" for of in references.values()]
            table.add_row(metric.label, *values, *others)
    if result.dropped:
        table.add_row("clients dropped", f"{result.dropped:,}")
    console = Console()
    console.print(table)
    show_clients(result, console)
    console.print(f"curves: {result.path / 'curves.png'}", highlight=False)


def show_clients(result: RunResult, console: Console) -> None:
    """Print the scores of the single clients; of the worst few if there are many clients."""
    from ..analysis.comparison import Comparison
    from ..report.tables import clients_of, show

    for sheet in clients_of(Comparison.of([result])):
        show([sheet], console)
