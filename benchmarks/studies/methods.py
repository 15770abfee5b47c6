"""Every method on the same skewed digits: mean ± standard deviation over five seeds after 100 rounds.

    python benchmarks/studies/methods.py [--jobs 2] [--out runs/methods-study]

`digits`, Dirichlet(0.1), 100 clients, participation 0.1, two local epochs, batches of 10. At one seed all methods see
the same partition, start and cohorts. Nothing is tuned: every method runs with its defaults. Runs that are done are
not run again. Writes the table into docs/results/methods.md, between its two marks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter

from rich.console import Console

from arno import Comparison
from arno.grids.compare import run_grid
from arno.methods import methods

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "methods.md"
MARKS = ("<!-- table: begin -->", "<!-- table: end -->")
GRID = ["partition.alpha=0.1", "clients=100", "rounds=100", "local.epochs=2", "local.batch_size=10", "local.lr=0.05"]
GRID += ["local.lr_decay=1", "local.weight_decay=0", "local.clip=null", "eval.every=5", "checkpoint.every=50"]
#: Methods with one model for all clients.
NAMES = [name for name in methods.names() if methods.info(name)["family"] != "personal" and name != "compose"]
GRID += ["seed=0..4", "participation=0.1", f"method={','.join(NAMES)}"]
#: Lorenzo's pass goes over everybody, one after the other.
GRID += ["lorenzo.participation=1", "lorenzo.patience=null"]


def table(found: Comparison) -> str:
    def spread(values: list[float]) -> str:
        return f"{mean(values):.4f} ± {stdev(values):.4f}"

    last = {name: [run.history.iloc[-1] for run in runs] for name, runs in found.groups.items()}
    lines = ["| method | test F1 | test accuracy | local steps | uploaded MB |", "| --- | --- | --- | --- | --- |"]
    for name in sorted(last, key=lambda name: -mean(row["test_f1"] for row in last[name])):
        steps, sent = (mean(row[column] for row in last[name]) for column in ("local_steps", "uploaded_bytes"))
        scores = [spread([row[metric] for row in last[name]]) for metric in ("test_f1", "test_accuracy")]
        lines.append(f"| {name} | {scores[0]} | {scores[1]} | {steps:,.0f} | {sent / 1e6:,.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("runs/methods-study"))
    options = parser.parse_args()
    began = perf_counter()
    found = run_grid(GRID, options.out, {}, jobs=options.jobs, console=Console())
    for group in found.members:
        for seed, lost in group.lost.items():
            print(f"failed: {group.label} seed={seed}: {lost.reason}")
    made = table(found)
    print(made)
    print(f"{perf_counter() - began:.0f} s with {options.jobs} at a time; runs that were there are not counted")
    text = PAGE.read_text()
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{made}\n{MARKS[1]}{after}")
    shown = ("fedavg", "fedprox", "scaffold", "fedvarp", "feddyn", "fedavgm", "fedadam", "lorenzo")
    some = Comparison([group for group in found.members if group.name in shown])
    some.figure().savefig(PAGE.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
