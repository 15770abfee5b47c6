"""Scores of the global model and of personal models on the samples that each client keeps for its own test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.metric import Metric
from ..core.seeds import numpy_stream
from ..core.work import Mat
from ..data.dataset import shortened
from ..data.partition import Partition
from ..errors import ArnoError
from ..tasks.task import Task

#: The prefix of the columns and the label, for the global model and for the models that the clients would use.
GLOBAL, PERSONAL = ("own", "own test"), ("personal", "personal")
#: How many clients' models are in memory at the same time.
ROWS = 64


def keep_some(
    partition: Partition, share: float, seed: int, setting: str = "client_test", gap: int | None = None
) -> tuple[Partition, Partition]:
    """Divide each client's samples into training samples and samples that it keeps, at least one of each.

    A client with a single sample trains on it and keeps none.
    setting: the name of the share, for errors and for the random stream.
    gap: as in `Dataset`; the client keeps its last samples, and `gap` samples before them are in neither part.

    >>> train, test = keep_some(Partition(torch.arange(11), torch.tensor([0, 8, 10, 11])), 0.25, seed=0)
    >>> train.sizes.tolist(), test.sizes.tolist()
    ([6, 1, 1], [2, 1, 0])
    """
    if not 0 < share < 1:
        raise ArnoError(f"data.{setting} = {share:g}", "it must be above 0 and below 1", f"try data.{setting}=0.2")
    if partition.shares():
        rule = "clients share samples, so a client would train on samples that another client keeps"
        raise ArnoError(f"data.{setting} = {share:g}", rule, "use another partition")
    kept, held = [], []
    for k in range(len(partition)):
        rows = partition[k].numpy()
        order = numpy_stream(seed, setting, k).permutation(len(rows)) if gap is None else np.arange(len(rows))[::-1]
        count = max(0, min(max(1, round(share * len(rows))), len(rows) - 1 - (gap or 0)))
        held.append(rows[np.sort(order[:count])])
        kept.append(rows[np.sort(order[count + (gap or 0) * (count > 0) :])])
    if not any(map(len, held)):
        rule = "every client has a single sample and trains on it"
        raise ArnoError(f"data.{setting} = {share:g}", rule, f"use fewer clients, or leave data.{setting} out")
    return _partition(kept, partition), _partition(held, partition)


def without_any(held: Partition, setting: str) -> list[str]:
    """A line about the clients that keep no sample; empty if every client keeps some.

    setting: the setting with the share of samples that clients keep; empty if the data have test samples of clients.

    >>> without_any(Partition(torch.arange(1), torch.tensor([0, 1, 1]), ("oslo", "rome")), "data.client_test")
    ['data.client_test: 1 of 2 clients has a single sample and keeps none: rome']
    """
    none = (held.sizes == 0).nonzero()[:, 0].tolist()
    if not none:
        return []
    who = shortened([held.names[k] if held.names else str(k) for k in none])
    one = len(none) == 1
    verbs = f"{'has' if one else 'have'} a single sample and {'keeps' if one else 'keep'} none"
    if not setting:
        setting, verbs = "test samples", f"{'has' if one else 'have'} none and {'is' if one else 'are'} not scored"
    return [f"{setting}: {len(none):,} of {len(held):,} clients {verbs}: {who}"]


def _partition(rows: list[np.ndarray], like: Partition) -> Partition:
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return replace(like, indices=torch.from_numpy(np.concatenate(rows)), offsets=offsets)


def own_metrics(task: Task, kind: tuple[str, str]) -> tuple[Metric, ...]:
    """The declarations of the scores that `summary` returns."""
    prefix, label = kind
    first = task.metrics[0]
    pooled = [
        replace(one, name=f"{prefix}_{one.name}", label=f"{label} {one.label}", short=f"{prefix} {one.label}")
        for one in task.metrics
    ]
    each = replace(first, short="", log=False)
    stem, what = f"{prefix}_{first.name}", f"{label} {first.label}"
    return (
        *pooled,
        replace(each, name=f"{stem}_mean", label=f"{what}, mean over clients", clients="mean"),
        replace(each, name=f"{stem}_std", label=f"{what}, standard deviation over clients", clients="std"),
        replace(each, name=f"{stem}_worst_decile", label=f"{what}, worst tenth of clients", clients="worst"),
    )


def summary(task: Task, tallies: Tensor, tested: Tensor, kind: tuple[str, str]) -> dict[str, float]:
    """The scores on all samples together; and for the first metric three statistics over the clients.

    The statistics are the mean, the standard deviation and the mean of the worst tenth. Clients without samples, or
    whose samples do not define the first metric (such as AUROC with one class), are not in these statistics.
    tested: the number of samples on which each client was scored.
    """
    prefix, first = kind[0], task.metrics[0]
    some = list(tallies[tested > 0])
    row = {f"{prefix}_{name}": score for name, score in task.scores(task.join(some)).items()}
    scores = [task.scores(tally)[first.name] for tally in some]
    each = np.array([score for score in scores if isfinite(score)])
    if not len(each):
        return row
    worst = np.sort(first.sign * each)[: max(1, len(each) // 10)].mean() * first.sign
    spread = {"mean": each.mean(), "std": each.std(), "worst_decile": worst}
    return row | {f"{prefix}_{first.name}_{name}": float(value) for name, value in spread.items()}


def table(
    task: Task, tallies: Mapping[str, Tensor], trained: Tensor, tested: Tensor, names: Sequence[str] | None
) -> dict[str, list[Any]]:
    """One row per client: its index and name, the numbers of its samples, and each score of each model.

    tallies: the statistics of each model, by the prefix of the columns. The score of a client without test samples is
    NaN.
    """
    n = len(tested)
    columns: dict[str, list[Any]] = {"client": list(range(n))} | ({"name": list(names)} if names else {})
    columns |= {"samples": trained.tolist(), "tested": tested.tolist()}
    unknown = {metric.name: nan for metric in task.metrics}
    for prefix, rows in tallies.items():
        scores = [task.scores(row) if count else unknown for row, count in zip(rows, columns["tested"], strict=True)]
        columns |= {f"{prefix}_{metric.name}": [score[metric.name] for score in scores] for metric in task.metrics}
    return columns


def blocks(n: int, models: Callable[[Tensor], Mat]) -> Iterator[tuple[Tensor, Mat]]:
    """All clients with the models that they use, in blocks."""
    for clients in torch.arange(n).split(ROWS):
        yield clients, models(clients)
