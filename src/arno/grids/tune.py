"""Tunes methods with equal budgets, then compares them at their best settings.

The search (`searches`) scores trials on validation data. The comparison runs each method with the settings of its best
trial, on seeds that the search did not use; only its runs read test data.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.comparison import Comparison
from ..config import settings as configs
from ..config.lists import values
from ..records.lock import writing
from ..runs.signals import stop_signals
from .compare import as_words, check_metric, object_words, own_keys, resolve, run_list, workers_for
from .grid import Cell, cells
from .ranges import ranges_in
from .search import Trial, import_optuna
from .searches import SEARCH_SEEDS, Plan, Searching, refuse_folder
from .spaces import spaces

if TYPE_CHECKING:
    from rich.console import Console

#: The seeds of the comparison, unless they are given.
SEEDS = "0..2"


def tune(
    *overrides: str,
    out: Path | str = "tune",
    trials: int = Plan.trials,
    search_seeds: str = SEARCH_SEEDS,
    prune: bool = True,
    jobs: int | None = None,
    retry: bool = False,
    console: Console | None = None,
    data: Any = None,
    model: Any = None,
    **settings: Any,
) -> Comparison:
    """Search the settings of each method with equal budgets, then compare the methods; settings as for `compare`.

    >>> import arno
    >>> found = arno.tune("local.lr=log(0.01, 1)", method=["fedavg", "fedprox"], rounds=20, out="t")    # doctest: +SKIP

    A setting whose value is a range, such as `log(0.001, 1)`, is searched.
    data, model: names or objects, as for `compare`.
    trials: per method. search_seeds: the seeds of the trials. prune: whether bad trials end early.
    retry: run failed runs of the comparison again.
    """
    own, words = own_keys([*overrides, *as_words(settings), *object_words(data, model)])
    folder = Path(own.pop("out") or out)
    return search_and_compare(words, folder, own, Plan(trials, search_seeds, prune, jobs, retry), console=console)


def search_and_compare(
    words: Sequence[str], out: Path, own: Mapping[str, Any], plan: Plan, *, console: Console | None = None
) -> Comparison:
    """Search and compare; finished runs are not repeated. Raises KeyboardInterrupt if the user has stopped it.

    words: settings as for a comparison, and ranges: `local.lr=log(0.001, 1)`. own: `target`, `metric` and `test` of the
    comparison.
    """
    import_optuna()
    ranges, rest = ranges_in(list(words))
    seeds = [word.partition("=")[2] for word in rest if word.startswith("seed=")]
    final = list(values(seeds[-1] if seeds else SEEDS))
    plan.check(final)
    plain = [word for word in rest if not word.startswith("seed=")]
    workers, settings = workers_for(plain, out)
    groups = cells(settings)
    found = spaces(groups, ranges, plain)
    with writing(out, "a comparison"), closing(workers), stop_signals(_stop):
        refuse_folder(out, plan.trials)
        searching = Searching(groups, found, out, plan, workers, console)
        check_metric(own, searching.base)
        searching.run(words)
        grid = [chosen(cell, search.best, seed) for cell, search in searching for seed in final]
        command, resolved = command_of(words, own, plan, out), list(resolve(grid))
        return run_list(grid, resolved, workers, out, own, command, jobs=plan.jobs, retry=plan.retry, console=console)


def _stop(times: int) -> None:
    """Stop the search at once: a signal arrived between two runs. During runs, another handler saves them first."""
    raise KeyboardInterrupt


def chosen(cell: Cell, best: Trial, seed: str) -> Cell:
    """The cell of the comparison with the settings of the best trial and with this seed."""
    words = [f"{key}={value}" for key, value in best.settings.items()]
    return replace(cell, seed=seed, overrides=(*cell.overrides, *words, f"seed={seed}"))


def command_of(words: Sequence[str], own: Mapping[str, Any], plan: Plan, out: Path) -> str:
    """The command that repeats the search and the comparison."""
    told = [f"{key}={configs.written(value)}" for key, value in own.items() if value is not None]
    options = ["--trials", str(plan.trials)]
    options += [] if plan.seeds == SEARCH_SEEDS else ["--search-seeds", plan.seeds]
    options += [] if plan.prune else ["--no-pruning"]
    return shlex.join(["arno", "tune", *words, *told, *options, f"out={out}"])
