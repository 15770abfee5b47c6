"""Run a figure: a comparison with one cell for each arm, each setting that is tried, and each seed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.comparison import Comparison
from ..errors import ArnoError
from ..grids.compare import check_jobs, resolve, run_list, workers_for
from ..grids.grid import Cell
from ..records.lock import writing
from .figure import Arm, Figure

if TYPE_CHECKING:
    from rich.console import Console


def tried(arm: str, about: Arm) -> dict[str, str]:
    """The name of the group of runs for each setting that is tried; one group if no settings are tried."""
    return {word: f"{arm} {word}" for word in about.best_of} or {"": arm}


def cells(figure: Figure) -> list[Cell]:
    """One cell per arm, setting that is tried, and seed. A later setting overrides an earlier one."""
    found = []
    for arm, about in figure.arms.items():
        for word, name in tried(arm, about).items():
            for seed in figure.seeds:
                given = (*figure.run, *about.settings, *filter(None, [word]), f"seed={seed}")
                found.append(Cell(name, "", str(seed), name, given))
    return found


def reproduce(
    figure: Figure,
    out: Path,
    command: Sequence[str],
    *,
    jobs: int | None = None,
    retry: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Run the cells that are missing, and read all cells. command: the command that runs the figure again."""
    if not figure.arms:
        raise ArnoError(f"figure {figure.name}", "another program checks it", f"run {figure.by}")
    check_jobs(jobs)
    workers, always = workers_for([word for word in figure.run if word.startswith(("engine", "data", "model"))], out)
    grid = [
        Cell(c.name, c.setting, c.seed, c.varied, (*always, "eval.clients=false", *c.overrides)) for c in cells(figure)
    ]
    resolved = list(resolve(grid))
    with writing(out, "a reproduction"), closing(workers):
        return run_list(grid, resolved, workers, out, {}, shlex.join(command), jobs=jobs, retry=retry, console=console)
