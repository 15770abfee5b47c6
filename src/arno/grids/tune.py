"""Tune methods with equal budgets, then compare them at their best settings.

The search: for every method, Optuna proposes settings in batches. All trials of a batch train to a quarter of the
rounds, the better half of them to a half, the better half of those to the end. So every method spends the same number
of trials and of rounds. All trials have the same seeds, so they have the same clients and the same cohorts. Scores are
those on validation data; test data are not even loaded into the problem (`eval.test=false`).

The comparison: each method with the settings of its best trial, on seeds that the search did not use.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..analysis.comparison import Comparison, failure
from ..analysis.tuning import RECORD, recorded, unreadable
from ..config import settings as configs
from ..config.lists import values
from ..core.metric import Metric
from ..errors import ArnoError
from ..records import checksummed
from ..records.disk import write
from ..records.lock import writing
from ..runs.result import RunResult
from .cells import Config, Workers, run_cells
from .compare import as_words, check_jobs, check_metric, is_done, object_words, own_keys, resolve, run_list, workers_for
from .display import display
from .grid import Cell, cells
from .ranges import Range, ranges_in
from .search import BATCH, Search, Trial, import_optuna, rungs

if TYPE_CHECKING:
    from rich.console import Console

    from ..core.contracts import Problem

#: The seeds of the comparison and of the search, unless they are given.
SEEDS, SEARCH_SEEDS = "0..2", "1000"
#: The range of a setting that every method has, unless it is given.
LEARNING_RATE = ("local.lr", "log(0.001, 1)")
#: Optuna's storage in the folder of the search.
STORAGE = "optuna.journal"


@dataclass(frozen=True)
class Plan:
    """What a search does: trials per method, their seeds, whether bad ones are stopped, runs at a time."""

    trials: int = 20
    seeds: str = SEARCH_SEEDS
    prune: bool = True
    jobs: int | None = None

    def check(self, final: Sequence[str]) -> None:
        """Refuse a search without trials, and seeds that the comparison uses too."""
        check_jobs(self.jobs)
        if self.trials < 2:
            raise ArnoError(f"--trials {self.trials}", "a search needs at least two", "try --trials 20")
        both = sorted({*values(self.seeds)} & {*final})
        if both:
            rule = f"the comparison uses seed {', '.join(both)} too, and settings are chosen on other seeds"
            raise ArnoError(f"--search-seeds {self.seeds}", rule, f"try --search-seeds {SEARCH_SEEDS}")


def tune(
    *overrides: str,
    out: Path | str = "tune",
    trials: int = Plan.trials,
    search_seeds: str = SEARCH_SEEDS,
    prune: bool = True,
    jobs: int | None = None,
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
    """
    own, words = own_keys([*overrides, *as_words(settings), *object_words(data, model)])
    folder = Path(own.pop("out") or out)
    return search_and_compare(words, folder, own, Plan(trials, search_seeds, prune, jobs), console=console)


