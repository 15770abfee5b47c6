"""Methods × settings × seeds: every cell a run, with the same partition and cohorts for all methods at one seed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..analysis.comparison import FAILURE, RECORD, Comparison, failure
from ..config import settings as configs
from ..errors import ArnoError, unknown
from ..records.folder import RunFolder
from .crew import Runner, local
from .display import display
from .grid import Cell, cells

if TYPE_CHECKING:
    from rich.console import Console

    from ..core.contracts import Problem

#: Keys of the comparison itself; every other one is a setting of its runs.
OWN = ("out", "target", "metric", "test")
#: Settings of an engine that say how many cores a cell takes.
CORES = ("cores", "workers", "threads")


def compare(
    *overrides: str,
    out: Path | str = "compare",
    target: float | None = None,
    metric: str | None = None,
    jobs: int | None = None,
    retry: bool = False,
    console: Console | None = None,
    **settings: Any,
) -> Comparison:
    """Run a grid, some cells at a time, and return what it found; cells that are done are not run again.

    >>> import arno
    >>> found = arno.compare(method=["fedavg", "scaffold"], seed=range(3), rounds=20, out="mine")    # doctest: +SKIP
    >>> found.table()                                                                                # doctest: +SKIP

    overrides: `key=value` strings as on the command line, commas and ranges for several values.
    settings: the same as keywords, lists for several values: `local={"lr": [0.01, 0.1]}`.
    target: a score; the table tells what it takes to reach it. metric: the score, test F1 by default.
    jobs: cells at a time; by default as many as there are cores for.
    retry: run cells that failed once more, from their beginning.
    """
    own, words = own_keys([*overrides, *_words(settings)])
    own |= {name: value for name, value in (("target", target), ("metric", metric)) if value is not None}
    return study(words, Path(own.pop("out") or out), own, jobs=jobs, retry=retry, console=console)


def study(
    words: Sequence[str],
    out: Path,
    own: Mapping[str, Any],
    *,
    jobs: int | None = None,
    retry: bool = False,
    console: Console | None = None,
    runner: Runner | None = None,
) -> Comparison:
    """Run the cells that are missing and read all of them; KeyboardInterrupt if it was stopped, after saving."""
    if jobs is not None and jobs < 1:
        raise ArnoError(f"--jobs {jobs}", "at least one cell must run at a time", "try --jobs 1")
    given = words
    if {"engine=ray", "engine.kind=ray"} & set(words):
        from .cluster import spread

        words, jobs, runner = spread(words, jobs)
    alone = [] if any(word.startswith("engine") for word in words) else ["engine.cores=1"]  # cells share the cores
    grid = cells([*alone, "eval.clients=true", *words])
    resolved = [config | {"out": str(out / cell.folder)} for cell, config in zip(grid, resolve(grid), strict=True)]
    check_metric(own, resolved[0])
    began = perf_counter()
    with alone_in(out):
        todo = [i for i, config in enumerate(resolved) if not over(config, retry)]
        record = _record(out, grid, resolved, own, given)
        for i in todo if console else ():
            saved = RunFolder(Path(resolved[i]["out"])).saved()
            if saved:
                print(f"{grid[i].title} goes on after round {int(saved[-1].stem)} of {resolved[i]['rounds']}")
        with display([grid[i].title for i in todo], len(grid), console) as watcher:
            run = runner or local(out / "log.txt")
            whole = run([resolved[i] for i in todo], jobs or places(resolved[0]), watcher) if todo else True
        _write(out, record | {"seconds": record["seconds"] + perf_counter() - began})
    if not whole:
        raise KeyboardInterrupt
    return Comparison.open(out)


def own_keys(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The comparison's own settings, and the words that are its runs'."""
    own: dict[str, Any] = dict.fromkeys(OWN)
    rest = []
    for word in words:
        key, _, value = word.partition("=")
        if key in OWN:
            own[key] = value if key == "out" else configs.parse(word)[1]
        else:
            rest.append(word)
    if not isinstance(own["target"], int | float | None) or isinstance(own["target"], bool):
        raise ArnoError(f"target = {own['target']}", "it must be a number", "try target=0.9")
    if own["test"] not in (None, "t", "wilcoxon"):
        raise unknown("test", str(own["test"]), ["t", "wilcoxon"])
    return own, rest


