"""What a comparison found: runs in groups that differ only in their seed, as tables of numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..config import settings as configs
from ..core.metric import TRAIN_LOSS, Metric
from ..errors import ArnoError
from ..runs.result import RunResult
from . import statistics
from .scores import WORST, Record

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: The record of a comparison in its folder, and of a cell that failed in the cell's.
RECORD, FAILURE = "compare.json", "failure.json"
REMEDY = "give the folder that arno run or arno compare printed last"
#: Settings that do not make another group.
APART = ("seed", "out", "engine", "checkpoint", "track", "state")


class Lost(NamedTuple):
    """A cell without a result, and why."""

    reason: str
    diverged: bool


@dataclass
class Group:
    """The runs that differ only in their seed.

    name: what is compared, mostly the method. setting: where it is compared, empty if there is only one.
    runs, lost: by seed. partial: runs of a comparison that are not over, drawn and never counted.
    """

    name: str
    setting: str = ""
    runs: dict[int, RunResult] = field(default_factory=dict)
    lost: dict[int, Lost] = field(default_factory=dict)
    partial: dict[int, RunResult] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and setting."""
        return f"{self.name} {self.setting}".strip()

    @property
    def begun(self) -> list[RunResult]:
        """Its runs, over or not, those that are over first."""
        return [*self.runs.values(), *self.partial.values()]

    def part_way(self) -> list[Group]:
        """Its runs that are not over, each alone, with how far it is in its name."""
        told = {seed: f"{run.history.index[-1]} of {run.config['rounds']} rounds" for seed, run in self.partial.items()}
        return [
            Group(f"{self.name}, seed {seed}: {told[seed]}", self.setting, {seed: run})
            for seed, run in self.partial.items()
        ]


class Settings(NamedTuple):
    """What all runs have in common, and by label in what they differ (but for the seed)."""

    shared: dict[str, Any]
    differing: dict[str, dict[str, Any]]


