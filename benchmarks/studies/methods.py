"""Every method on the same skewed digits: mean ± standard deviation over five seeds after 100 rounds.

    python benchmarks/studies/methods.py [--jobs 2] [--out runs/methods-study]

`digits`, Dirichlet(0.1), 100 clients, participation 0.1, two local epochs, batches of 10. At one seed all methods see
the same partition, start and cohorts. Nothing is tuned: every method runs with its defaults. Runs that are done are
not run again. Writes the table into docs/results/methods.md, between its two marks.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rich.console import Console

from arno.experiment.compare import Cell, _done, _train, cells, spread
from arno.methods import methods
from arno.report.pictures import draw_bands, read_metrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "methods.md"
MARKS = ("<!-- table: begin -->", "<!-- table: end -->")
SHARED = ["partition.alpha=0.1", "clients=100", "rounds=100", "local.epochs=2", "local.batch_size=10", "local.lr=0.05"]
SHARED += ["local.lr_decay=1", "local.weight_decay=0", "local.clip=null", "eval.every=5", "checkpoint.every=50"]
SHARED += ["seed=0..4", "engine.cores=1"]
#: Lorenzo's pass goes over everybody, one after the other; it is left out of the common setting and says so.
SEQUENTIAL = ["method=lorenzo", "participation=1", "method.patience=null"]


def grid() -> list[Cell]:
    names = [name for name in methods.names() if name not in ("compose", "lorenzo")]
    return [*cells([*SHARED, "participation=0.1", f"method={','.join(names)}"]), *cells([*SHARED, *SEQUENTIAL])]


def table(done: Sequence[Cell], out: Path) -> str:
    scores: dict[str, list[dict[str, float]]] = defaultdict(list)
    for cell in done:
        scores[cell.label].append(read_metrics(out / cell.folder)[-1])

    def mean(name: str) -> float:
        return sum(row["test_f1"] for row in scores[name]) / len(scores[name])

    lines = ["| method | test F1 | test accuracy | local steps | uploaded MB |", "| --- | --- | --- | --- | --- |"]
    for name in sorted(scores, key=lambda name: -mean(name)):
        rows = scores[name]
        steps = sum(row["local_steps"] for row in rows) / len(rows)
        sent = sum(row["uploaded_bytes"] for row in rows) / len(rows) / 1e6
        numbers = [spread([row[metric] for row in rows]) for metric in ("test_f1", "test_accuracy")]
        lines.append(f"| {name} | {numbers[0]} | {numbers[1]} | {steps:,.0f} | {sent:,.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("runs/methods-study"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    every = [Cell(cell.name or "method=lorenzo", cell.seed, cell.overrides) for cell in grid()]
    todo, began = [cell for cell in every if not _done(cell, options.out)], perf_counter()
    failed = _train(todo, options.out, options.jobs, len(every), Console())
    for cell, reason in failed.items():
        print(f"failed: {cell.label} seed={cell.seed}: {reason}")
    done = [cell for cell in every if cell not in failed]
    made = table(done, options.out)
    print(made)
    print(f"{len(todo)} runs, {perf_counter() - began:.0f} s with {options.jobs} at a time")
    text = PAGE.read_text()
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{made}\n{MARKS[1]}{after}")
    shown = ("fedavg", "fedprox", "scaffold", "fedvarp", "feddyn", "fedavgm", "fedadam", "lorenzo")
    groups = defaultdict(list)
    for cell in done:
        if cell.label in shown:
            groups[cell.label].append(options.out / cell.folder)
    draw_bands(groups, PAGE.with_suffix(".png"))


if __name__ == "__main__":
    main()
