"""Methods × settings × seeds: every cell a run, with the same partition and cohorts for all methods at one seed."""

from __future__ import annotations

import json
import math
import os
import re
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import ArnoError
from . import config as configs

METRICS = {"test_accuracy": "test accuracy", "test_f1": "test F1", "seconds": "seconds"}


@dataclass(frozen=True)
class Cell:
    """One run of the grid: its name without the seed, its seed, and its overrides."""

    name: str
    seed: str
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        """A folder name of its own."""
        return re.sub(r"[^\w.=+-]+", "_", f"{self.name}+seed={self.seed}" if self.seed else self.name) or "run"

    @property
    def label(self) -> str:
        """The name as a table shows it."""
        return self.name.removeprefix("method=") or "run"


def cells(overrides: Sequence[str]) -> list[Cell]:
    """The grid that commas (`a,b`) and ranges (`0..4`) span; brackets and parentheses protect their commas.

    A setting that only one of the methods has is written after that method's name.

    >>> [c.folder for c in cells(["method=fedavg,fedprox", "seed=0..1", "rounds=5"])]
    ['method=fedavg+seed=0', 'method=fedavg+seed=1', 'method=fedprox+seed=0', 'method=fedprox+seed=1']
    >>> [c.overrides for c in cells(["method=fedavg,fedprox", "fedprox.mu=1"])]
    [('method=fedavg',), ('method=fedprox', 'method.mu=1')]
    """
    given = []
    for text in overrides:
        key, equals, value = text.partition("=")
        values = list(_values(value)) if equals else [value]
        for each in values:
            configs.parse(f"{key}{equals}{each}")
        given.append((key, values))
    compared = {method for key, values in given if key == "method" for method in values}
    shared = [(key, values) for key, values in given if key.split(".")[0] not in compared]
    found = []
    for choice in product(*(values for _, values in shared)):
        chosen = list(zip(shared, choice, strict=True))
        method = next((value for (key, _), value in chosen if key == "method"), None)
        own = [(key, values) for key, values in given if key.split(".")[0] == method]
        for more in product(*(values for _, values in own)):
            both = [*chosen, *zip(own, more, strict=True)]
            varied = [f"{k}={v}" for (k, values), v in both if len(values) > 1 and k != "seed"]
            seed = next((v for (k, _), v in both if k == "seed"), "")
            settings = [f"{k}={v}" for (k, _), v in chosen]
            settings += [f"method.{k.partition('.')[2]}={v}" for (k, _), v in zip(own, more, strict=True)]
            found.append(Cell(" ".join(varied), seed, tuple(settings)))
    return found


def compare(overrides: Sequence[str], jobs: int | None = None) -> int:
    """Run the grid, one process per core, and print the table; cells that are done are not run again."""
    if jobs is not None and jobs < 1:
        raise ArnoError(f"--jobs {jobs}", "at least one cell must run at a time", "try --jobs 1")
    out = Path(next((o.partition("=")[2] for o in overrides if o.startswith("out=")), "compare"))
    alone = [] if any(o.startswith("engine") for o in overrides) else ["engine.cores=1"]  # cells share the cores
    grid = cells([*alone, *(o for o in overrides if not o.startswith("out="))])
    todo = [cell for cell in grid if not _done(cell, out)]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArnoError(f"out = {out}", f"cannot be written ({error.strerror})", "choose another out=") from error
    console = Console()
    try:
        failed = _train(todo, out, min(jobs or os.cpu_count() or 1, max(len(todo), 1)), len(grid), console)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
        return 130
    for cell, reason in failed.items():
        seed = f" seed={cell.seed}" if cell.seed else ""
        console.print(f"failed: {cell.label}{seed}: {reason}", style="red", highlight=False, markup=False)
    done = [cell for cell in grid if cell not in failed]
    if done:
        table(done, out, console)
        print(f"picture: {_picture(done, out)}")
    print(out)
    return 1 if failed else 0


