"""A comparison: groups of runs, and tables of their scores. The runs of a group differ only in their seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..core.metric import TRAIN_LOSS, Metric
from ..errors import ArnoError
from ..limits import inside
from ..pictures.card import card
from ..records import checksummed
from ..records.damage import Damaged
from ..records.folder import RunFolder
from ..runs.result import RunResult
from . import statistics
from .names import flattened, names, shown
from .scores import Record, worst_tenth

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: The file that describes a comparison, in its folder; the file that says why a cell failed, in the folder of the cell.
RECORD, FAILURE = "compare.json", "failure.json"
REMEDY = "give the folder that arno run or arno compare printed last"


class Lost(NamedTuple):
    """Why a run has no result. diverged: whether its numbers are no longer finite."""

    reason: str
    diverged: bool


@dataclass
class Group:
    """Runs that differ only in their seed.

    name: what is compared, in most cases the method. setting: the other settings that vary (empty if none do); groups
    with the same setting are compared. runs: the runs with results, by seed. lost: the runs without a result, by seed.
    partial: the unfinished runs of a comparison, by seed; pictures show them, and no mean contains them.
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
        """All runs with records: the runs that count, then the unfinished ones."""
        return [*self.runs.values(), *self.partial.values()]

    def part_way(self) -> list[Group]:
        """The unfinished runs, each as a separate group; the name says how many rounds it has."""
        done = {seed: f"{run.history.index[-1]} of {run.config['rounds']} rounds" for seed, run in self.partial.items()}
        return [
            Group(f"{self.name}, seed {seed}: {done[seed]}", self.setting, {seed: run})
            for seed, run in self.partial.items()
        ]


class Settings(NamedTuple):
    """shared: the settings that all groups share. differing: by label, the settings in which groups differ.

    Neither of them contains the seed.
    """

    shared: dict[str, Any]
    differing: dict[str, dict[str, Any]]


