"""The end of a run on the command line: its table and its folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runs.run import RunResult


def finish(job: Callable[[], RunResult], quiet: bool) -> int:
    """Run the job, print its table and its folder; returns the exit status."""
    from ..runs.run import Interrupted

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
    """The scores of the last model and of the best one."""
    from rich.console import Console
    from rich.table import Table

    from ..runs.progress import number

    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    best_round = result.folder.manifest()["best_round"]
    best = next((row for row in rows if row["round"] == best_round), rows[-1])
    shown = {
        "test_accuracy": "test accuracy",
        "test_f1": "test F1",
        "test_loss": "test loss",
        "val_f1": "validation F1",
        "client_accuracy_mean": "per client",
        "client_accuracy_std": "std",
        "client_accuracy_worst_decile": "worst 10%",
    }
    metrics = [metric for metric in shown if metric in rows[-1]] or [k for k, v in rows[-1].items() if k != "round"]
    table = Table("", "last", "best")
    table.add_row("round", str(rows[-1]["round"]), str(best["round"]))
    for metric in metrics:
        numbers = ("–" if metric not in row else number(row[metric]) for row in (rows[-1], best))
        table.add_row(shown.get(metric, metric), *numbers)
    console = Console()
    console.print(table)
    console.print(f"curves: {result.path / 'curves.png'}", highlight=False)
