"""The searches of all methods of a comparison, which train their trials together.

For every method, Optuna proposes settings in batches. All trials of a batch train to a quarter of the rounds, and the
better half of them to the end. So every method has the same number of trials and of rounds. All trials have the same
seeds, so they have the same clients and the same cohorts. Scores are computed on validation data; the problems of
trials do not contain the test data (`eval.test=false`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..analysis import comparison
from ..analysis.comparison import failure
from ..analysis.tuning import COSTS, RECORD, recorded, unreadable
from ..config import settings as configs
from ..config.lists import values
from ..core.metric import Metric
from ..errors import ArnoError
from ..records import checksummed
from ..records.disk import write
from ..records.folder import RunFolder
from ..runs.result import RunResult
from .cells import Config, Workers, run_cells
from .compare import check_jobs, composed, is_done, resolve
from .display import display
from .grid import MOST, Cell
from .ranges import Range
from .search import BATCH, Search, Trial, repair_storage, rungs
from .spaces import method_of, refuse_values

if TYPE_CHECKING:
    from rich.console import Console

    from ..core.problem import Problem

#: The seeds of the search, unless they are given.
SEARCH_SEEDS = "1000"
#: Optuna's storage in the folder of the search.
STORAGE = "optuna.journal"
#: The settings of every trial, in addition to the settings that are searched and the seed.
ALWAYS = ("eval.test=false", "eval.clients=false", "eval.finetune=0")


@dataclass(frozen=True)
class Plan:
    """The size of a search.

    trials: the number of trials per method. seeds: the seeds of each trial. prune: whether bad trials are stopped
        early.
    jobs: how many runs train at a time. retry: whether failed runs of the comparison are run again.
    """

    trials: int = 20
    seeds: str = SEARCH_SEEDS
    prune: bool = True
    jobs: int | None = None
    retry: bool = False

    def check(self, final: Sequence[str]) -> None:
        """Refuse a search without trials, and seeds that the comparison uses too."""
        check_jobs(self.jobs)
        if self.trials < 2:
            raise ArnoError(f"--trials {self.trials}", "a search needs at least two", "try --trials 20")
        if self.trials > MOST:
            raise ArnoError(f"--trials {self.trials}", f"a search has at most {MOST:,}", "try --trials 20")
        numbers = {seed: configs.parse(f"seed={seed}")[1] for seed in (*values(self.seeds), *final)}
        odd = [seed for seed, number in numbers.items() if not isinstance(number, int) or isinstance(number, bool)]
        if odd:
            raise ArnoError(f"seed {odd[0]!r}", "seeds are whole numbers", "write 1000, 1000,1001 or 1000..1002")
        both = sorted({numbers[seed] for seed in values(self.seeds)} & {numbers[seed] for seed in final})
        if both:
            rule = f"the comparison uses seed {', '.join(map(str, both))} too, and settings are chosen on other seeds"
            free = next(seed for seed in range(int(SEARCH_SEEDS), 2**31) if seed not in {numbers[one] for one in final})
            raise ArnoError(f"--search-seeds {self.seeds}", rule, f"try --search-seeds {free}")


class Searching:
    """The searches of all groups. Their trials share the workers."""

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
        self.seeds = list(values(plan.seeds))
        self.base = list(resolve(groups))
        problems = problems_of(self.base)
        self.metric = objective(groups, self.base, problems)
        for cell, space, problem in zip(groups, spaces, problems, strict=True):
            refuse_values(cell, space, problem)
        self.steps = [rungs(c["rounds"], c["eval"]["every"]) if plan.prune else [c["rounds"]] for c in self.base]
        recorded = self._recorded(spaces)
        self.searches = [
            Search(label(cell), space, self.metric.sign, known)
            for cell, space, known in zip(groups, spaces, recorded, strict=True)
        ]
        self._costs: dict[tuple[int, int], dict[str, float]] = {}
        self._configs: dict[Path, Config] = {}

    def __iter__(self) -> Iterator[tuple[Cell, Search]]:
        return zip(self.groups, self.searches, strict=True)

    def run(self, words: Sequence[str]) -> None:
        """Train all batches of trials. Runs of an earlier call are read and not run again."""
        began = perf_counter()
        repair_storage(self.out / STORAGE)
        for first in range(0, self.plan.trials, BATCH):
            count = min(BATCH, self.plan.trials - first)
            asked = [search.ask(count) for search in self.searches]
            self._write(words)
            self._batch(asked, f"trials {first + 1} to {first + count} of {self.plan.trials}")
            for g, (search, trials) in enumerate(zip(self.searches, asked, strict=True)):
                search.tell(trials)
                search.store(self.out / STORAGE)
                self._costs |= {(g, trial.number): self._cost(g, trial) for trial in trials}
            _refuse_broken(self.searches, asked)
        self._write(words, seconds=perf_counter() - began)

    def _batch(self, asked: Sequence[Sequence[Trial]], title: str) -> None:
        """Train the trials of a batch; only the better half of each group trains for more rounds."""
        alive = [list(trials) for trials in asked]
        for i in range(max(map(len, self.steps))):
            runs = [
                (g, trial, self.steps[g][i])
                for g, trials in enumerate(alive)
                for trial in trials
                if i < len(self.steps[g]) and not trial.lost
            ]
            self._train([self._config(g, trial, seed, t) for g, trial, t in runs for seed in self.seeds], title)
            for g, trial, t in runs:
                self._read(g, trial, t)
            for g, search in enumerate(self.searches):
                if i < len(self.steps[g]) - 1:
                    kept = search.better_half(alive[g], self.steps[g][i])
                    for trial in alive[g]:
                        trial.pruned = not trial.lost and trial not in kept
                    alive[g] = kept

    def _train(self, configs: Sequence[Config], title: str) -> None:
        """Train the runs that are missing.

        A run that fails is tried once more, because its worker may have been killed.
        """
        todo = [config for config in configs if not reached(config, retry=True)]
        for last in (False, True):
            names = [f"{title}: {Path(config['out']).parent.name}/{Path(config['out']).name}" for config in todo]
            with display(names, len(names), self.console) as shown:
                if todo and not run_cells(todo, self.workers, self.plan.jobs, shown):
                    raise KeyboardInterrupt
            if not last:
                todo = [todo[i] for i in sorted(shown.failed) if not reached(todo[i], retry=True)]

    def _config(self, g: int, trial: Trial, seed: str, t: int) -> Config:
        """The configuration of a trial with one seed.

        It is made once, because only `until` changes from round to round.
        """
        folder = self._folder(g, trial, seed)
        if folder not in self._configs:
            words = [f"{key}={value}" for key, value in trial.settings.items()]
            config = composed(self.groups[g], [*words, f"seed={seed}", *ALWAYS])
            self._configs[folder] = config | {"out": str(folder)}
        return self._configs[folder] | {"until": t}

    def _folder(self, g: int, trial: Trial, seed: str) -> Path:
        several = f"-seed={seed}" if len(self.seeds) > 1 else ""
        return self.out / "search" / self.groups[g].folder / f"{trial.number:03d}{several}"

    def _read(self, g: int, trial: Trial, t: int) -> None:
        """Compute the mean score of a trial after round `t`."""
        found = []
        for seed in self.seeds:
            folder = self._folder(g, trial, seed)
            lost = failure(folder)
            if lost is not None:
                trial.lost, trial.diverged = lost.reason, lost.diverged
                return
            rows = [row for row in RunResult(folder).rows if row["round"] <= t and self.metric.name in row]
            found.append(float(rows[-1].get(personal(self.metric), rows[-1][self.metric.name])))
        trial.scores[t] = sum(found) / len(found)
        if not isfinite(trial.scores[t]):
            trial.lost, trial.diverged = f"its {self.metric.label} is not finite after round {t}", True

    def _recorded(self, spaces: Sequence[Mapping[str, Range]]) -> list[list[dict[str, Any]]]:
        """The values of the trials of an earlier call. Refuses a folder with a different search."""
        try:
            if not os.path.lexists(self.out / RECORD):
                return [[] for _ in self.groups]
            earlier = recorded(self.out)
            now = self._about(spaces)
            odd = [key for key, value in now.items() if earlier[key] != value]
            known = [[trial["values"] for trial in group["trials"]] for group in earlier["groups"]]
        except (KeyError, TypeError) as error:
            raise unreadable(self.out, f"{error!r}") from error
        if odd:
            rule = f"it holds a search with other {', '.join(odd)}"
            raise ArnoError(f"out = {self.out}", rule, "choose another out=")
        return known

    def _about(self, spaces: Sequence[Mapping[str, Range]]) -> dict[str, Any]:
        """The values that are equal in two calls of the same search."""
        return {
            "methods": [label(cell) for cell in self.groups],
            "ranges": [{key: str(several) for key, several in space.items()} for space in spaces],
            "metric": self.metric.to_json(),
            "rounds": [config["rounds"] for config in self.base],
            "seeds": self.plan.seeds,
            "pruning": self.plan.prune,
        }

    def _write(self, words: Sequence[str], seconds: float | None = None) -> None:
        """Write the record of the search so far."""
        groups = []
        for g, (cell, search) in enumerate(self):
            nothing = dict.fromkeys(COSTS, 0.0)
            trials = [asdict(trial) | self._costs.get((g, trial.number), nothing) for trial in search.trials]
            best = search.best if seconds is not None and search.space else None
            border = {k: end for k, v in best.settings.items() if (end := search.space[k].border(v))} if best else {}
            groups.append(
                {"label": label(cell), "name": cell.name, "setting": cell.setting, "trials": trials}
                | ({"best": best.number, "border": border} if best else {})
            )
        record = self._about([search.space for search in self.searches])
        record |= {"trials": self.plan.trials, "words": list(words), "seconds": seconds, "groups": groups}
        write(self.out / RECORD, checksummed.text(record).encode())

    def _cost(self, g: int, trial: Trial) -> dict[str, float]:
        """The rounds, local steps, bytes and seconds of a trial, summed over its seeds."""
        cost = dict.fromkeys(COSTS, 0.0)
        for seed in self.seeds:
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


def refuse_folder(out: Path, trials: int) -> None:
    """Refuse the folder of another comparison, and another number of trials after test data were read."""
    if not (out / comparison.RECORD).exists():
        return
    if not os.path.lexists(out / RECORD):
        raise ArnoError(f"out = {out}", "it holds a comparison without a search", "choose another out=")
    earlier = recorded(out).get("trials")
    if earlier != trials:
        rule = f"the search in {out} had {earlier}, and its comparison has read test data"
        raise ArnoError(f"--trials {trials}", rule, "choose another out=")


def _refuse_broken(searches: Sequence[Search], asked: Sequence[Sequence[Trial]]) -> None:
    """Stop a search if all trials of a batch failed for another reason than divergence."""
    for search, trials in zip(searches, asked, strict=True):
        if trials and all(trial.lost and not trial.diverged for trial in trials):
            rule = (
                f"all trials {trials[0].number + 1} to {trials[-1].number + 1} failed; the first one: {trials[0].lost}"
            )
            raise ArnoError(f"search for {search.name}", rule, "correct the settings or the ranges")


def problems_of(base: Sequence[Config]) -> list[Problem]:
    """The problem of each configuration. Equal problems are built once."""
    found: dict[str, Problem] = {}
    out = []
    for config in base:
        parts = [config[key] for key in ("problem", "data", "task", "partition", "model", "clients", "eval", "dtype")]
        key = json.dumps(parts, sort_keys=True, default=str)
        if key not in found:
            found[key] = configs.registry("problem").build(config["problem"], config)
        out.append(found[key])
    return out


def objective(groups: Sequence[Cell], base: Sequence[Config], problems: Sequence[Problem]) -> Metric:
    """The score that chooses the settings. It is computed on validation data, never on test data."""
    names = dict[str, Metric]()
    for cell, config, problem in zip(groups, base, problems, strict=True):
        own = configs.registry("method").info(method_of(cell)).get("family") == "personal"
        if own and config["data"].get("client_val") is None:
            rule = "its clients have personal models, and their own validation samples choose its settings"
            raise ArnoError(f"method={method_of(cell)}", rule, "add data.client_val=0.2")
        metric = chooses(config, problem)
        names[metric.name] = metric
    if len(names) > 1:
        rule = "the scores of the settings differ, and one search has one score"
        raise ArnoError(", ".join(sorted(names)), rule, "tune them in two searches")
    return next(iter(names.values()))


def chooses(config: Config, problem: Problem) -> Metric:
    """The score of one problem that chooses settings."""
    if problem.selects is not None:
        return problem.selects
    free = [metric for metric in problem.metrics if not metric.split and not metric.clients]
    if "test" in problem.splits or not free:
        rule = "settings are chosen by validation data, and there are none"
        raise ArnoError(f"data.val = {config['data'].get('val')}", rule, "add data.val=0.1")
    return free[0]


def personal(metric: Metric) -> str:
    """The name of the same score for personal models; a round records it if the method has such models."""
    return metric.on_other("personal")


def reached(config: Config, retry: bool) -> bool:
    """Whether the run of a trial has trained to the round `until`. Refuses a folder that was made with other settings.

    retry: whether a run that failed is run again; a run that diverged is not.
    """
    until = config["until"]
    plain = {key: value for key, value in config.items() if key != "until"}
    if is_done(plain, retry):
        return True
    folder = Path(config["out"])
    if not (folder / "manifest.json").exists():
        return False
    saved = RunFolder(folder).saved()
    interrupted = RunFolder(folder).manifest().get("status") == "interrupted"
    return interrupted and bool(saved) and int(saved[-1].stem) >= until
