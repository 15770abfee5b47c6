"""Tasks: which one is chosen, what is refused, its settings, and what a problem declares of it."""

from __future__ import annotations

import json
from math import inf

import pytest
import torch
from torch import Tensor, nn

from arno.core.federation import Federation, Local
from arno.core.metric import TRAIN_LOSS, Metric
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.errors import ArnoError
from arno.problems.supervised import Supervised
from arno.tasks import tasks
from arno.tasks.classification import Classification
from arno.tasks.regression import Regression, regression
from arno.tasks.task import Task


def test_the_task_follows_from_the_targets() -> None:
    labels, numbers = torch.tensor([0, 2, 1]), torch.tensor([0.5, 1.5, 4.0])
    assert isinstance(tasks.get("auto")(labels, ("a", "b", "c")), Classification)
    assert tasks.get("auto")(labels, ("a", "b", "c")).outputs == 3
    assert isinstance(tasks.get("auto")(numbers, ()), Regression)
    for name, targets, classes, remedy in (
        ("auto", labels, (), "set task=classification"),
        ("auto", torch.eye(3).long(), ("a", "b", "c"), "task=multilabel"),
        ("classification", numbers, (), "use task=regression"),
        ("classification", labels, (), "use task=regression"),
        ("regression", labels, ("a", "b", "c"), "use task=classification"),
    ):
        with pytest.raises(ArnoError, match=remedy):
            tasks.get(name)(targets, classes)


def test_a_regression_scales_its_targets_by_the_training_data() -> None:
    y = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    task = tasks.get("regression")(y, ())
    assert (task.mean.tolist(), task.std.tolist(), task.outputs) == ([2, 5], [1, 1], 2)  # a constant target stays
    plain = tasks.get("regression")(y, (), scale=False)
    assert (plain.mean.tolist(), plain.std.tolist()) == ([0, 0], [1, 1])
    exact = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    assert task.scores(task.tally(exact, y)) == {"rmse": 0, "mae": 0, "r2": 1, "loss": 0}


def test_small_targets_are_scaled_too() -> None:
    task = tasks.get("regression")(torch.tensor([[1e-15, 1e8], [3e-15, 1e8]]), ())
    assert task.std.tolist() == pytest.approx([1e-15, 1.0])


def test_scores_do_not_depend_on_the_scale_of_training() -> None:
    g = torch.Generator().manual_seed(0)
    y, z = 100 + 20 * torch.randn(30, 1, generator=g), torch.randn(30, 1, generator=g)
    scaled = tasks.get("regression")(y, ())
    plain = tasks.get("regression")(y, (), scale=False)
    a, b = scaled.scores(scaled.tally(z, y)), plain.scores(plain.tally(z * scaled.std + scaled.mean, y))
    for name in ("rmse", "mae", "r2"):
        assert a[name] == pytest.approx(b[name], rel=1e-6)
    assert a["loss"] == pytest.approx(b["loss"] / float(scaled.std) ** 2, rel=1e-5)


def test_single_precision_is_kept_but_for_statistics() -> None:
    for task, y in (
        (Classification(2), torch.tensor([0, 1])),
        (Regression(torch.zeros(2), torch.ones(2)), torch.eye(2)),
    ):
        loss, delta = task.gradient(torch.ones(2, 2), y)
        assert loss.dtype == delta.dtype == torch.float32
        losses, rows = task.row_gradients(torch.ones(1, 2, 2), y[None], torch.ones(1, 2))
        assert losses.dtype == rows.dtype == torch.float32
        assert task.tally(torch.ones(2, 2), y).dtype == torch.float64


def problem(task: Task, y: Tensor, *held: str) -> Supervised:
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(1))
    return Supervised(
        x,
        y,
        Partition(torch.arange(len(y)), torch.tensor([0, len(y) // 2, len(y)])),
        lambda: nn.Sequential(nn.Linear(3, task.outputs)),
        task=task,
        transform=Transform((0.0,), (1.0,), 1.0),
        splits=dict.fromkeys(held, (x, y)),
    )


def test_a_problem_declares_the_metrics_that_it_records() -> None:
    y = torch.arange(12) % 3
    for task, first in ((Classification(3), "f1"), (Regression(torch.zeros(1), torch.ones(1)), "rmse")):
        data = problem(task, y if task.classes else y.float(), "val", "test")
        assert data.splits == ("test", "val")
        fed = Federation(data, local=Local(lr=0.01))
        fed.round()
        row = fed.engine.report(fed.w, clients=True)
        names = [metric.name for metric in data.metrics]
        assert names[0] == f"test_{first}"
        assert {*names} - {*row} <= {"train_loss", "client_accuracy"}
        assert data.selects == task.metrics[0].on("val")
        assert data.headline[-2:] == (data.selects, TRAIN_LOSS)
        assert all(metric.low <= row[metric.name] <= metric.high for metric in data.metrics if metric.name in row)
    bare = problem(Classification(3), y, "test")
    assert bare.selects is None
    assert bare.splits == ("test",)
    with pytest.raises(ArnoError, match=r"no val data.*data\.val"):
        bare.total(bare.init(0), "balanced")


def test_numbers_have_no_classes() -> None:
    data = problem(Regression(torch.zeros(1), torch.ones(1)), torch.arange(12.0), "val", "test")
    assert data.label_counts() is None
    assert data.spread(data.total(data.init(0), "test")) == {}
    assert data.y.shape == (12, 1)
    assert "heterogeneity" not in data.describe()
    assert torch.equal(data.split("balanced")[0], data.split("val")[0])  # all samples count alike


def test_pieces_of_a_split_add_up_to_the_split() -> None:
    y = torch.randn(700, 1, generator=torch.Generator().manual_seed(3))
    data = problem(Regression(torch.zeros(1), torch.ones(1)), y, "test")
    w = data.init(0)
    assert len(data.pieces("test")) > 1
    pieces = [data.tally(w, "test", *piece) for piece in data.pieces("test")]
    assert torch.allclose(torch.stack(pieces).sum(0), data.total(w, "test"), rtol=1e-12)
    outputs = data.model(w)(data.x).detach()
    assert data.scores(data.total(w, "test"))["rmse"] == pytest.approx(
        float((outputs - y).square().mean().sqrt()), rel=1e-5
    )


def test_a_declaration_survives_a_file() -> None:
    for metric in (*Classification.metrics, *Regression.metrics, *Classification.client_metrics, TRAIN_LOSS):
        text = json.dumps(metric.on("val").to_json(), allow_nan=False)
        assert Metric.from_json(json.loads(text)) == metric.on("val")
    assert Metric("x", "x").to_json()["low"] is None
    assert Metric.from_json({"name": "x", "label": "x", "unknown": 1}).high == inf


@pytest.mark.parametrize("targets", [[[5.0, 1.0]], [[5.0, 1.0], [5.0, 2.0]], [[1e6, 0.1]] * 3])
def test_r2_of_equal_targets_is_not_defined(targets: list[list[float]]) -> None:
    y = torch.tensor(targets)
    task = regression(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), ())
    scores = task.scores(task.tally(torch.zeros(len(y), 2), y))
    assert (scores["r2"] == scores["r2"]) is (len(y) == 2)
    assert scores["rmse"] > 0
