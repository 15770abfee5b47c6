"""A mistake in a user's own factory is one line with the value, the rule and the remedy, before the first round."""

from __future__ import annotations

from pathlib import Path

import pytest

MINE = '''
import numpy as np
import torch
from torch import nn

from arno.core.metric import Metric
from arno.data import Dataset
from arno.tasks.task import Task

number = 4


def three(*arguments):
    return 3


def one(x):
    return x


class Narrow(nn.Module):
    """Three outputs, whatever the task needs."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(x.flatten(1))


class Flat(nn.Module):
    """[batch] in place of [batch, 1]."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.head = nn.Linear(10, 1)

    def forward(self, x):
        return self.head(x)[:, 0]


class Undeclared(Task):
    name, outputs = "mine", 1

    def __init__(self, targets, classes):
        pass

    def loss(self, outputs, targets, reduction="mean"):
        each = (outputs - targets).square().mean(1)
        return each if reduction == "none" else each.sum() if reduction == "sum" else each.mean()

    def tally(self, outputs, targets):
        return torch.tensor([len(targets), self.loss(outputs, targets, "sum")]).double()

    def scores(self, tally):
        return {"mse": float(tally[1] / tally[0])}


class Right(Undeclared):
    metrics = (Metric("mse", "MSE", "less", low=0),)


class MeanOnly(Right):
    def loss(self, outputs, targets, reduction="mean"):
        return (outputs - targets).square().mean()


class SingleTally(Right):
    def tally(self, outputs, targets):
        return super().tally(outputs, targets).float()


class OtherScores(Right):
    def scores(self, tally):
        return {"error": 1.0}


def arrays():
    x, y = np.ones((20, 3), np.float32), np.arange(20) % 2
    return Dataset("mine", x, y, x, y, ("a", "b"))


def unnamed():
    x, y = torch.ones(20, 3), torch.arange(20) % 2
    return Dataset("mine", x, y, x, y, ())
'''

CASES = [
    # settings; value, rule, remedy
    ("task=custom", "task=custom without task.target", "names the file or module", "add task.target="),
    ("task=custom task.target=mine.py", "target 'mine.py'", "it must name a file or module", "write file.py:name"),
    ("data=custom data.target=none.py:f", "target 'none.py:f'", "there is no file", "relative"),
    ("engine=custom engine.target=mine.py:thre", "'thre'", "known", "did you mean 'three'?"),
    ("select=custom select.target=mine.py:number", "mine.py:number", "which cannot be called", "name a function"),
    (
        "data=custom data.target=mine.py:three",
        "data=custom returned an object of type int",
        "a data source returns",
        "Dataset(name,",
    ),
    ("data=custom data.target=mine.py:one", "data.target = mine.py:one", "called with ()", "def factory(*, my_setting"),
    ("data=custom data.target=mine.py:arrays", "ndarray and ndarray", "torch tensors", "torch.from_numpy"),
    ("data=custom data.target=mine.py:unnamed", "targets of type int64", "labels need class names", "y.float()"),
    ("partition=custom partition.target=mine.py:three", "of type int", "a list of sample indices", "[[0, 2], [1, 3]"),
    ("partition=custom partition.target=mine.py:one", "mine.py:one", "(strata, clients, seed)", "factory(strata, cl"),
    ("task=custom task.target=mine.py:three", "of type int", "instance of arno.tasks.task.Task", "correct"),
    ("task=custom task.target=mine.py:one", "mine.py:one", "(targets, classes)", "factory(targets, classes, *"),
    ("model=custom model.target=mine.py:three", "of type int", "instance of torch.nn.Module", "correct"),
    ("model=custom model.target=mine.py:one", "mine.py:one", "(shape, outputs)", "factory(shape, outputs, *"),
    ("engine=custom engine.target=mine.py:three", "of type int", "arno.core.engine.Engine", "correct"),
    ("select=custom select.target=mine.py:three", "of type int", "instance of arno.Part", "correct"),
    ("problem=custom problem.target=mine.py:three", "of type int", "arno.core.problem.Problem", "correct"),
    ("method=custom method.target=mine.py:one", "mine.py:one", "called with ()", "def factory(*, my_setting"),
    ("model=custom model.target=mine.py:Narrow", "Narrow returned a tensor of shape [4, 3]", "[4, 10]", "last layer"),
]
NUMBERS = [
    ("model=custom model.target=mine.py:Flat", "Flat returned a tensor of shape [4] ", "[4, 1]", "last layer"),
    (
        "task=custom task.target=mine.py:Undeclared",
        "without metrics",
        "declares name, outputs and",
        "metrics = (Metric(",
    ),
    (
        "task=custom task.target=mine.py:MeanOnly",
        'reduction="none")',
        "it must have shape [4]",
        "correct the reduction",
    ),
    ("task=custom task.target=mine.py:SingleTally", "shape [2] (float32)", "float64 vector", ".double()"),
    ("task=custom task.target=mine.py:OtherScores", "returned error", "metrics declare mse", "the same names"),
]


def check(error: str, value: str, rule: str, remedy: str) -> None:
    assert error.index(value) < error.rindex(rule) < error.rindex(remedy), error
    left = [path.name for path in Path.cwd().iterdir() if not path.name.startswith((".", "examples", "mine.py"))]
    assert not left, "nothing was left behind"


@pytest.mark.parametrize(("settings", "value", "rule", "remedy"), CASES, ids=[case[0] for case in CASES])
def test_a_wrong_factory(settings, value, rule, remedy, refused):
    Path("mine.py").write_text(MINE)
    check(refused("run", "clients=5", "rounds=1", *settings.split()), value, rule, remedy)


@pytest.mark.parametrize(("settings", "value", "rule", "remedy"), NUMBERS, ids=[case[0] for case in NUMBERS])
def test_a_factory_that_does_not_fit_a_regression(settings, value, rule, remedy, refused):
    Path("mine.py").write_text(MINE)
    words = ("data=sklearn", "data.name=diabetes", "clients=5", "rounds=1", *settings.split())
    check(refused("run", *words), value, rule, remedy)


def test_the_right_one_among_them_runs(arno, rows):
    Path("mine.py").write_text(MINE)
    words = ("data=sklearn", "data.name=diabetes", "clients=5", "rounds=1", "out=it", "--quiet", "local.lr=1e-6")
    arno("run", *words, "task=custom", "task.target=mine.py:Right")
    assert rows("it")[0]["test_mse"] > 0
