"""Binary, multilabel and tokens: scores against scikit-learn and by hand, in pieces, over clients, in every engine."""

from __future__ import annotations

from contextlib import closing
from math import exp, isnan, log, nan

import numpy as np
import pytest
import torch
from sklearn import metrics

from arno.core.metric import Metric
from arno.core.serial import Serial
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.engines.batched import Batched
from arno.engines.processes import processes
from arno.errors import ArnoError
from arno.models.linear import MLP
from arno.problems.client_tests import GLOBAL, summary
from arno.problems.supervised import Supervised
from arno.tasks import tasks
from arno.tasks.binary import Binary
from arno.tasks.multilabel import Multilabel
from arno.tasks.ranking import auroc, average_precision
from arno.tasks.tokens import Tokens


def drawn(n: int, labels: int, ties: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, labels, generator=g, dtype=torch.float64)
    y = (torch.rand(n, labels, generator=g) < torch.sigmoid(z) * 0.4).long()
    y[0], y[1] = 0, 1
    return (z * 2).round() / 2 if ties else z, y


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_binary_scores_are_those_of_scikit_learn(seed: int, ties: bool) -> None:
    z, y = drawn(2000 if seed else 7, 1, ties, seed)
    task = Binary()
    got = task.scores(task.tally(z, y[:, 0]))
    label, score = y[:, 0].numpy(), z[:, 0].numpy()
    expected = {
        "auroc": metrics.roc_auc_score(label, score),
        "ap": metrics.average_precision_score(label, score),
        "f1": metrics.f1_score(label, score > 0),
        "accuracy": metrics.accuracy_score(label, score > 0),
        "loss": metrics.log_loss(label, torch.sigmoid(z[:, 0]).numpy()),
    }
    assert got == pytest.approx(expected, abs=1e-12)
    two = Binary(2)
    assert two.scores(two.tally(torch.cat([0 * z, z], 1), y[:, 0])) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_multilabel_scores_are_those_of_scikit_learn(ties: bool) -> None:
    z, y = drawn(500, 4, ties, 1)
    task = Multilabel(4)
    got = task.scores(task.tally(z, y))
    predicted = (z > 0).numpy()
    for prefix, average in (("", "macro"), ("micro_", "micro")):
        assert got[f"{prefix}auroc"] == pytest.approx(metrics.roc_auc_score(y, z, average=average), abs=1e-12)
        assert got[f"{prefix}ap"] == pytest.approx(metrics.average_precision_score(y, z, average=average), abs=1e-12)
        assert got[f"{prefix}f1"] == pytest.approx(metrics.f1_score(y, predicted, average=average), abs=1e-12)
    assert got["loss"] == pytest.approx(float(task.loss(z, y)), abs=1e-12)


@pytest.mark.parametrize("task", [Binary(), Multilabel(3)])
def test_scores_in_pieces_are_scores_at_once(task: Binary | Multilabel) -> None:
    z, y = drawn(101, task.labels, True, 2)
    y = y[:, 0] if isinstance(task, Binary) else y
    pieces = [task.tally(a, b) for a, b in zip(z.split(13), y.split(13), strict=True)]
    padded = list(torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True))  # as the statistics of clients
    for parts in (pieces, padded, [task.join(pieces[:3]), task.join(pieces[3:])]):
        assert task.scores(task.join(parts)) == pytest.approx(task.scores(task.tally(z, y)), abs=1e-12)


def test_one_class_leaves_the_ranking_undefined() -> None:
    ones, none = np.array([1.0, 2.0]), np.array([])
    assert isnan(auroc(ones, none))
    assert isnan(auroc(none, ones))
    assert isnan(average_precision(none, ones))
    assert average_precision(ones, none) == 1
    task = Binary()
    alone = task.scores(task.tally(torch.tensor([[-1.0], [-2.0]]), torch.tensor([0, 0])))
    assert [name for name, value in alone.items() if isnan(value)] == ["auroc", "ap", "f1"]
    assert task.metrics[0].show(alone["auroc"]) == Metric("x", "x").show(nan) == "–"
    labels = Multilabel(2)
    z, y = drawn(50, 2, False, 0)
    y[:, 1] = 0
    scores = labels.scores(labels.tally(z, y))
    assert scores["auroc"] == pytest.approx(metrics.roc_auc_score(y[:, 0], z[:, 0]), abs=1e-12)


