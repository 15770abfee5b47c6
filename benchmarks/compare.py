"""What a comparison costs beyond its runs: `arno compare` on 200 tiny cells against the same runs in one process.

    python benchmarks/compare.py [--cells 200] [--jobs N]

Overhead per cell = (wall of the whole command × jobs − wall of the runs one after another) / cells. The command's wall
holds everything: the interpreter's start, processes, checks, tables, picture and report. The bar is 0.15 s.
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

from arno.experiment.compare import resolve
from arno.experiment.grid import cells
from arno.experiment.progress import Quiet
from arno.experiment.run import execute

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
        out = Path(folder) / "grid"
        command = [sys.executable, "-m", "arno", "compare", *grid, f"out={out}", "--jobs", str(options.jobs)]
        walls = []
        for _ in range(2):
            began = perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            walls.append(perf_counter() - began)
    n = len(configs)
    overhead = (walls[0] * options.jobs - runs) / n
    print(f"{n} runs in one process: {runs:.1f} s, {runs / n:.3f} s each")
    print(f"arno compare, {options.jobs} at a time: {walls[0]:.1f} s; given again, nothing to run: {walls[1]:.1f} s")
    print(f"overhead per cell: {overhead:.3f} s (bar {BAR}) {'ok' if overhead < BAR else 'TOO MUCH'}")
    return int(overhead >= BAR)


if __name__ == "__main__":
    sys.exit(main())
