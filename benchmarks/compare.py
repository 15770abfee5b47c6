"""What a comparison costs beyond its runs: `arno compare` on 200 tiny cells against the same runs in one process.

    python benchmarks/compare.py [--cells 200] [--jobs N]

Overhead per cell = (wall of the whole command − wall of the runs) / cells, both one run at a time, so that cells that
share caches and clock do not count as overhead. The command's wall holds everything: the interpreter's start, checks,
processes, tables, picture and report. The bar is 0.15 s. Then the command with N cells at a time, and given again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from arno.grids.compare import resolve
from arno.grids.grid import cells
from arno.runs.progress import Quiet
from arno.runs.run import execute

BAR = 0.15
TINY = ["engine.cores=1", "eval.clients=true", "clients=5", "rounds=3", "model=softmax", "checkpoint.every=0"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    grid = [*TINY, "method=fedavg,fedprox,scaffold,fedvarp", "partition.alpha=0.1,1.0"]
    grid.append(f"seed=0..{options.cells // 8 - 1}")
    configs = list(resolve(cells(grid)))
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one"
        execute(configs[0] | {"out": str(one / "warm")}, Quiet(), pictures=False)
        began = perf_counter()
        for i, config in enumerate(configs):
            execute(config | {"out": str(one / str(i))}, Quiet(), pictures=False)
        runs = perf_counter() - began
        shutil.rmtree(one)
        alone = command(grid, Path(folder) / "alone", 1)
        together = command(grid, Path(folder) / "together", options.jobs)
        again = command(grid, Path(folder) / "together", options.jobs)
    n, overhead = len(configs), (alone - runs) / len(configs)
    print(f"{n} runs in one process: {runs:.1f} s, {runs / n:.3f} s each")
    print(f"arno compare: one at a time {alone:.1f} s, {options.jobs} at a time {together:.1f} s, again {again:.1f} s")
    print(f"overhead per cell: {overhead:.3f} s (bar {BAR}) {'ok' if overhead < BAR else 'TOO MUCH'}")
    return int(overhead >= BAR)


def command(grid: list[str], out: Path, jobs: int) -> float:
    """Seconds of `arno compare`."""
    words = [sys.executable, "-m", "arno", "compare", *grid, f"out={out}", "--jobs", str(jobs)]
    began = perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