def test_clients_without_a_score_are_left_out_of_the_mean() -> None:
    task = Binary()
    tallies = [task.tally(torch.tensor([[1.0], [-1.0]]), torch.tensor(y)) for y in ([1, 0], [0, 1], [1, 1])]
    tested = torch.tensor([2, 2, 2])
    row = summary(task, torch.nn.utils.rnn.pad_sequence(tallies, batch_first=True), tested, GLOBAL)
    assert (row["own_auroc_mean"], row["own_auroc_worst_decile"], row["own_auroc"]) == (0.5, 0, pytest.approx(0.5))
    alone = summary(task, tallies[2][None], tested[:1], GLOBAL)
    assert "own_auroc_mean" not in alone
    assert alone["own_accuracy"] == 0.5


def test_a_weight_of_the_second_class() -> None:
    z, y = torch.zeros(4, 1), torch.tensor([0, 0, 0, 1])
    weighted = tasks.get("binary")(y, ("no", "yes"), pos_weight=3.0)
    assert float(weighted.loss(z, y)) == pytest.approx(log(2) * 6 / 4)
    assert weighted.scores(weighted.tally(z, y))["loss"] == pytest.approx(log(2))
    assert weighted.loss(z, y, "none").tolist() == pytest.approx([log(2)] * 3 + [3 * log(2)])


def test_tokens_by_hand() -> None:
    task = tasks.get("tokens")(torch.zeros(2, 3).long(), ("<pad>", "a", "b"))
    assert (task.padding, task.outputs, task.positions, task.classes) == (0, 3, True, 0)
    z = torch.tensor([[[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [9.0, 0.0, 0.0]], [[0.0, 1.0, 0.0], [5.0, 5, 5], [5.0, 5, 5]]])
    y = torch.tensor([[1, 1, 0], [2, 0, 0]])
    each = [-2 + log(2 + exp(2)), log(2 + exp(1)), log(2 + exp(1))]
    scores = task.scores(task.tally(z.double(), y))
    assert scores["loss"] == pytest.approx(sum(each) / 3, abs=1e-12)
    assert scores["perplexity"] == pytest.approx(exp(sum(each) / 3), abs=1e-12)
    assert scores["accuracy"] == pytest.approx(1 / 3)
    assert task.loss(z.double(), y, "none").tolist() == pytest.approx([(each[0] + each[1]) / 2, each[2]], abs=1e-12)
    empty = task.scores(task.tally(z, torch.zeros_like(y)))
    assert isnan(empty["perplexity"])
    assert float(task.loss(z, torch.zeros_like(y))) == 0
    assert tasks.get("tokens")(y[:, 0], ("a", "b", "c"), padding=2).classes == 3
    assert Tokens(3).scores(torch.tensor([1.0, 0.0, 1e4]).double())["perplexity"] == float("inf")


@pytest.mark.parametrize(
    ("name", "targets", "classes", "settings", "said"),
    [
        ("binary", torch.tensor([0, 1, 2]), ("a", "b", "c"), {}, "it needs two classes, and the data have 3 classes"),
        ("binary", torch.tensor([0.0, 1.0]), (), {}, "no class label for each sample"),
        ("binary", torch.tensor([0, 1]), ("a", "b"), {"pos_weight": -1.0}, "it must be a positive number"),
        ("multilabel", torch.tensor([0, 1]), ("a", "b"), {}, "a 0 or a 1 for each label"),
        ("multilabel", torch.tensor([[0, 2]]), ("a", "b"), {}, "a 0 or a 1 for each label"),
        ("tokens", torch.tensor([[0.5]]), (), {}, "not indices of tokens"),
        ("tokens", torch.tensor([[1]]), ("a", "b"), {"padding": 2}, "there are 2 tokens"),
    ],
)
def test_targets_that_do_not_suit_are_refused(name, targets, classes, settings, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArnoError, match=said):
        tasks.get(name)(targets, classes, **settings)


@pytest.mark.parametrize("task", [Binary(), Multilabel(3)])
def test_engines_agree(task: Binary | Multilabel) -> None:
    z, y = drawn(60, task.labels, False, 3)
    x = torch.cat([z, torch.randn(60, 2, generator=torch.Generator().manual_seed(1))], 1).float()
    y = y[:, 0] if isinstance(task, Binary) else y
    problem = Supervised(
        x[:40],
        y[:40],
        Partition(torch.arange(40), torch.tensor([0, 15, 40])),
        lambda: MLP(x.shape[1], (5,), task.outputs, "relu"),
        task=task,
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"test": (x, y)},
    )
    problem.eval_batch = 16  # several pieces
    w = problem.init(0)
    expected = Serial(problem).report(w)
    with closing(processes(problem, workers=2)) as engine:
        assert engine.report(w) == expected
    assert Batched(problem).report(w) == expected
    assert (
        task.join([problem.tally(w, "test", 0, 30), problem.tally(w, "test", 30, 60)]).shape
        == problem.total(w, "test").shape
    )
