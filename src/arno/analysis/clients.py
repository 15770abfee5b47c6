"""The scores of each client over the seeds, for each method of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import TYPE_CHECKING

from ..core.metric import Metric
from . import statistics
from .scores import Record
from .statistics import Summary

if TYPE_CHECKING:
    import pandas as pd

    from .comparison import Comparison, Group

#: The prefixes of the scores, and the names of their models.
MODELS = {"own": "global", "personal": "personal"}
#: A table shows all clients if there are at most MANY; otherwise, the WORST clients with the worst scores.
MANY, WORST = 12, 5


@dataclass(frozen=True)
class Column:
    """The scores of one model: for each client, the mean over the seeds and its interval."""

    head: str
    metric: Metric
    scores: dict[str, Summary]

    def worst(self) -> str | None:
        """The client with the worst mean; None without scores."""
        known = [client for client, score in self.scores.items() if not isnan(score.mean)]
        return min(known, key=lambda client: self.metric.sign * self.scores[client].mean, default=None)


@dataclass(frozen=True)
class Served:
    """A table of clients: their numbers of training and test samples (means over the seeds), and columns of scores."""

    clients: list[str]
    samples: dict[str, float]
    tested: dict[str, float]
    columns: list[Column]

    @property
    def metric(self) -> Metric:
        """The metric of the first column."""
        return self.columns[0].metric

    def alike(self) -> list[Column]:
        """The columns that have the same metric as the first column, of any model."""
        return [column for column in self.columns if plain_label(column.metric) == plain_label(self.metric)]

    def mean(self, client: str) -> float:
        """The mean score of a client over the columns of `alike`."""
        same = [column.scores[client].mean for column in self.alike()]
        known = [value for value in same if not isnan(value)]
        return sum(known) / len(known) if known else nan

    def worst(self, count: int) -> list[str]:
        """The clients with the worst mean scores, the worst first."""
        known = [client for client in self.clients if not isnan(self.mean(client))]
        return sorted(known, key=lambda client: self.metric.sign * self.mean(client))[:count]

    def shown(self, many: int = MANY, worst: int = WORST) -> list[str]:
        """The clients that a table shows: all of them, or the worst ones if there are many clients."""
        return self.clients if len(self.clients) <= many else self.worst(worst)


def served(comparison: Comparison, place: str) -> Served | None:
    """The scores of the clients in one setting; None if there are none, or if clients differ from seed to seed.

    With several groups, each group has a column with the compared score. With one group, each score has a column.
    Clients without names differ from seed to seed, because each seed has another partition.
    """
    groups = [group for group in comparison.members if group.setting == place and group.runs]
    frames = {group.label: _frame(group) for group in groups}
    if not any(len(frame) for frame in frames.values()):
        return None
    whole = next(frame for frame in frames.values() if len(frame))
    if "name" not in whole and any(frame["seed"].nunique() > 1 for frame in frames.values() if len(frame)):
        return None
    clients = list(dict.fromkeys(client for frame in frames.values() for client in frame["who"]))
    columns: list[Column] = []
    for group in groups:
        columns += _columns(comparison, group, frames[group.label], len(groups) > 1, clients)
    if not columns:
        return None
    samples, tested = (_means(whole, name) for name in ("samples", "tested"))
    return Served(clients, samples, tested, columns)


def _means(frame: pd.DataFrame, name: str) -> dict[str, float]:
    """The mean of a column by client."""
    return {str(client): float(mean) for client, mean in frame.groupby("who")[name].mean().items()}


def plain_label(metric: Metric) -> str:
    """The label of a score of clients, without the name of the model.

    >>> plain_label(Metric("personal_f1", "personal F1")), plain_label(Metric("own_f1", "own test F1"))
    ('F1', 'F1')
    """
    return metric.label.removeprefix("own test ").removeprefix("personal ")


def _frame(group: Group) -> pd.DataFrame:
    """The rows of all seeds of a group; the column `who` names the client."""
    import pandas as pd

    found = [run.client_scores().assign(seed=seed) for seed, run in group.runs.items()]
    found = [frame for frame in found if len(frame)]
    if not found:
        return pd.DataFrame(columns=["who", "seed"])
    whole = pd.concat(found, ignore_index=True)
    return whole.assign(who=whole["name" if "name" in whole else "client"].astype(str))


def _columns(
    comparison: Comparison, group: Group, frame: pd.DataFrame, several: bool, clients: Sequence[str]
) -> list[Column]:
    declared = [metric for metric in comparison.metrics.values() if metric.name in frame]
    models = [prefix for prefix in MODELS if any(metric.name.startswith(f"{prefix}_") for metric in declared)]
    columns = []
    for prefix in models:
        own = [metric for metric in declared if metric.name.startswith(f"{prefix}_")]
        told = f"{group.name}, {MODELS[prefix]}" if len(models) > 1 else group.name
        if several:
            own = [_compared(comparison, prefix, own)]
        heads = [told] if several else [plain_label(metric) if prefix == "own" else metric.label for metric in own]
        scores = [_summaries(frame, metric.name, clients) for metric in own]
        columns += [Column(*column) for column in zip(heads, own, scores, strict=True)]
    return columns


def _compared(comparison: Comparison, prefix: str, own: Sequence[Metric]) -> Metric:
    """The metric of the clients that belongs to the compared score; by default, the first metric."""
    compared = comparison.declared()
    name = f"{prefix}_{compared.name.removeprefix(f'{compared.split}_')}"
    return next((metric for metric in own if metric.name in (name, compared.name)), own[0])


def _summaries(frame: pd.DataFrame, name: str, clients: Sequence[str]) -> dict[str, Summary]:
    values: dict[str, list[float]] = {client: [] for client in clients}
    for client, value in zip(frame["who"], frame[name], strict=True):
        if isfinite(value):
            values[client].append(float(value))
    return {client: statistics.summary(some) for client, some in values.items()}


@dataclass(frozen=True)
class Overview:
    """The scores of a model: on the test samples of all clients together, and statistics over the clients.

    name: the name of the method and the model. values: the keys are together, mean, std and worst (over the clients);
    each value is a summary over the seeds.
    """

    name: str
    metric: Metric
    values: dict[str, Summary]


def overview(comparison: Comparison, place: str) -> list[Overview]:
    """A row for the global models of each group of a setting, and a row for the personal models if it has any.

    The list is empty for a single group, because its run has printed these numbers.
    """
    found, groups = [], [group for group in comparison.members if group.setting == place and group.runs]
    for group in groups if len(groups) > 1 else ():
        lasts = [Record(run.rows, (), 0).last for run in group.runs.values()]
        models = {prefix: one for prefix in MODELS if (one := _statistics(comparison, prefix, lasts[0]))}
        for prefix, (metric, names) in models.items():
            told = f"{group.name}, {MODELS[prefix]}" if len(models) > 1 else group.name
            values = {
                key: [last[name] for last in lasts if isfinite(last.get(name, nan))] for key, name in names.items()
            }
            found.append(Overview(told, metric, {key: statistics.summary(some) for key, some in values.items()}))
    return found


def _statistics(
    comparison: Comparison, prefix: str, last: Mapping[str, object]
) -> tuple[Metric, dict[str, str]] | None:
    """The metric for which a model has statistics over the clients, and the names of their columns."""
    declared = {
        metric.clients: metric
        for metric in comparison.metrics.values()
        if metric.name.startswith(f"{prefix}_") and metric.clients in ("mean", "std", "worst") and metric.name in last
    }
    if len(declared) < 3:
        return None
    stem = declared["mean"].name.removesuffix("_mean")
    together = next((name for name in (stem, f"test_{stem.removeprefix(f'{prefix}_')}") if name in last), stem)
    names = {"together": together} | {key: metric.name for key, metric in declared.items()}
    plain = comparison.metrics.get(together, declared["mean"])
    return plain, {key: names[key] for key in ("together", "mean", "std", "worst")}