class Comparison:
    """Groups of runs. The first group of each setting is the reference.

    groups: the runs by label. history: one row per run and round. scores(): one row per run. table(): one row per
    group. differences(): one row per group, except the reference, paired by seed. client_scores(): one row per run and
    client. plot(): a picture.
    """

    def __init__(self, members: Sequence[Group], path: Path | None = None, record: Mapping[str, Any] | None = None):
        self.members, self.path, self.record = list(members), path, dict(record or {})
        self._read: dict[Path, Record] = {}
        if not self.members:
            raise ArnoError(f"{path or 'no runs'}", "there is nothing to compare", "give the folders of finished runs")

    def __repr__(self) -> str:
        return f"Comparison({list(self.groups)}, seeds={self.seeds})"

    def _repr_html_(self) -> str:
        """What notebooks show: the final scores with their intervals, and the picture."""
        declared, table = self.declared(), self.table()
        names = {"setting": "setting", "name": "method", "seeds": "seeds", "final": f"final {declared.label}"}
        names |= {"final_std": "± std", "final_low": "95 % from", "final_high": "to"}
        shown = [name for name in names if name in table and (name != "setting" or len(self.places) > 1)]
        html = table[shown].rename(columns=names).to_html(index=False, float_format=declared.show, border=0)
        facts = {"where": self.where, "better than every other": ", ".join(self.winners()) or "none, by 95 % intervals"}
        return card("Comparison", facts, html, self.plot() if "final" in table else None)

    @classmethod
    def open(cls, path: Path | str) -> Comparison:
        """The comparison in a folder of `arno compare`, in the order of its grid; unfinished runs are `partial`."""
        path = Path(path)
        if not (path / RECORD).exists():
            return cls.of(runs_in(path))
        record, members = record_of(path), dict[tuple[str, str], Group]()
        for folder, name, setting, seed in cells_of(record, path):
            group = members.setdefault((name, setting), Group(name, setting))
            _add(group, inside(path, path / folder), seed, only_done=True)
        if not any(group.begun or group.lost for group in members.values()):
            rule = "none of its runs has finished a round"
            raise ArnoError(f"{path}", rule, f"continue it with: {record.get('command', 'arno compare …')}")
        return cls(list(members.values()), path, record)

    @classmethod
    def of(cls, paths: Iterable[Path | str | RunResult]) -> Comparison:
        """A comparison of runs, grouped by their settings without the seed. The first run's group is the reference."""
        folders = [run.path if isinstance(run, RunResult) else Path(run) for run in paths]
        if len(folders) == 1 and not (folders[0] / "config.yaml").exists():
            return cls.open(folders[0])
        flat = [flattened(RunResult(path).config) for path in folders]
        for path, config in zip(folders, flat, strict=True):
            if not isinstance(config.get("method.kind"), str):
                raise ArnoError(f"{path}", "is no run: its config.yaml names no method", REMEDY)
            if not isinstance(config.get("seed"), int) or not isinstance(config.get("rounds"), int):
                raise ArnoError(f"{path}", "is no run: its config.yaml has no seed or no rounds", REMEDY)
        members: dict[tuple[str, str], Group] = {}
        named = names(flat, [f"{path}" for path in folders])
        for path, config, (name, setting) in zip(folders, flat, named, strict=True):
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
        """The seeds of all runs, also of runs without a result."""
        return sorted({seed for group in self.members for seed in (*group.runs, *group.lost, *group.partial)})

    @property
    def places(self) -> list[str]:
        """The settings within which groups are compared."""
        return list(dict.fromkeys(group.setting for group in self.members))

    @cached_property
    def history(self) -> pd.DataFrame:
        """The rounds of all runs that count: label, name, setting, seed, round and the columns of `metrics.jsonl`."""
        import pandas as pd

        rows = [about | dict(line) for about, record in self._records() for line in record.rows]
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["label", "seed", "round"])

    @cached_property
    def settings(self) -> Settings:
        """The settings of the runs as `section.name` → value."""
        flat = {group.label: flattened(group.begun[0].config) for group in self.members if group.begun}
        keys = {key: None for config in flat.values() for key in config if key not in ("seed", "out")}
        same = [key for key in keys if len({shown(config, key) for config in flat.values()}) == 1]
        first = next(iter(flat.values()), {})
        return Settings(
            {key: first[key] for key in same},
            {label: {k: c[k] for k in keys if k not in same and k in c} for label, c in flat.items()},
        )

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The declarations of the scores, by name, in order of preference."""
        found: dict[str, Metric] = {}
        for run in (run for group in self.members for run in group.begun):
            for metric in run.metrics:
                found.setdefault(metric.name, metric)
        return found

    @property
    def metric(self) -> str:
        """The score that is compared by default: the score of `metric=`, or the first declared score with a record."""
        if self.record.get("metric"):
            return str(self.record["metric"])
        return next((name for name in self.metrics if name in self._recorded), TRAIN_LOSS.name)

    def declared(self, name: str | None = None) -> Metric:
        """The declaration of a score, by default of the score that is compared."""
        name = name or self.metric
        return self.metrics.get(name, Metric(name, name))

    @property
    def where(self) -> str:
        """The data, the clients and the seeds in one sentence."""
        settings = self.settings.shared

        def fact(key: str, text: str) -> list[str]:
            return [text.format(settings[key])] if settings.get(key) is not None else []

        facts: list[str] = []
        if settings.get("problem.kind") == "quadratic":
            facts += fact("problem.kind", "{} problem")
        else:
            facts += fact("data.kind", "{}") + fact("data.name", "{}")
            facts += fact("partition.kind", "split by {}") + fact("partition.alpha", "α = {}")
            facts += fact("model.kind", "model {}")
        facts += fact("clients", "{} clients") + fact("rounds", "{} rounds")
        facts += [f"{len(self.seeds)} seeds"] if len(self.seeds) > 1 else [f"one seed ({seed})" for seed in self.seeds]
        return ", ".join(facts) + "."

    def scores(self, target: float | None = None, metric: str | None = None) -> pd.DataFrame:
        """One row per run: label, name, setting, seed and the columns of `Record.scores`."""
        import pandas as pd

        return pd.DataFrame(self._scores(target, metric))

    def table(self, target: float | None = None, metric: str | None = None) -> pd.DataFrame:
        """One row per group: for every column of `scores` its mean, `_std`, and the 95 % interval `_low`, `_high`.

        The intervals are cut at the declared range of the score. The rows of a setting begin with the best final score.
        reached: how many seeds reached the target. winner: whether this group is in `winners`.
        """
        import pandas as pd

        metric = metric or self.metric
        scores, rows, winners = self._scores(target, metric), [], self.winners(metric)
        columns = [name for name in (scores[0] if scores else ()) if name not in ("label", "name", "setting", "seed")]
        for group in self.members:
            mine = [score for score in scores if score["label"] == group.label]
            row: dict[str, Any] = {"setting": group.setting, "name": group.name, "label": group.label}
            row |= {"seeds": len(group.runs), "diverged": sum(lost.diverged for lost in group.lost.values())}
            row["failed"] = len(group.lost) - row["diverged"]
            row["winner"] = group.label in winners
            for name in columns:
                s = statistics.summary([score[name] for score in mine if not isnan(score[name])])
                about = self.column(name, metric)
                row |= {name: s.mean, f"{name}_std": s.std}
                row |= {f"{name}_low": max(s.low, about.low), f"{name}_high": min(s.high, about.high)}
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
        """One row per group, except the references: its final scores minus those of the reference at the same seeds.

        difference, std: mean and standard deviation over the seeds that both have. pairs: the number of these seeds.
        low, high: the 95 % interval of the mean. p: the p-value of the test. p_holm: p after Holm's correction for the
        number of rows.
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

    def client_scores(self) -> pd.DataFrame:
        """One row per run and client: label, name, setting, seed; the client, its samples and its scores.

        The columns are those of `RunResult.client_scores`; `client` is the name of the client if it has one.
        """
        import pandas as pd

        frames = []
        for group in self.members:
            for seed, run in group.runs.items():
                frame = run.client_scores()
                if "name" in frame:
                    frame = frame.assign(client=frame["name"]).drop(columns="name")
                about = {"label": group.label, "name": group.name, "setting": group.setting, "seed": seed}
                frames.append(pd.DataFrame(about, index=frame.index).join(frame))
        found = [frame for frame in frames if len(frame)]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["label", "seed", "client"])

    def figure(self, metric: str | None = None) -> Figure:
        """The same as `plot`."""
        return self.plot(metric)

    def plot(self, metric: str | None = None) -> Figure:
        """A picture: curves over the rounds, and the final scores of all seeds with the interval of their mean."""
        from .comparison_picture import bands

        return bands(self, metric)

    def finals(self, metric: str | None = None) -> dict[str, dict[int, float]]:
        """The last value of the score, by label and seed."""
        name = metric or self.metric
        found: dict[str, dict[int, float]] = {group.label: {} for group in self.members}
        for about, record in self._records():
            found[about["label"]][about["seed"]] = record.curve(name)[1][-1]
        return found

    def winners(self, metric: str | None = None) -> list[str]:
        """The labels of the groups that are better than every other group of their setting; see `statistics.winner`."""
        finals, better = self.finals(metric), self.declared(metric).sign
        found = []
        for place in self.places:
            there = {g.label: {seed: better * x for seed, x in finals[g.label].items()} for g in self._within(place)}
            best = statistics.winner(there)
            if best is not None and not any(g.lost for g in self.members if g.label == best):
                found.append(best)
        return found

    def column(self, name: str, metric: str | None = None) -> Metric:
        """The declaration of a column of `table`: its label, its range and how to print it."""
        if name in ("final", "best", "area"):
            return self.declared(metric)
        if name == "worst_decile":
            return next(iter(worst_tenth(self.metrics.values())), Metric(name, name))
        return Metric(name, name, "less", low=0)

    @cached_property
    def _recorded(self) -> set[str]:
        """The columns that at least one run recorded."""
        return {name for group in self.members for run in group.begun for row in run.rows for name in row}

    def _scores(self, target: float | None, metric: str | None) -> list[dict[str, Any]]:
        metric, target = metric or self.metric, self.record.get("target") if target is None else target
        return [about | record.scores(metric, target) for about, record in self._records()]

    def _records(self) -> Iterator[tuple[dict[str, Any], Record]]:
        """The records of every run that counts, and its label, name, setting and seed."""
        for group in self.members:
            about: dict[str, Any] = {"label": group.label, "name": group.name, "setting": group.setting}
            for seed, run in group.runs.items():
                if run.path not in self._read:
                    rounds = next(iter(group.runs.values())).config["rounds"]
                    self._read[run.path] = Record(run.rows, run.metrics, rounds)
                yield about | {"seed": seed}, self._read[run.path]

    def _within(self, place: str) -> list[Group]:
        return [group for group in self.members if group.setting == place]


