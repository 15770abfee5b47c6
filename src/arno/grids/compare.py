"""Compares methods × settings × seeds. Each cell is a run, and all methods with the same seed have the same clients.

The same clients: the same partition of the data and the same cohorts.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from difflib import get_close_matches
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..analysis import tuning
from ..analysis.comparison import RECORD, Comparison, failure, failure_of, record_of
from ..config import settings as configs
from ..config.build import method
from ..core.metric import Metric
from ..errors import ArnoError, unknown
from ..records import checksummed, disk
from ..records.folder import RunFolder
from ..records.lock import writing
from ..runs.python_objects import from_python
from ..runs.python_objects import settings as given_objects
from ..runs.release_0_1 import refuse_order
from ..runs.trust import check, targets
from .cells import Config, Workers, run_cells
from .display import display
from .grid import Cell, cells
from .processes import Processes
from .this_process import ThisProcess

if TYPE_CHECKING:
    from rich.console import Console

    from ..core.problem import Problem

#: Keys of the comparison itself; every other key is a setting of its runs.
OWN = ("out", "target", "metric", "test")


def compare(
    *overrides: str,
    out: Path | str = "compare",
    target: float | None = None,
    metric: str | None = None,
    jobs: int | None = None,
    retry: bool = False,
    console: Console | None = None,
    data: Any = None,
    model: Any = None,
    **settings: Any,
) -> Comparison:
    """Run a grid, some cells at a time, and return the comparison; cells that are done are not run again.

    >>> import arno
    >>> found = arno.compare(method=["fedavg", "scaffold"], seed=range(3), rounds=20, out="mine")    # doctest: +SKIP
    >>> found.table()                                                                                # doctest: +SKIP

    overrides: `key=value` strings as on the command line, commas and ranges for several values.
    settings: the same as keywords, lists for several values: `local={"lr": [0.01, 0.1]}`.
    data, model: names, or objects as for `arno.run`; `model` may be a list of networks. With such objects the cells run
        in this process, one after another.
    target: a score; the table says how many rounds, steps and bytes it takes to reach it.
    metric: the score; by default the first metric of the task.
    jobs: cells at a time; by default as many as there are cores for.
    retry: run failed cells again, from their beginning.
    """
    own, words = own_keys([*overrides, *as_words(settings), *object_words(data, model)])
    own |= {name: value for name, value in (("target", target), ("metric", metric)) if value is not None}
    return run_grid(words, Path(own.pop("out") or out), own, jobs=jobs, retry=retry, console=console)


def run_grid(
    words: Sequence[str],
    out: Path,
    own: Mapping[str, Any],
    *,
    jobs: int | None = None,
    retry: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Run the cells that are missing, and read all of them.

    Raises KeyboardInterrupt if the user has stopped it; the runs are then saved.
    words: the settings of the runs. own: `target`, `metric` and `test` of the comparison.
    """
    check_jobs(jobs)
    if (out / tuning.RECORD).exists():
        rule = "it holds a comparison with searched settings"
        raise ArnoError(f"out = {out}", rule, "choose another out=, or continue it with arno tune")
    workers, settings = workers_for(words, out)
    grid = cells(settings)
    resolved = list(resolve(grid))
    check_metric(own, resolved)
    command = _command("compare", words, own, out)
    with writing(out, "a comparison"), closing(workers):
        return run_list(grid, resolved, workers, out, own, command, jobs=jobs, retry=retry, console=console)


def run_list(
    grid: Sequence[Cell],
    configurations: Sequence[Config],
    workers: Workers,
    out: Path,
    own: Mapping[str, Any],
    command: str,
    *,
    jobs: int | None,
    retry: bool,
    console: Console | None,
) -> Comparison:
    """Run the missing cells in a folder that this process may write.

    configurations: the configuration of each cell of `grid`. command: the command that runs them again.
    """
    resolved = [config | {"out": str(out / cell.folder)} for cell, config in zip(grid, configurations, strict=True)]
    began, whole = perf_counter(), True
    todo = [i for i, config in enumerate(resolved) if not is_done(config, retry)]
    record = _record(out, grid, resolved, own, command)
    if console is not None:
        _tell_continued([grid[i] for i in todo], [resolved[i] for i in todo])
    with display([grid[i].title for i in todo], len(grid), console) as shown:
        if todo:
            whole = run_cells([resolved[i] for i in todo], workers, jobs, shown)
    _write(out, record | {"seconds": record["seconds"] + perf_counter() - began})
    if not whole:
        raise KeyboardInterrupt
    return Comparison.open(out)


def check_jobs(jobs: int | None) -> None:
    """Refuse a number of cells at a time below one."""
    if jobs is not None and jobs < 1:
        raise ArnoError(f"--jobs {jobs}", "at least one cell must run at a time", "try --jobs 1")