def search_and_compare(
    words: Sequence[str], out: Path, own: Mapping[str, Any], plan: Plan, *, console: Console | None = None
) -> Comparison:
    """Search and compare; what is there already is not run again. Raises KeyboardInterrupt if the user stopped it.

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
    spaces = [space_of(cell, ranges, plain) for cell in groups]
    searching = Searching(groups, spaces, out, plan, workers, console)
    check_metric(own, searching.base[0])
    with writing(out, "a comparison"), closing(workers):
        searching.run(words)
        grid = [chosen(cell, search.best, seed) for cell, search in searching for seed in final]
        command = command_of(words, own, plan, out)
        resolved = list(resolve(grid))
        return run_list(grid, resolved, workers, out, own, command, jobs=plan.jobs, retry=False, console=console)


def space_of(cell: Cell, ranges: Mapping[str, Range], given: Sequence[str]) -> dict[str, Range]:
    """The ranges of one group: those given for all methods or for its own, then those that its method declares."""
    method = next((word.partition("=")[2] for word in cell.overrides if word.startswith("method=")), "fedavg")
    fixed = {word.partition("=")[0] for word in cell.overrides}
    asked = dict(ranges)
    if not {LEARNING_RATE[0]} & {*ranges, *(word.partition("=")[0] for word in given)}:
        asked = {LEARNING_RATE[0]: wanted(LEARNING_RATE[1]), **asked}
    found: dict[str, Range] = {}
    registry = configs.registry("method")
    declared: Mapping[str, str] = registry.info(method).get("tune", {}) if method in registry.names() else {}
    mine = registry.settings(method) if method in registry.names() else {}
    for key, several in asked.items():
        head, _, inner = key.partition(".")
        if head == method and inner:
            found[f"method.{inner}" if inner.split(".")[0] in mine else inner] = several
        elif head not in registry.names() or head == "local":
            found[key] = several
    for name, text in declared.items():
        found.setdefault(f"method.{name}" if name in mine else name, wanted(text))
    return {key: several for key, several in found.items() if key not in fixed}


def wanted(text: str) -> Range:
    """A range that the project itself wrote down."""
    found = Range.of(text)
    assert found is not None
    return found


def chosen(cell: Cell, best: Trial, seed: str) -> Cell:
    """A cell of the comparison: the settings of the best trial, with a seed of its own."""
    words = [f"{key}={value}" for key, value in best.settings.items()]
    return replace(cell, seed=seed, overrides=(*cell.overrides, *words, f"seed={seed}"))


def command_of(words: Sequence[str], own: Mapping[str, Any], plan: Plan, out: Path) -> str:
    """The command that makes the search and the comparison again."""
    told = [f"{key}={configs.written(value)}" for key, value in own.items() if value is not None]
    options = ["--trials", str(plan.trials)]
    options += [] if plan.seeds == SEARCH_SEEDS else ["--search-seeds", plan.seeds]
    options += [] if plan.prune else ["--no-pruning"]
    return shlex.join(["arno", "tune", *words, *told, *options, f"out={out}"])


class Searching:
    """The searches of all groups, side by side: their trials share the workers."""

    def __init__(
        self,
        groups: Sequence[Cell],
        spaces: Sequence[Mapping[str, Range]],
        out: Path,
        plan: Plan,
        workers: Workers,
        console: Console | None,
    ) -> None:
        self.groups, self.out, self.plan, self.workers, self.console = groups, out, plan, workers, console
        self.base = list(resolve(groups))
        self.metric = objective(self.base[0])
        recorded = self._recorded(spaces)
        self.searches = [
            Search(label(cell), space, self.metric.sign, values)
            for cell, space, values in zip(groups, spaces, recorded, strict=True)
        ]

    def __iter__(self) -> Any:
        return zip(self.groups, self.searches, strict=True)

    def run(self, words: Sequence[str]) -> None:
        """All batches of trials."""
        began = perf_counter()
        for first in range(0, self.plan.trials, BATCH):
            count = min(BATCH, self.plan.trials - first)
            asked = [search.ask(count) for search in self.searches]
            self._write(words)
            self._batch(asked, f"trials {first + 1} to {first + count} of {self.plan.trials}")
            for search, trials in zip(self.searches, asked, strict=True):
                search.tell(trials)
                search.store(self.out / STORAGE)
        self._write(words, seconds=perf_counter() - began)

    def _batch(self, asked: Sequence[Sequence[Trial]], title: str) -> None:
        """Train the trials of a batch, the better half of each group longer."""
        alive = [list(trials) for trials in asked]
        rounds, every = self.base[0]["rounds"], self.base[0]["eval"]["every"]
        steps = rungs(rounds, every) if self.plan.prune else [rounds]
        for t in steps:
            runs = [(g, trial) for g, trials in enumerate(alive) for trial in trials if not trial.lost]
            self._train(
                [self._config(g, trial, seed, t) for g, trial in runs for seed in values(self.plan.seeds)], title
            )
            for g, trial in runs:
                self._read(g, trial, t)
            if t != steps[-1]:
                kept = [search.better_half(trials, t) for search, trials in zip(self.searches, alive, strict=True)]
                for trials, better in zip(alive, kept, strict=True):
                    for trial in trials:
                        trial.pruned = not trial.lost and trial not in better
                alive = kept

    def _train(self, configs: Sequence[Config], title: str) -> None:
        """Run what is not there yet."""
        todo = [config for config in configs if not reached(config)]
        names = [f"{title}: {Path(config['out']).parent.name}/{Path(config['out']).name}" for config in todo]
        with display(names, len(names), self.console) as shown:
            if todo and not run_cells(todo, self.workers, self.plan.jobs, shown):
                raise KeyboardInterrupt

    def _config(self, g: int, trial: Trial, seed: str, t: int) -> Config:
        """The configuration of a trial with one seed."""
        words = [f"{key}={value}" for key, value in trial.settings.items()]
        words += [f"seed={seed}", "eval.test=false", "eval.clients=false", "eval.finetune=0"]
        folder = self._folder(g, trial, seed)
        return configs.plain(configs.compose([*self.groups[g].overrides, *words])) | {"out": str(folder), "until": t}

    def _folder(self, g: int, trial: Trial, seed: str) -> Path:
        several = f"-seed={seed}" if len(list(values(self.plan.seeds))) > 1 else ""
        return self.out / "search" / (self.groups[g].folder or "run") / f"{trial.number:03d}{several}"

    def _read(self, g: int, trial: Trial, t: int) -> None:
        """The mean score of a trial after round `t`."""
        found = []
        for seed in values(self.plan.seeds):
            folder = self._folder(g, trial, seed)
            lost = failure(folder)
            if lost is not None:
                trial.lost = lost.reason
                return
            rows = [row for row in RunResult(folder).rows if row["round"] <= t and self.metric.name in row]
            found.append(float(rows[-1][self.metric.name]))
        trial.scores[t] = sum(found) / len(found)

    def _recorded(self, spaces: Sequence[Mapping[str, Range]]) -> list[list[dict[str, Any]]]:
        """The values of the trials that an earlier call asked for; refuses a search of another kind."""
        try:
            if not os.path.lexists(self.out / RECORD):
                return [[] for _ in self.groups]
            earlier = recorded(self.out)
            now = self._about(spaces)
            odd = [key for key, value in now.items() if earlier[key] != value and key != "trials"]
            known = [[trial["values"] for trial in group["trials"]] for group in earlier["groups"]]
        except (KeyError, TypeError) as error:
            raise unreadable(self.out, f"{error!r}") from error
        if odd:
            rule = f"it holds a search with another {', '.join(odd)}"
            raise ArnoError(f"out = {self.out}", rule, "choose another out=")
        return known

    def _about(self, spaces: Sequence[Mapping[str, Range]]) -> dict[str, Any]:
        """What makes two searches the same."""
        return {
            "labels": [label(cell) for cell in self.groups],
            "spaces": [{key: str(several) for key, several in space.items()} for space in spaces],
            "metric": self.metric.to_json(),
            "rounds": self.base[0]["rounds"],
            "seeds": self.plan.seeds,
            "prune": self.plan.prune,
        }

    def _write(self, words: Sequence[str], seconds: float | None = None) -> None:
        """The record of the search so far."""
        groups = []
        for g, (cell, search) in enumerate(self):
            trials = [asdict(trial) | self._cost(g, trial) for trial in search.trials]
            done = seconds is not None
            best = search.best if done else None
            border = {k: end for k, v in best.settings.items() if (end := search.space[k].border(v))} if best else {}
            groups.append(
                {"label": label(cell), "name": cell.name, "setting": cell.setting, "trials": trials}
                | ({"best": best.number, "border": border} if best else {})
            )
        record = self._about([search.space for search in self.searches])
        record |= {"trials": self.plan.trials, "words": list(words), "seconds": seconds, "groups": groups}
        write(self.out / RECORD, checksummed.text(record).encode())

    def _cost(self, g: int, trial: Trial) -> dict[str, float]:
        """Rounds, local steps, bytes and seconds that a trial took, over its seeds."""
        cost = dict.fromkeys(("rounds", "local_steps", "uploaded_bytes", "seconds"), 0.0)
        for seed in values(self.plan.seeds) if trial.scores or trial.lost else ():
            folder = self._folder(g, trial, seed)
            rows = RunResult(folder).rows if (folder / "metrics.jsonl").exists() else []
            if rows:
                cost["rounds"] += len(rows)
                cost["seconds"] += sum(row["seconds"] for row in rows)
                for name in ("local_steps", "uploaded_bytes"):
                    cost[name] += rows[-1].get(name, 0)
        return cost


def label(cell: Cell) -> str:
    """The name of a group."""
    return f"{cell.name} {cell.setting}".strip()


def objective(config: Config) -> Metric:
    """The score that chooses the settings: on validation data, never on test data."""
    problem: Problem = configs.registry("problem").build(config["problem"], config)
    if problem.selects is not None:
        return problem.selects
    free = [metric for metric in problem.metrics if not metric.split and not metric.clients]
    if "test" in problem.splits or not free:
        rule = "settings are chosen by validation data, and there are none"
        raise ArnoError(f"data.val = {config['data'].get('val')}", rule, "add data.val=0.1")
    return free[0]


def reached(config: Config) -> bool:
    """Whether the run of a trial has trained to the round `until`; refuses a folder made with other settings."""
    until = config["until"]
    plain = {key: value for key, value in config.items() if key != "until"}
    if is_done(plain, retry=False):
        return True
    folder = Path(config["out"])
    if not (folder / "manifest.json").exists():
        return False
    run = RunResult(folder)
    return run.folder.manifest().get("status") == "interrupted" and len(run.rows) >= until and bool(run.folder.saved())