def check_metric(own: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a metric that the problem does not record, and a target outside its range, before anything is trained."""
    if own["metric"] is None and own["target"] is None:
        return
    problem: Problem = configs.registry("problem").build(config["problem"], config)
    known = {metric.name: metric for metric in problem.metrics}
    name = str(own["metric"] or problem.metrics[0].name)
    split = next((found for found in known if found.removeprefix("test_") == name), None)
    if name not in known and split:
        raise ArnoError(f"metric = {name}", "of which data?", f"write metric={split}")
    if name not in known and get_close_matches(name, known, 1, 0.8):
        raise unknown("metric", name, known)  # any other name may be a column that the method records
    metric, target = known.get(name), own["target"]
    if metric is not None and target is not None and not metric.low <= target <= metric.high:
        rule = f"{metric.label} lies between {metric.low:g} and {metric.high:g}"
        raise ArnoError(f"target = {target:g}", rule, "choose a target in that range")


def resolve(grid: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """The cells' whole configurations; cells that differ in the seed only are composed once."""
    known: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in grid:
        seed = f"seed={cell.seed}"
        rest = tuple(word for word in cell.overrides if word != seed)
        number = configs.parse(seed)[1] if cell.seed else None
        if rest not in known or not isinstance(number, int):
            known[rest] = _compose(cell)
        yield known[rest] | ({} if number is None else {"seed": number})


def over(config: Mapping[str, Any], retry: bool) -> bool:
    """Whether nothing is left to do for a cell; refuses a folder that was made with other settings."""
    folder, lost = Path(config["out"]), failure(Path(config["out"]))
    try:
        if lost is None:
            done = bool(json.loads((folder / "manifest.json").read_text())["status"] == "done")
            earlier = RunFolder(folder).config()
        else:
            done, earlier = True, json.loads((folder / FAILURE).read_text())["config"]
    except (OSError, ValueError, KeyError, ArnoError):
        return False
    odd = configs.differences(configs.current(earlier), config)
    odd += [f"rounds: {earlier.get('rounds')} → {config['rounds']}"] * (earlier.get("rounds") != config["rounds"])
    if odd:
        raise ArnoError(f"{folder} was run with {'; '.join(odd)}", "a cell keeps its settings", "choose another out=")
    if lost is not None and retry and not lost.diverged:
        shutil.rmtree(folder)  # from the beginning: what was mended may have changed every round
        return False
    return done


def places(config: Mapping[str, Any]) -> int:
    """How many cells like this one have room on this machine."""
    cores = os.cpu_count() or 1
    taken = next((config["engine"][name] or cores for name in CORES if name in config["engine"]), 1)
    return max(cores // taken, 1)


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Two comparisons in one folder would write over each other."""
    import fcntl

    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise ArnoError(f"out = {out}", f"cannot be written ({error.strerror})", "choose another out=") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArnoError(f"out = {out}", "another comparison is at work there", "wait for it") from None
        yield


def _compose(cell: Cell) -> dict[str, Any]:
    try:
        return configs.plain(configs.compose(cell.overrides))
    except ArnoError as error:
        hint = "a setting of one method only is written after its name, as fedprox.mu=0.1"
        wrong = any(o.startswith("method.") for o in cell.overrides) and "method=" in cell.varied
        raise (ArnoError(cell.varied, str(error), hint) if wrong else error) from error


def _record(
    out: Path, grid: Sequence[Cell], resolved: Sequence[Mapping[str, Any]], own: Mapping[str, Any], words: Sequence[str]
) -> dict[str, Any]:
    """Write down what is compared and how to do it again."""
    try:
        seconds = json.loads((out / RECORD).read_text())["seconds"]
    except (OSError, ValueError, KeyError):
        seconds = 0.0
    told = [f"{key}={configs.written(value)}" for key, value in own.items() if value is not None]
    record = {
        "command": shlex.join(["arno", "compare", *words, *told, f"out={out}"]),
        **own,
        "seconds": seconds,
        "cells": [
            {"folder": cell.folder, "name": cell.name, "setting": cell.setting, "seed": config["seed"]}
            for cell, config in zip(grid, resolved, strict=True)
        ],
    }
    _write(out, record)
    return record


def _write(out: Path, record: Mapping[str, Any]) -> None:
    (out / f"{RECORD}.part").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    (out / f"{RECORD}.part").replace(out / RECORD)


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Keywords as on the command line."""
    words = []
    for key, value in configs.flat(settings):
        several = value if isinstance(value, list | tuple | range) else [value]
        words.append(f"{key}={','.join(configs.written(each) for each in several)}")
    return words