class Comparison:
    """Groups of runs, the first of each setting being the reference.

    groups: the runs by label. history: one row per run and round. scores(): one row per run. table(): one row per
    group. differences(): one row per group but the reference, paired by seed. figure(): a picture of it.
    """

    def __init__(self, members: Sequence[Group], path: Path | None = None, record: Mapping[str, Any] | None = None):
        self.members, self.path, self.record = list(members), path, dict(record or {})
        self._read: dict[Path, Record] = {}
        if not self.members:
            raise ArnoError(f"{path or 'no runs'}", "there is nothing to compare", "give the folders of finished runs")

    def __repr__(self) -> str:
        return f"Comparison({list(self.groups)}, seeds={self.seeds})"

    @classmethod
    def open(cls, path: Path | str) -> Comparison:
        """The cells in the folder of `arno compare`, in the order of its grid; only finished ones count."""
        path = Path(path)
        try:
            record = json.loads((path / RECORD).read_text())
            cells = record["cells"]
        except (OSError, ValueError, LookupError, TypeError):
            return cls.of(runs_in(path))
        members: dict[tuple[str, str], Group] = {}
        for cell in cells:
            group = members.setdefault((cell["name"], cell["setting"]), Group(cell["name"], cell["setting"]))
            _add(group, path / cell["folder"], cell["seed"], only_done=True)
        if not any(group.begun or group.lost for group in members.values()):
            rule = "none of its runs has ended a round yet"
            raise ArnoError(f"{path}", rule, f"go on with: {record.get('command', 'arno compare …')}")
        return cls(list(members.values()), path, record)

    @classmethod
    def of(cls, paths: Iterable[Path | str | RunResult]) -> Comparison:
        """Runs grouped by what they differ in besides the seed; the first run's group is the reference."""
        folders = [run.path if isinstance(run, RunResult) else Path(run) for run in paths]
        if len(folders) == 1 and not (folders[0] / "config.yaml").exists():
            return cls.open(folders[0])
        flat = [dict(configs.flat(RunResult(path).config)) for path in folders]
        for path, config in zip(folders, flat, strict=True):
            if "method.kind" not in config:
                raise ArnoError(f"{path}", "is no run: its config.yaml names no method", REMEDY)
        members: dict[tuple[str, str], Group] = {}
        for path, config, (name, setting) in zip(folders, flat, _names(flat), strict=True):
            group = members.setdefault((name, setting), Group(name, setting))
            seed = config["seed"]
            if seed in group.runs or seed in group.lost:
                raise ArnoError(f"{path}", f"{group.label} with seed {seed} is given twice", "leave one of them out")
            _add(group, path, seed)
        return cls(list(members.values()))

    @property
    def groups(self) -> dict[str, list[RunResult]]:
        """The runs that count, by label."""
        return {group.label: list(group.runs.values()) for group in self.members}

    @property
    def seeds(self) -> list[int]:
        """Every seed of some run."""
        return sorted({seed for group in self.members for seed in (*group.runs, *group.lost, *group.partial)})

    @property
    def places(self) -> list[str]:
        """The settings within which groups are compared."""
        return list(dict.fromkeys(group.setting for group in self.members))

    @cached_property
    def history(self) -> pd.DataFrame:
        """Every run's `metrics.jsonl`: label, name, setting, seed, round and what the round recorded."""
        import pandas as pd

        rows = [about | dict(line) for about, record in self._records() for line in record.rows]
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["label", "seed", "round"])

    @cached_property
    def settings(self) -> Settings:
        """The runs' settings, flat."""
        flat = {group.label: dict(configs.flat(group.begun[0].config)) for group in self.members if group.begun}
        keys = {key: None for config in flat.values() for key in config if key not in ("seed", "out")}
        same = [key for key in keys if len({_shown(config, key) for config in flat.values()}) == 1]
        first = next(iter(flat.values()), {})
        return Settings(
            {key: first[key] for key in same},
            {label: {k: c[k] for k in keys if k not in same and k in c} for label, c in flat.items()},
        )

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The declarations of the recorded scores, by name, in order of preference."""
        runs = (run for group in self.members for run in group.begun)
        return {metric.name: metric for run in reversed(list(runs)) for metric in run.metrics}

    @property
    def metric(self) -> str:
        """The score that is compared unless another is asked for: the first declared one that was recorded."""
        if self.record.get("metric"):
            return str(self.record["metric"])
        for run in (run for group in self.members for run in group.begun):
            recorded = {name for row in run.rows for name in row}
            return next((metric.name for metric in run.metrics if metric.name in recorded), TRAIN_LOSS.name)
        return TRAIN_LOSS.name

    def declared(self, name: str | None = None) -> Metric:
        """The declaration of a score, by default of the compared one."""
        name = name or self.metric
        return self.metrics.get(name, Metric(name, name))

    @property
    def where(self) -> str:
        """In which setting methods are compared, in a sentence."""
        settings = self.settings.shared

        def said(key: str, text: str) -> list[str]:
            return [text.format(settings[key])] if settings.get(key) is not None else []

        facts: list[str] = []
        if settings.get("problem.kind") == "quadratic":
            facts += said("problem.kind", "{} problem")
        else:
            facts += said("data.kind", "{}") + said("data.name", "{}")
            facts += said("partition.kind", "split by {}") + said("partition.alpha", "α = {}")
            facts += said("model.kind", "model {}")
        facts += said("clients", "{} clients") + said("rounds", "{} rounds")
        facts += [f"{len(self.seeds)} seeds"] if len(self.seeds) > 1 else [f"one seed ({seed})" for seed in self.seeds]
        return ", ".join(facts) + "."

    def scores(self, target: float | None = None, metric: str | None = None) -> pd.DataFrame:
        """One row per run: final, best (by validation, never by test) and area under the curve of the metric, the worst
        decile of the clients, what it took to reach the target (NaN: never reached) or in all, and the seconds.
        """
        import pandas as pd

        return pd.DataFrame(self._scores(target, metric))

    def table(self, target: float | None = None, metric: str | None = None) -> pd.DataFrame:
        """One row per group: mean, `_std`, and the 95 % interval `_low`, `_high` of every score, as far as it can be;
        best final first within a setting. `winner` is true where the paired intervals say so.
        """
        import pandas as pd

        metric = metric or self.metric
        scores, rows, winners = self._scores(target, metric), [], self.winners(metric)
        names = [name for name in (scores[0] if scores else ()) if name not in ("label", "name", "setting", "seed")]
        for group in self.members:
            mine = [score for score in scores if score["label"] == group.label]
            row: dict[str, Any] = {"setting": group.setting, "name": group.name, "label": group.label}
            row |= {"seeds": len(group.runs), "diverged": sum(lost.diverged for lost in group.lost.values())}
            row["failed"] = len(group.lost) - row["diverged"]
            row["winner"] = group.label in winners
            for name in names:
                s = statistics.summary([score[name] for score in mine if not isnan(score[name])])
                low, high = self._range(name, metric)
                row |= {name: s.mean, f"{name}_std": s.std}
                row |= {f"{name}_low": max(s.low, low), f"{name}_high": min(s.high, high)}
                if name == "rounds":
                    row["reached"] = s.n
            rows.append(row)
        frame = pd.DataFrame(rows)
        if "final" not in frame:
            return frame
        better = frame["final"] * self.declared(metric).sign
        order = frame.assign(_place=frame["setting"].map(self.places.index), _final=better)
        ranked = order.sort_values(["_place", "_final"], ascending=[True, False], kind="stable").index
        return frame.loc[ranked].reset_index(drop=True)

    def differences(self, metric: str | None = None, test: Literal["t", "wilcoxon"] | None = None) -> pd.DataFrame:
        """One row per group but the reference of its setting: the paired difference of the final scores over the seeds
        that both have, its 95 % interval, p and Holm's corrected p over all rows.
        """
        import pandas as pd

        asked = test or self.record.get("test") or "t"
        compute, rows = {"t": statistics.paired_t, "wilcoxon": statistics.wilcoxon}[asked], []
        for place in self.places:
            (reference, *others), finals = self._within(place), self.finals(metric)
            for group in others:
                gaps = statistics.differences(finals[group.label], finals[reference.label])
                s = statistics.summary(gaps)
                row: dict[str, Any] = {"setting": place, "name": group.name, "label": group.label}
                row |= {"reference": reference.name, "pairs": s.n, "difference": s.mean, "std": s.std}
                rows.append(row | {"low": s.low, "high": s.high, "p": compute(gaps)})
        for row, p in zip(rows, statistics.holm([row["p"] for row in rows]), strict=True):
            row["p_holm"] = p
        return pd.DataFrame(rows)

    def figure(self, metric: str | None = None) -> Figure:
        """The picture: curves over the rounds, and the final scores of all seeds with the interval of their mean."""
        from .figure import bands

        return bands(self, metric)

    def finals(self, metric: str | None = None) -> dict[str, dict[int, float]]:
        """The metric after the last round, by label and seed."""
        name = metric or self.metric
        found: dict[str, dict[int, float]] = {group.label: {} for group in self.members}
        for about, record in self._records():
            found[about["label"]][about["seed"]] = record.curve(name)[1][-1]
        return found

    def winners(self, metric: str | None = None) -> list[str]:
        """The label, in each setting that has one, of the group that is better than every other."""
        finals, better = self.finals(metric), self.declared(metric).sign
        found = []
        for place in self.places:
            there = {g.label: {seed: better * x for seed, x in finals[g.label].items()} for g in self._within(place)}
            best = statistics.winner(there)
            if best is not None and not any(g.lost for g in self.members if g.label == best):
                found.append(best)
        return found

    def _range(self, column: str, metric: str) -> tuple[float, float]:
        """Between which values a column of the table lies."""
        if column in ("final", "best", "area"):
            about = self.declared(metric)
        elif column == "worst_decile":
            about = next((m for name, m in self.metrics.items() if name.endswith(WORST)), Metric(column, column))
        else:
            about = Metric(column, column, low=0)
        return about.low, about.high

    def _scores(self, target: float | None, metric: str | None) -> list[dict[str, Any]]:
        metric, target = metric or self.metric, self.record.get("target") if target is None else target
        return [about | record.scores(metric, target) for about, record in self._records()]

    def _records(self) -> Iterator[tuple[dict[str, Any], Record]]:
        """Every run in numbers, and which one it is; a group's runs have the same settings."""
        for group in self.members:
            about: dict[str, Any] = {"label": group.label, "name": group.name, "setting": group.setting}
            for seed, run in group.runs.items():
                if run.path not in self._read:
                    rounds = next(iter(group.runs.values())).config["rounds"]
                    self._read[run.path] = Record(run.rows, run.metrics, rounds)
                yield about | {"seed": seed}, self._read[run.path]

    def _within(self, place: str) -> list[Group]:
        return [group for group in self.members if group.setting == place]


