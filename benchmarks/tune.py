"""What `arno tune` costs beside its runs, and what ending bad trials early saves.

    python benchmarks/tune.py [--trials 24] [--rounds 40]

Four methods on skewed digits are tuned twice, with and without pruning, one run at a time. Printed: the rounds of all
trials, the best settings of each method with their validation score, the order of the methods in the comparison on
fresh seeds; and the overhead: the time of the search outside its runs (proposals, configurations, reading of scores,
records) as a share of the time in the runs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import arno
from arno.analysis.comparison import Comparison
from arno.analysis.tuning import Tuning
from arno.grids import searches

SETTINGS = ["method=fedavg,fedprox,scaffold,fedadam", "partition.alpha=0.1", "participation=0.3", "seed=0..2"]


def searched(out: Path, trials: int, rounds: int, prune: bool) -> tuple[Tuning, Comparison, float, float]:
    """The search, the comparison, and the seconds of the search in its runs and outside of them."""
    inside, whole, run_cells, run = 0.0, 0.0, searches.run_cells, searches.Searching.run

    def timed_cells(*arguments: Any) -> bool:
        nonlocal inside
        began = perf_counter()
        done = run_cells(*arguments)
        inside += perf_counter() - began
        return done

    def timed_search(self: searches.Searching, *arguments: Any) -> None:
        nonlocal whole
        began = perf_counter()
        run(self, *arguments)
        whole = perf_counter() - began

    searches.run_cells, searches.Searching.run = timed_cells, timed_search  # type: ignore[assignment]
    try:
        found = arno.tune(*SETTINGS, f"rounds={rounds}", out=out, trials=trials, prune=prune, jobs=1)
    finally:
        searches.run_cells, searches.Searching.run = run_cells, run  # type: ignore[assignment]
    record = Tuning.open(out)
    assert record is not None
    return record, found, inside, whole - inside


def main() -> None:
    """Search twice and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    spent, best = {}, {}
    for prune in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            record, found, inside, outside = searched(Path(folder), options.trials, options.rounds, prune)
            spent[prune] = sum(group.cost("rounds") for group in record.groups)
            print(f"{'with' if prune else 'without'} pruning: {spent[prune]:,.0f} rounds, {inside:.1f} s in the runs")
            print(f"  overhead: {outside:.2f} s, {outside / inside:.1%} of the time in the runs")
            best[prune] = {group.label: group.best for group in record.groups}
            for group in record.groups:
                chosen = ", ".join(f"{key} = {value}" for key, value in group.best.items())
                print(f"  {group.label:<10} validation {group.score:.4f}  {chosen}")
            table = found.table()
            order = ", ".join(f"{row['name']} {row['final']:.4f}" for _, row in table.iterrows())
            print(f"  comparison on fresh seeds: {order}", flush=True)
    same = sum(best[False][label] == best[True][label] for label in best[False])
    print(f"rounds saved by pruning: {1 - spent[True] / spent[False]:.0%}")
    print(f"same best settings with and without pruning: {same} of {len(best[True])} methods")


if __name__ == "__main__":
    main()