def table(done: Sequence[Cell], out: Path, console: Console) -> None:
    """Mean ± sample standard deviation over the seeds, best test F1 first."""
    from ..report.pictures import read_metrics

    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in done:
        rows = read_metrics(out / cell.folder)
        values = rows[-1] | {"seconds": sum(row["seconds"] for row in rows)}
        for metric in METRICS.keys() & values.keys():
            scores[cell.label][metric].append(values[metric])
    metrics = [metric for metric in METRICS if all(metric in columns for columns in scores.values())]
    shown = Table(title="after the last round: mean ± standard deviation over seeds", title_justify="left")
    shown.add_column("", overflow="fold")
    for metric in metrics:
        shown.add_column(METRICS[metric], justify="right", no_wrap=True)
    shown.add_column("seeds", justify="right")
    ranked = metrics[max(len(metrics) - 2, 0)]
    for name, columns in sorted(scores.items(), key=lambda item: -_mean(item[1][ranked])):
        numbers = [spread(columns[metric], 1 if metric == "seconds" else 4) for metric in metrics]
        shown.add_row(name, *numbers, str(len(columns["seconds"])))
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


def _done(cell: Cell, out: Path) -> bool:
    """Whether a cell is finished; refuses a folder that was made with other settings."""
    folder = out / cell.folder
    try:
        config = configs.plain(configs.compose(cell.overrides))
    except ArnoError as error:
        hint = "a setting of one method only is written after its name, as fedprox.mu=0.1"
        wrong = any(o.startswith("method.") for o in cell.overrides) and cell.name.startswith("method=")
        raise (ArnoError(cell.name, str(error), hint) if wrong else error) from error
    try:
        status = json.loads((folder / "manifest.json").read_text())["status"]
        earlier = configs.read(folder / "config.yaml")
    except (OSError, ValueError, KeyError, ArnoError):
        return False
    odd = configs.differences(earlier, config)
    odd += [f"rounds: {earlier.get('rounds')} → {config['rounds']}"] * (earlier.get("rounds") != config["rounds"])
    if odd:
        raise ArnoError(f"{folder} was run with {'; '.join(odd)}", "a cell keeps its settings", "choose another out=")
    return bool(status == "done")


def _train(todo: Sequence[Cell], out: Path, jobs: int, total: int, console: Console) -> Mapping[Cell, str]:
    """Run cells, some at a time, and say which are done; returns what went wrong."""
    columns = (
        TextColumn("cells"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    failed: dict[Cell, str] = {}
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool,
    ):
        task = bar.add_task("cells", total=total, completed=total - len(todo))
        running: dict[Future[str], Cell] = {}
        try:
            running |= {pool.submit(_run, cell.overrides, str(out / cell.folder)): cell for cell in todo}
            for number, future in enumerate(as_completed(running), start=total - len(todo) + 1):
                cell = running[future]
                try:
                    error = future.result()
                except Exception as lost:  # the process died: out of memory, or killed
                    error = f"its process ended ({lost})"
                if error == INTERRUPTED:
                    raise KeyboardInterrupt
                if error:
                    failed[cell] = error
                bar.advance(task)
                if not console.is_terminal:
                    seed = f" seed={cell.seed}" if cell.seed else ""
                    print(f"{number}/{total}  {cell.label}{seed}  {'failed' if error else 'done'}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failed


INTERRUPTED = "interrupted"


def _run(overrides: Sequence[str], folder: str) -> str:
    """One cell, in a process of its own; returns what went wrong."""
    from .run import Interrupted, resume, run

    path = Path(folder)
    try:
        if (path / "manifest.json").exists():
            resume(path)
        else:
            run(*overrides, out=folder)
    except ArnoError as error:
        return str(error)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # a user's own method may fail in any way; the other cells go on
        if path.is_dir():
            with (path / "log.txt").open("a") as log:
                log.write(traceback.format_exc())
        return f"{type(error).__name__}: {error} (see {path / 'log.txt'})"
    return ""


def _picture(done: Sequence[Cell], out: Path) -> Path:
    from ..report.pictures import draw_bands

    groups: dict[str, list[Path]] = defaultdict(list)
    for cell in done:
        groups[cell.label].append(out / cell.folder)
    path = out / "compare.png"
    draw_bands(groups, path)
    return path
