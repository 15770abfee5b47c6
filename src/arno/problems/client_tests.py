"""Scores on the samples that each client keeps for its own test, of the global model and of personal models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.metric import Metric
from ..core.seeds import numpy_stream
from ..core.work import Mat
from ..data.partition import Partition
from ..errors import ArnoError
from ..tasks.task import Task

#: Prefix of the columns, and the label: the global model, and the model that the client would use.
GLOBAL, PERSONAL = ("own", "own test"), ("personal", "personal")
#: Clients whose models are scored together.
ROWS = 64


def keep_some(partition: Partition, share: float, seed: int) -> tuple[Partition, Partition]:
    """Each client's samples divided into those that train and those of its own test: at least one of each.

    >>> train, test = keep_some(Partition(torch.arange(10), torch.tensor([0, 8, 10])), 0.25, seed=0)
    >>> train.sizes.tolist(), test.sizes.tolist()
    ([6, 1], [2, 1])
    """
    if not 0 < share < 1:
        raise ArnoError(f"data.client_test = {share:g}", "it must be above 0 and below 1", "try data.client_test=0.2")
    kept, held = [], []
    for k in range(len(partition)):
        rows = partition[k].numpy()
        if len(rows) < 2:
            name = partition.names[k] if partition.names else k
            rule = "it has one sample, and data.client_test takes one from every client"
            raise ArnoError(f"client {name}", rule, "use fewer clients, or leave data.client_test out")
        order = numpy_stream(seed, "client_test", k).permutation(len(rows))
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(np.sort(rows[order[:count]]))
        kept.append(rows[np.sort(order[count:])])
    return _partition(kept, partition), _partition(held, partition)


def _partition(rows: list[np.ndarray], like: Partition) -> Partition:
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return replace(like, indices=torch.from_numpy(np.concatenate(rows)), offsets=offsets)


def own_metrics(task: Task, kind: tuple[str, str]) -> tuple[Metric, ...]:
    """The declarations of what `summary` returns."""
    prefix, label = kind
    first = task.metrics[0]
    pooled = [
        replace(one, name=f"{prefix}_{one.name}", label=f"{label} {one.label}", short=f"{prefix} {one.label}")
        for one in task.metrics
    ]
    spread = {"mean": f"{label} {first.label}, mean over clients", "std": "its standard deviation"}
    spread["worst_decile"] = f"{label} {first.label}, worst tenth of clients"
    return (
        *pooled,
        *(
            replace(first, name=f"{prefix}_{first.name}_{name}", label=text, short="", log=False)
            for name, text in spread.items()
        ),
    )


def summary(task: Task, tallies: Tensor, kind: tuple[str, str]) -> dict[str, float]:
    """The scores of all samples together; of the first metric the mean, the spread and the worst tenth of clients."""
    prefix, first = kind[0], task.metrics[0]
    row = {f"{prefix}_{name}": score for name, score in task.scores(tallies.sum(0)).items()}
    each = np.array([task.scores(tally)[first.name] for tally in tallies])
    worst = np.sort(first.sign * each)[: max(1, len(each) // 10)].mean() * first.sign
    spread = {"mean": each.mean(), "std": each.std(), "worst_decile": worst}
    return row | {f"{prefix}_{first.name}_{name}": float(value) for name, value in spread.items()}


def blocks(n: int, models: Callable[[Tensor], Mat]) -> Iterator[tuple[Tensor, Mat]]:
    """All clients with the models that they use, some at a time."""
    for clients in torch.arange(n).split(ROWS):
        yield clients, models(clients)