def runs_in(path: Path) -> list[Path]:
    """A run, or the runs in a folder."""
    if (path / "config.yaml").exists():
        return [path]
    found = sorted(p.parent for p in path.glob("*/manifest.json") if (p.parent / "config.yaml").exists())
    if not found:
        raise ArnoError(f"{path}", "holds no runs", REMEDY)
    return found


def _add(group: Group, path: Path, seed: int, only_done: bool = False) -> None:
    """Put a run, or the reason why there is none, into its group; one that has ended no round is neither."""
    lost = failure(path)
    if lost is None and (path / "manifest.json").exists() and (path / "metrics.jsonl").exists():
        run = RunResult(path)
        status, lines = run.folder.manifest()["status"], run.rows
        odd = Record(lines, run.metrics, 0).diverged()
        if odd:
            lost = Lost(f"{odd} is not finite after round {lines[-1]['round']}", True)
        elif status == "failed":
            lost = Lost(f"failed after round {lines[-1]['round'] if lines else 0} (see {path / 'log.txt'})", False)
        elif lines:
            (group.partial if only_done and status != "done" else group.runs)[seed] = run
    if lost is not None:
        group.lost[seed] = lost


def failure(path: Path) -> Lost | None:
    """Why a cell has no result, as it was recorded when it failed; somebody may have resumed it since."""
    try:
        found = json.loads((path / FAILURE).read_text())
        if (path / "manifest.json").exists() and json.loads((path / "manifest.json").read_text())["status"] == "done":
            return None
    except (OSError, ValueError):
        return None
    return Lost(found["reason"], found["diverged"])