def own_keys(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of the comparison itself, and the settings of its runs."""
    own: dict[str, Any] = dict.fromkeys(OWN)
    rest = []
    for word in words:
        key, _, value = word.partition("=")
        if key in OWN:
            own[key] = value if key == "out" else configs.parse(word)[1]
        else:
            rest.append(word)
    configs.check_out(own["out"])
    if not isinstance(own["target"], int | float | None) or isinstance(own["target"], bool):
        raise ArnoError(f"target = {own['target']}", "it must be a number", "try target=0.9")
    if own["test"] not in (None, "t", "wilcoxon"):
        raise unknown("test", str(own["test"]), ["t", "wilcoxon"])
    return own, rest


def check_metric(own: Mapping[str, Any], configurations: Sequence[Config]) -> None:
    """Refuse a misspelt metric, one that a run would not record, and a target out of range, before anything is trained.

    A name that is similar to no declared metric may be a column that the method records.
    """
    if own.get("metric") is None and own.get("target") is None:
        return
    config = configurations[0]
    problem: Problem = configs.registry("problem").build(config["problem"], config)
    known = {metric.name: metric for metric in problem.metrics}
    name = str(own.get("metric") or problem.metrics[0].name)
    if name in known:
        _check_target(own.get("target"), known[name])
    elif f"test_{name}" in known:
        raise ArnoError(f"metric = {name}", "it does not say which data", f"write metric=test_{name}")
    elif name.startswith(("own_", "personal_")) and f"test_{name.partition('_')[2]}" in known:
        raise ArnoError(f"metric = {name}", "the clients have no test samples of their own", "add data.client_test=0.2")
    elif get_close_matches(name, known, 1, 0.8):
        raise unknown("metric", name, known)
    if name.startswith("personal_") and name in known:
        _check_personal(name, configurations)


def _check_personal(name: str, configurations: Sequence[Config]) -> None:
    """Refuse a score of personal models if a method has none, and the global model is not fine-tuned either."""
    different = {repr((one["method"], one["eval"]["finetune"])): one for one in configurations}.values()
    without = [
        config["method"]["kind"]
        for config in different
        if not config["eval"]["finetune"] and not any("personal" in part.roles for part in method(config))
    ]
    if without:
        setting = "eval.finetune=5" if len(without) == len(different) else f"{without[0]}.eval.finetune=5"
        rule = f"method={without[0]} has no personal models"
        raise ArnoError(f"metric = {name}", rule, f"add {setting}, which fine-tunes the global model for this score")


def _check_target(target: float | None, metric: Metric) -> None:
    if target is None or metric.low <= target <= metric.high:
        return
    ends = ((f"at least {metric.low:g}", metric.low), (f"at most {metric.high:g}", metric.high))
    rule = f"{metric.label} is {' and '.join(text for text, end in ends if abs(end) != float('inf'))}"
    percent = (metric.low, metric.high) == (0, 1) and 1 < target <= 100
    raise ArnoError(f"target = {target:g}", rule, f"write target={target / 100:g}" if percent else "change the target")


def resolve(grid: Sequence[Cell]) -> Iterator[Config]:
    """The resolved configurations of the cells. Cells that differ only in the seed are composed once."""
    known: dict[tuple[str, ...], Config] = {}
    for cell in grid:
        seed = f"seed={cell.seed}"
        rest = tuple(word for word in cell.overrides if word != seed)
        number = configs.parse(seed)[1] if cell.seed else None
        if rest not in known or not isinstance(number, int):
            known[rest] = composed(cell)
        yield known[rest] | ({} if number is None else {"seed": number})


def is_done(config: Config, retry: bool) -> bool:
    """Whether a cell is finished; an error if its folder was made with other settings.

    A failed cell counts as finished. With `retry`, the folder of a failed cell is removed, so that the cell runs again
    from its beginning, because a correction may change every round. A cell that diverged would diverge again, so it is
    not repeated.
    """
    folder = Path(config["out"])
    lost = failure(folder)
    try:
        if lost is None:
            manifest = RunFolder(folder).manifest()
            done, of_0_1 = bool(manifest["status"] == "done"), "metrics" not in manifest
            earlier = RunFolder(folder).config()
        else:
            done, of_0_1 = True, False
            earlier = failure_of(folder)["config"]
    except (OSError, ValueError, KeyError, ArnoError):
        return False
    check(folder, earlier, targets(config))
    _refuse_changes(folder, earlier, config)
    if of_0_1 and config["method"]["kind"] == "compose":
        refuse_order(folder, config)
    if lost is not None and retry and not lost.diverged:
        shutil.rmtree(folder)
        return False
    return done


def workers_for(words: Sequence[str], out: Path) -> tuple[Workers, list[str]]:
    """The workers that run the cells, and the settings of the cells. Cells on this machine share its cores."""
    always = "eval.clients=true"
    if {"data.kind=python", "model.kind=python"} & set(words):
        return ThisProcess(), [always, *words]
    if {"engine=ray", "engine.kind=ray"} & set(words):
        from .cluster import Cluster, for_actors

        return Cluster(words, out), [always, *for_actors(words)]
    one_core = [] if any(word.startswith("engine") for word in words) else ["engine.cores=1"]
    return Processes(out / "log.txt"), [*one_core, always, *words]


def _refuse_changes(folder: Path, earlier: Config, config: Config) -> None:
    """Refuse settings that differ from the settings of the folder, which may have been made by an earlier release."""
    odd = configs.differences(earlier, config)
    if odd:
        odd = configs.differences(configs.current(earlier), config)
    odd += [f"rounds: {earlier.get('rounds')} → {config['rounds']}"] * (earlier.get("rounds") != config["rounds"])
    if odd:
        raise ArnoError(f"{folder} was run with {'; '.join(odd)}", "a cell keeps its settings", "choose another out=")


def _tell_continued(grid: Sequence[Cell], resolved: Sequence[Config]) -> None:
    """Print which cells continue from a checkpoint."""
    for cell, config in zip(grid, resolved, strict=True):
        saved = RunFolder(Path(config["out"])).saved()
        if saved:
            print(f"{cell.title} continues after round {int(saved[-1].stem)} of {config['rounds']}")


def composed(cell: Cell, more: Sequence[str] = ()) -> Config:
    """The resolved configuration of a cell, with more settings."""
    try:
        return configs.plain(configs.compose([*cell.overrides, *more]))
    except ArnoError as error:
        hint = "a setting of one method only is written after its name, as fedprox.mu=0.1"
        wrong = any(word.startswith("method.") for word in (*cell.overrides, *more)) and "method=" in cell.varied
        raise (ArnoError(cell.varied, str(error), hint) if wrong else error) from error


def _record(
    out: Path, grid: Sequence[Cell], resolved: Sequence[Config], own: Mapping[str, Any], command: str
) -> dict[str, Any]:
    """Write the list of cells and the command that runs them again."""
    seconds = 0.0
    with suppress(ArnoError, TypeError, ValueError):
        seconds = float(record_of(out).get("seconds", 0.0))
    record = {
        "command": f"arno.compare(…, out={str(out)!r}) in Python" if from_python(resolved[0]) else command,
        **own,
        "seconds": seconds,
        "cells": [
            {"folder": cell.folder, "name": cell.name, "setting": cell.setting, "seed": config["seed"]}
            for cell, config in zip(grid, resolved, strict=True)
        ],
    }
    _write(out, record)
    return record


def _command(name: str, words: Sequence[str], own: Mapping[str, Any], out: Path) -> str:
    told = [f"{key}={configs.written(value)}" for key, value in own.items() if value is not None]
    return shlex.join(["arno", name, *words, *told, f"out={out}"])


def _write(out: Path, record: Mapping[str, Any]) -> None:
    try:
        disk.write(out / RECORD, checksummed.text(record).encode())
    except OSError as error:
        raise ArnoError(f"cannot write {out / RECORD}", str(error.strerror), "free some space") from error


def object_words(data: Any, model: Any) -> list[str]:
    """`data` and `model`, names or objects, as settings on the command line. A list in an `arno.Data` is one value."""
    found = given_objects(data if isinstance(data, str | dict) else None, None)
    if model is not None:
        found["model"] = _models(model if isinstance(model, list | tuple) else [model])
    words = as_words(found)
    if data is not None and not isinstance(data, str | dict):
        own = given_objects(data, None)["data"]
        words += [f"data.{key}={configs.written(value)}" for key, value in own.items()]
    return words


def _models(models: Sequence[Any]) -> Any:
    """Several networks as settings. All of them are names, or all of them are objects."""
    if all(isinstance(model, str | Mapping) for model in models):
        return models[0] if len(models) == 1 else list(models)
    if any(isinstance(model, str | Mapping) for model in models):
        raise ArnoError("model", "names and networks cannot be mixed in one list", "compare them in two comparisons")
    given = [given_objects(None, model)["model"] for model in models]
    return {"kind": "python", "network": [one["network"] for one in given]}


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as settings on the command line."""
    words = []
    for key, value in configs.flat(settings):
        several = value if isinstance(value, list | tuple | range) else [value]
        words.append(f"{key}={','.join(configs.written(each) for each in several)}")
    return words
