"""Every method on every task: it trains, or it refuses with one line that says why."""

from __future__ import annotations

import pytest
import torch
from small import federate, make
from torch import Tensor, nn

from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.errors import ArnoError
from arno.methods import methods
from arno.models import models
from arno.models.linear import MLP
from arno.models.network import Shape
from arno.problems.supervised import Supervised
from arno.tasks.binary import Binary
from arno.tasks.classification import Classification
from arno.tasks.multilabel import Multilabel
from arno.tasks.regression import Regression
from arno.tasks.task import Task
from arno.tasks.tokens import Tokens

WORDS, LENGTH, N = 7, 5, 4
TASKS = {
    "classification": Classification(3),
    "regression": Regression(torch.zeros(2), torch.ones(2)),
    "binary": Binary(),
    "binary, two logits": Binary(2),
    "multilabel": Multilabel(3),
    "tokens": Tokens(WORDS, padding=0),
    "tokens, transformer": Tokens(WORDS, padding=0),
    "next token": Tokens(WORDS, padding=0, positions=False),
}
#: Tasks that have no classes, and tasks without an output for each class.
NO_CLASSES = {"regression", "multilabel", "tokens", "tokens, transformer"}
NO_OUTPUTS = {*NO_CLASSES, "binary"}
#: The tasks that a method refuses; every other method trains on every task.
REFUSED = {
    "fedlc": NO_OUTPUTS,
    "fedntd": NO_OUTPUTS,
    "qrmix": NO_OUTPUTS,
    "fedrcl": NO_CLASSES,
    "cluster_fedvarp": NO_CLASSES,
    "fedscavar": NO_CLASSES,
}
SETTINGS = {
    "compose": {"parts": ["scaffold", "server_momentum"]},
    "cluster_fedvarp": {"clusters": 2, "by": "labels"},
    "fedscavar": {"clusters": 2, "beta": 1.0, "by": "labels"},
    "qrmix": {"rank_k": 2, "oversampling": 2},
}


def targets(task: Task, n: int, g: torch.Generator) -> Tensor:
    if isinstance(task, Regression):
        return torch.randn(n, 2, generator=g, dtype=torch.float64)
    if isinstance(task, Multilabel):
        return torch.randint(0, 2, (n, 3), generator=g)
    if isinstance(task, Tokens):
        return torch.randint(1, WORDS, (n, LENGTH) if task.positions else (n,), generator=g)
    return torch.randint(0, task.classes, (n,), generator=g)


def problem(name: str) -> Supervised:
    task, g = TASKS[name], torch.Generator().manual_seed(1)
    sizes = torch.tensor([0, *(6 + k for k in range(N))])
    n = int(sizes.sum())
    y = targets(task, n, g)
    if isinstance(task, Tokens):
        x = torch.randint(1, WORDS, (n, LENGTH), generator=g)
        shape = Shape((LENGTH,), vocabulary=WORDS, padding=0, positions=task.positions)
        if name == "tokens, transformer":
            build = lambda: models.get("transformer")(shape, WORDS, width=8, layers=1, heads=2)  # noqa: E731
        else:
            build = lambda: models.get("lstm")(shape, WORDS, embedding=4, hidden=6)  # noqa: E731
    else:
        x = torch.randn(n, 5, generator=g, dtype=torch.float64)

        def build() -> nn.Module:
            return MLP(5, (6,), task.outputs, "tanh")

    split = {"val": (x[:9], y[:9]), "test": (x[9:20], y[9:20])}
    partition = Partition(torch.arange(n), sizes.cumsum(0))
    plain = Transform((0.0,), (1.0,), 1.0)
    return Supervised(x, y, partition, build, task=task, transform=plain, splits=split, dtype=torch.float64)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", methods.names())
def test_it_trains_or_says_why_not(method: str, task: str) -> None:
    whole, parts = problem(task), make(method, **SETTINGS.get(method, {}))
    if task in REFUSED.get(method, ()):
        with pytest.raises(ArnoError) as refused:
            federate(whole, parts, 1, epochs=1, rounds=1)
        assert "\n" not in str(refused.value)
        return
    before = whole.init(0)
    fed = federate(whole, parts, 2, epochs=1, lr=0.01, rounds=2)
    assert torch.isfinite(fed.w).all()
    assert method == "local" or not torch.equal(fed.w, before)
    scores = fed.engine.report(fed.w)
    assert {metric.on("test").name for metric in TASKS[task].metrics} <= scores.keys()
