"""`arno compare`: run a grid and compare its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .parser import parser_of

if TYPE_CHECKING:
    from rich.console import Console

    from ..analysis.comparison import Comparison

ABOUT = """\
Settings are written as for `arno run`. Commas and ranges make a grid: method=fedavg,fedprox seed=0..4. Every cell of
the grid is a run. A setting of one method, or another value for one method, is written with the name of this method:
fedprox.mu=0.1, lorenzo.participation=1. Settings of the comparison itself: out=DIR (default: compare), target=0.9 (the
costs are those to reach this score), metric=test_accuracy (default: the task's first metric), test=wilcoxon (default:
t).

The methods are compared. With a single method, the values of the first key with several values are compared. If other
keys vary, there is one comparison for each combination of their values. Paired differences are to the first method.
If you give the same command again, finished cells are not run again, stopped cells continue, and failed cells are run
again only with --retry.
"""

EXAMPLES = """\
examples
  arno compare method=fedavg,fedprox,scaffold partition.alpha=0.1,1.0 seed=0..4 rounds=50 target=0.9
  arno compare method=fedavg,fedprox fedprox.mu=0.01,0.1 partition.alpha=0.1 seed=0..4 out=mu
  arno compare local.lr=0.01,0.03,0.1 seed=0..4 out=lr

The folder holds a run folder per cell, table.md, table.tex, table.csv, differences.csv, client_scores.csv (if clients
are scored), compare.png, report.html and compare.json.
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("compare", ABOUT, EXAMPLES)
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help="runs at a time; default: one per core")
    parser.add_argument(
        "--tuned", action="store_true", help="search the settings of each method first, as `arno tune` does"
    )
    parser.add_argument("--retry", action="store_true", help="run failed cells again, from their beginning")
    options = parser.settings(arguments)

    if options.tuned:
        from ..grids.searches import Plan
        from . import tune

        return tune.run(options.overrides, Plan(jobs=options.jobs, retry=options.retry), "compare")

    from rich.console import Console

    from ..grids.compare import own_keys, run_grid

    console = Console()
    own, words = own_keys(options.overrides)
    out = Path(own.pop("out") or "compare")
    try:
        found = run_grid(words, out, own, jobs=options.jobs, retry=options.retry, console=console)
    except KeyboardInterrupt:
        print("stopped; the same command continues it")
        return 130
    return tell(found, out, console)


def tell(found: Comparison, out: Path, console: Console) -> int:
    """Write tables, a picture and a report into the folder, and print the tables. Return the exit status."""
    from ..analysis.comparison_picture import bands
    from ..analysis.tuning import Tuning
    from ..report import search
    from ..report.html import write_report
    from ..report.tables import sheets, show, write

    tuning = Tuning.open(out)
    there = any(group.runs for group in found.members)
    lost = [(group, seed, cell) for group in found.members for seed, cell in group.lost.items()]
    tables = [*([search.sheet(tuning)] if tuning else []), *(sheets(found) if there else [])]
    if there:  # before anything is printed, because printing fails if stdout is a closed pipe
        write(found, tables, out)
        bands(found).savefig(out / "compare.png", dpi=130)
        write_report(found, out / "report.html")
    show(tables, console)
    for group, seed, cell in lost:
        word = "diverged" if cell.diverged else "failed"
        console.print(f"{word}: {group.label} seed={seed}: {cell.reason}", style="red", highlight=False, markup=False)
    if any(not cell.diverged for _, _, cell in lost):
        print("failed cells are run again with --retry")
    if there:
        clients = ", client_scores.csv" * (out / "client_scores.csv").exists()
        print(f"tables: {out / 'table.md'}, table.tex, table.csv, differences.csv{clients}")
        print(f"picture: {out / 'compare.png'}")
        print(f"report: {out / 'report.html'}")
    print(out)
    return 1 if lost else 0