def record_of(path: Path) -> dict[str, Any]:
    """The record of a comparison in its folder; an error if the file is damaged."""
    try:
        return checksummed.read(path / RECORD, path, "command")
    except ArnoError as error:
        remedy = "give the arno compare command again: it writes the file and runs nothing twice"
        raise ArnoError(error.args[0], error.args[1], remedy) from error


def cells_of(record: Mapping[str, Any], path: Path) -> list[tuple[str, str, str, int]]:
    """The folder, name, setting and seed of every cell."""
    try:
        return [(cell["folder"], cell["name"], cell["setting"], cell["seed"]) for cell in record["cells"]]
    except (LookupError, TypeError) as error:
        remedy = "if it was edited, restore it; or give the arno compare command again"
        raise ArnoError(f"{path / RECORD}", f"its cells cannot be read ({error!r})", remedy) from error


def runs_in(path: Path) -> list[Path]:
    """The folder itself if it is a run; otherwise, the folders of the runs in it."""
    if (path / "config.yaml").exists():
        return [path]
    found = sorted(p.parent for p in path.glob("*/manifest.json") if (p.parent / "config.yaml").exists())
    if not found:
        raise ArnoError(f"{path}", "holds no runs", REMEDY)
    return found


def _add(group: Group, path: Path, seed: int, only_done: bool = False) -> None:
    """Add a run, or the reason why it has no result, to its group. A run without a finished round is left out."""
    lost = failure(path)
    if lost is None and any((path / name).exists() for name in ("manifest.json", "metrics.jsonl")):
        run = RunResult(path)
        status, lines = run.folder.manifest().get("status"), run.rows
        odd = Record(lines, run.metrics, 0).diverged() if lines else None
        if odd:
            lost = Lost(f"{odd} is not finite after round {lines[-1]['round']}", True)
        elif status == "failed":
            lost = Lost(f"failed after round {lines[-1]['round'] if lines else 0} (see {path / 'log.txt'})", False)
        elif lines:
            (group.partial if only_done and status != "done" else group.runs)[seed] = run
    if lost is not None:
        group.lost[seed] = lost


def failure(path: Path) -> Lost | None:
    """Why a cell has no result, from the file written when it failed; None if it was resumed and is done."""
    if not (path / FAILURE).exists():
        return None
    with suppress(Damaged):
        if RunFolder(path).manifest().get("status") == "done":
            return None
    found = failure_of(path)
    return Lost(str(found.get("reason")), bool(found.get("diverged")))


def failure_of(path: Path) -> dict[str, Any]:
    """The record that was written when a cell failed; an error if the file is damaged."""
    try:
        return checksummed.read(path / FAILURE, path, "reason")
    except ArnoError as error:
        raise ArnoError(error.args[0], error.args[1], "remove it: arno compare then runs the cell again") from error
