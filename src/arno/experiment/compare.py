"""Methods × settings × seeds: every cell a run, with the same partition and cohorts for all methods at one seed."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import ArnoError
from . import config as configs

METRICS = {"test_accuracy": "test accuracy", "test_f1": "test F1", "seconds": "seconds"}


@dataclass(frozen=True)
class Cell:
    """One run of the grid: its name without the seed, and its overrides."""

    name: str
    seed: str
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        """A folder name of its own."""
        return re.sub(r"[^\w.=+-]+", "_", f"{self.name}+seed={self.seed}" if self.seed else self.name) or "run"


def cells(overrides: Sequence[str]) -> list[Cell]:
    """The grid that commas (`a,b`) and ranges (`0..4`) span; brackets and parentheses protect their commas.

    >>> [c.folder for c in cells(["method=fedavg,fedprox", "seed=0..1", "rounds=5"])]
    ['method=fedavg+seed=0', 'method=fedavg+seed=1', 'method=fedprox+seed=0', 'method=fedprox+seed=1']
    """
    keys, choices = [], []
    for text in overrides:
        configs.parse(text)
        key, _, value = text.partition("=")
        keys.append(key)
        choices.append(list(_values(value)))
    found = []
    for values in product(*choices):
        chosen = [f"{k}={v}" for k, v in zip(keys, values, strict=True)]
        varied = [
            c for c, options in zip(chosen, choices, strict=True) if len(options) > 1 and not c.startswith("seed=")
        ]
        seed = next((v for k, v in zip(keys, values, strict=True) if k == "seed"), "")
        found.append(Cell(" ".join(varied), seed, tuple(chosen)))
    return found


def compare(overrides: Sequence[str], jobs: int | None = None) -> int:
    """Run the grid, one process per core, and print the table; cells that are done are not run again."""
    out = Path(next((o.partition("=")[2] for o in overrides if o.startswith("out=")), "compare"))
    grid = cells([o for o in overrides if not o.startswith("out=")])
    for cell in grid:
        configs.compose(cell.overrides)
    todo = [cell for cell in grid if not _done(out / cell.folder)]
    jobs = jobs or os.cpu_count() or 1
    failed: dict[Cell, str] = {}
    console = Console()
    columns = (
        TextColumn("cells"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        ProcessPoolExecutor(min(jobs, max(len(todo), 1)), mp_context=get_context("spawn")) as pool,
    ):
        task = bar.add_task("cells", total=len(grid), completed=len(grid) - len(todo))
        running = {pool.submit(_run, cell.overrides, str(out / cell.folder)): cell for cell in todo}
        for future in as_completed(running):
            if error := future.result():
                failed[running[future]] = error
            bar.advance(task)
    for cell, error in failed.items():
        console.print(f"failed: {cell.name} seed={cell.seed}: {error}", style="red", highlight=False)
    done = [cell for cell in grid if cell not in failed]
    if done:
        table(done, out, console)
        print(_picture(done, out))
    print(out)
    return 1 if failed else 0


def table(done: Sequence[Cell], out: Path, console: Console) -> None:
    """Mean ± sample standard deviation over the seeds, best test F1 first."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in done:
        rows = _metrics(out / cell.folder)
        for metric in ("test_accuracy", "test_f1"):
            scores[cell.name][metric].append(rows[-1][metric])
        scores[cell.name]["seconds"].append(sum(row["seconds"] for row in rows))
    shown = Table("", *METRICS.values(), "seeds", title="after the last round: mean ± standard deviation over seeds")
    for name, columns in sorted(scores.items(), key=lambda item: -_mean(item[1]["test_f1"])):
        numbers = [spread(columns[metric], 1 if metric == "seconds" else 4) for metric in METRICS]
        shown.add_row(name or "run", *numbers, str(len(columns["test_f1"])))
    console.print(shown)


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean ± sample standard deviation; one value has none.

    >>> spread([1.0, 3.0], 1), spread([2.0], 1)
    ('2.0 ± 1.4', '2.0')
    """
    mean = _mean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _values(text: str) -> Iterator[str]:
    bounds = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text)
    if bounds:
        low, high = int(bounds[1]), int(bounds[2])
        if high < low:
            raise ArnoError(f"range {text}", "it must rise", f"write {high}..{low}")
        yield from (str(i) for i in range(low, high + 1))
        return
    depth, piece = 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield piece
            piece = ""
        else:
            piece += character
    yield piece


def _run(overrides: Sequence[str], folder: str) -> str:
    """One cell, in a process of its own; returns what went wrong."""
    from .run import resume, run

    try:
        if (Path(folder) / "manifest.json").exists():
            resume(folder)
        else:
            run(*overrides, out=folder)
    except ArnoError as error:
        return str(error)
    return ""


def _done(folder: Path) -> bool:
    try:
        status = json.loads((folder / "manifest.json").read_text())["status"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(status == "done")


def _metrics(folder: Path) -> list[dict[str, Any]]:
    from ..report.pictures import read_metrics

    return read_metrics(folder)


def _picture(done: Sequence[Cell], out: Path) -> Path:
    from ..report.pictures import draw_bands

    groups: dict[str, list[Path]] = defaultdict(list)
    for cell in done:
        groups[cell.name].append(out / cell.folder)
    path = out / "compare.png"
    draw_bands(groups, path)
    return path