def _shown(config: Mapping[str, Any], key: str) -> str:
    """A value to compare: none at all is something else than null."""
    return repr(config[key]) if key in config else ""


def _usual(config: Mapping[str, Any]) -> dict[str, Any]:
    """The general settings of a run of this problem and method if nobody sets them."""
    usual = {name: default for name, default, _ in configs.describe()}
    for group in ("problem", "method"):
        with suppress(ArnoError):  # a method may be gone
            usual |= configs.registry(group).info(config[f"{group}.kind"]).get("defaults", {})
    return usual


def _names(flat: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is compared, and where, in runs of these settings: methods if there are several, else whatever differs."""
    kinds = [config["method.kind"] for config in flat]
    several = len(set(kinds)) > 1
    keys = {key: None for config in flat for key in config if key.split(".")[0] not in APART and key != "method.kind"}
    usual = [_usual(config) for config in flat] if several else []
    for key in {key for mine in usual for key in mine}:
        if all(key in mine and config.get(key) == mine[key] for config, mine in zip(flat, usual, strict=True)):
            keys.pop(key, None)  # nobody set it: where it differs, the methods' own defaults do

    def differing(config: Mapping[str, Any], among: Sequence[Mapping[str, Any]], own: bool) -> str:
        mine = [k for k in keys if k in config and k.startswith("method.") == own]
        varied = [k for k in mine if len({_shown(other, k) for other in among}) > 1]
        return " ".join(f"{k.removesuffix('.kind')}={configs.written(config[k])}" for k in varied)

    found = []
    for config, kind in zip(flat, kinds, strict=True):
        own = differing(config, [other for other in flat if other["method.kind"] == kind], own=True)
        rest = differing(config, flat, own=False)
        words = [kind, own] if several else [own, rest]
        found.append((" ".join(filter(None, words)) or kind, rest if several else ""))
    return found
