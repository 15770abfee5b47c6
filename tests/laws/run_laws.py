"""The laws of a run: what it counts, and which model it keeps."""

from __future__ import annotations

from typing import Any

import torch
from small import HALF, federate, network
from torch import nn

from arno.client_selection.schedule import Fixed
from arno.core.work import SGD, Job
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.problems.supervised import Supervised
from arno.runs.loop import Loop, Totals
from arno.tasks.classification import Classification
from arno.tasks.regression import Regression
from arno.tasks.task import Task


def law_steps_are_counted_as_they_are_taken() -> None:
    """The number of steps is the number of batches that a client sees: the last batch of an epoch may be smaller."""
    problem, epochs = network(), [1, 2, 3, 1, 2, 3, 1, 2]
    fed = federate(problem, [Fixed(HALF)], 0, epochs=epochs, batch_size=[3, 4, 5, 100, 1, 2, 3, 4])
    for t in range(2):
        record = fed.round()
        for k, steps in zip(record.clients["client"], record.clients["steps"], strict=True):
            job = Job(t, k, 0, fed.w, epochs[k], [3, 4, 5, 100, 1, 2, 3, 4][k], 0.1, 0.0, SGD())
            assert steps == len(list(problem.learner().batches(job)))


def overshooting(task: Task) -> Supervised:
    """A linear model with two clients that pull in different directions."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=g, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.5 * torch.randn(40, generator=g)
    targets = (y > 0).long() if task.classes else y
    return Supervised(
        x[:20],
        targets[:20],
        Partition(torch.arange(20), torch.tensor([0, 10, 20])),
        lambda: nn.Linear(3, task.outputs),
        task=task,
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"val": (x[20:], targets[20:])},
        dtype=torch.float64,
    )


class Folder:
    """Keeps the records of a run in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any], clients: dict[str, list[Any]]) -> None:
        self.rows.append(row)


def law_the_best_model_is_the_best_by_the_declared_direction() -> None:
    """The lowest RMSE, the highest F1: neither the first nor the last model."""
    for task, choose in ((Regression(torch.zeros(1), torch.ones(1)), min), (Classification(2), max)):
        problem = overshooting(task)
        fed = federate(problem, [], 0, epochs=3, lr=0.02 if task.classes else 0.1, lr_decay=1.9, rounds=9)
        config = {"rounds": 9, "eval": {"every": 1, "clients": False}}
        loop = Loop(config, fed, Totals(), folder := Folder(), progress=None)  # type: ignore[arg-type]
        models = []
        for _ in range(9):
            loop.round()
            models.append(fed.w.clone())
        scores = [row[problem.task.metrics[0].on("val").name] for row in folder.rows]
        best = scores.index(choose(scores))
        assert 0 < best < 8, scores
        assert loop.totals.best_round == best + 1
        assert torch.equal(loop.totals.best, models[best])
