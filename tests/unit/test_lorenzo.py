"""Lorenzo's corners: early stopping, zero scores, ties, filtered clients, other parts, records, resuming."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import arno
from arno.core.federation import Federation, Local
from arno.core.method_part import Part
from arno.core.work import SGD
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.engines.serial import Serial
from arno.errors import ArnoError
from arno.methods.fedavgm import ServerMomentum
from arno.methods.fedprox import Proximal
from arno.methods.fedvarp import Varp
from arno.methods.lorenzo import Lorenzo, Mean, lorenzo
from arno.methods.panels import headlines, messages
from arno.methods.scaffold import Scaffold
from arno.methods.sub_models import Window
from arno.models.linear import MLP
from arno.problems.quadratic import Quadratic
from arno.problems.supervised import Supervised
from arno.runs import run as running
from arno.runs.progress import Lines
from arno.tasks.classification import Classification, weighted_f1
from arno.tasks.regression import Regression

torch.set_num_threads(1)


def small(*overrides: str, **settings: Any) -> running.RunResult:
    base = ("data.limit=300", "partition.alpha=0.5", "model.hidden=[8]", "checkpoint.every=1", "checkpoint.keep=9")
    return arno.run(
        *base,
        *overrides,
        clients=4,
        local={"epochs": 1, "lr": 0.1, "batch_size": 16},
        **{"method": "lorenzo", **settings},
    )


class Scored(Supervised):
    """Gives the scores that a test asks for, whatever the model."""

    script: Sequence[float] = ()
    asked = 0

    def total(self, w: Tensor, split: str) -> Tensor:
        if split != "balanced":
            return super().total(w, split)
        self.asked += 1
        score = self.script[min(self.asked, len(self.script)) - 1] if self.script else float(w.sum())
        return torch.tensor([score], dtype=torch.float64)

    def scores(self, tally: Tensor) -> dict[str, float]:
        if len(tally) > 1:
            return super().scores(tally)
        score = float(tally)
        return {"f1": score, "accuracy": score, "loss": 1 - score}


def problem(
    sizes: Sequence[int] = (8, 8, 8), script: Sequence[float] = (), build: Any = None, val: bool = True
) -> Scored:
    g = torch.Generator().manual_seed(2)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4, generator=g, dtype=torch.float64), torch.arange(n) % 3

    x, y = draw(sum(sizes))
    data = Scored(
        x,
        y,
        Partition(torch.arange(len(x)), torch.tensor([0, *sizes]).cumsum(0)),
        build or (lambda: MLP(4, (5,), 3, "tanh")),
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"val": draw(12), "test": draw(12)} if val else {"test": draw(12)},
        task=Classification(3),
        dtype=torch.float64,
    )
    data.script = script
    return data


def federation(data: Any, *parts: Part, lr: Any = 0.1, **settings: Any) -> Federation:
    local = Local(epochs=2, batch_size=4, lr=lr, sgd=SGD(weight_decay=1e-4))
    return Federation(data, parts, local=local, **settings)


def test_weighted_f1_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix, f1_score

    rng = np.random.default_rng(0)
    for classes in (2, 5, 10):
        for _ in range(20):
            true = rng.integers(0, classes, 30)
            predicted = np.where(rng.random(30) < 0.4, true, rng.integers(0, classes, 30))
            true[true == 1], predicted[predicted == 0] = 0, 1  # a class never true, one never predicted
            confusion = torch.from_numpy(confusion_matrix(true, predicted, labels=range(classes)))
            expected = f1_score(true, predicted, average="weighted", zero_division=0)
            assert weighted_f1(confusion) == pytest.approx(expected, abs=1e-14)


def test_the_balanced_split_is_made_once_from_the_validation_data() -> None:
    data = problem()
    x, y = data.split("balanced")
    assert data.split("balanced")[0] is x
    assert torch.bincount(y).tolist() == [4, 4, 4]
    with pytest.raises(ArnoError, match=r"data\.val"):
        problem(val=False).split("balanced")


def test_the_running_sum_is_the_written_out_sum() -> None:
    g = torch.Generator().manual_seed(4)
    models, s = torch.randn(7, 50, generator=g), torch.rand(7, generator=g, dtype=torch.float64)
    mean = Mean(list(models), s.tolist())
    for i in [3, 0, 5, 5, 6, 1]:
        new, weight = torch.randn(50, generator=g), float(torch.rand(1, generator=g))
        mean.exchange(i, models[i], new, weight)
        models[i], s[i] = new, weight
        written = (s @ models.double()) / s.sum()
        torch.testing.assert_close(mean.value(), written.float(), rtol=0, atol=1e-7)
        torch.testing.assert_close(mean.shares(), s / s.sum())


def test_all_scores_zero_give_the_plain_mean() -> None:
    part = Lorenzo(patience=None)
    fed = federation(problem(script=[0.0]), part)
    for _ in range(3):
        fed.round()
        assert torch.isfinite(fed.w).all()
        torch.testing.assert_close(fed.w, part.H.mean(0))
    assert fed.round().clients["start_weights"][0] == [0.25] * 4


def test_one_score_above_zero_takes_all() -> None:
    part = Lorenzo(patience=None)
    fed = federation(problem(script=[0.0, 0.7, 0.0, 0.5]), part)
    fed.round()
    torch.testing.assert_close(fed.w, part.H[1])


def test_ties_go_by_id() -> None:
    fed = federation(problem(script=[0.3, 0.5, 0.3, 0.4, 0.5, 0.5, 0.5, 0.4]), Lorenzo())
    fed.round()
    assert fed.round().clients["client"] == [1, 0, 2]
    assert fed.round().clients["client"] == [0, 1, 2]


def test_scores_that_differ_by_rounding_are_ties() -> None:
    fed = federation(problem(script=[0.3, 0.3 + 1e-16, 0.1 + 0.2, 0.4]), Lorenzo())
    fed.round()
    assert fed.round().clients["client"] == [0, 1, 2]


@pytest.mark.parametrize(("order", "expected"), [("score", [1, 2, 0]), ("reverse", [0, 2, 1]), ("fixed", [0, 1, 2])])
def test_orders(order: Any, expected: list[int]) -> None:
    fed = federation(problem(script=[0.1, 0.6, 0.3, 0.4]), Lorenzo(order=order))
    fed.round()
    assert fed.round().clients["client"] == expected


def test_random_order_changes_with_the_round_and_the_seed() -> None:
    def orders(seed: int) -> list[list[int]]:
        fed = federation(problem([8] * 6, [0.5]), Lorenzo(order="random"), seed=seed)
        fed.round()
        return [fed.round().clients["client"] for _ in range(3)]

    assert orders(0) == orders(0) != orders(1)
    assert len({tuple(order) for order in orders(0)}) > 1


def test_early_stopping() -> None:
    globals_ = [0.5, 0.6, 0.6009, 0.55, 0.7, 0.7, 0.7]  # after the bootstrap, round 1, …
    script = [score for f in globals_ for score in (0.4, 0.4, 0.4, f)]
    part = Lorenzo(patience=2)
    fed, said = federation(problem(script=script), part, rounds=10), []
    while not fed.stopped():
        before = headlines(part)
        fed.round()
        said.append([*before, *messages(part)])
    assert (fed.t, part.best_round, part.best_score, part.waited) == (3, 1, 0.6, 2)
    assert said[0] == ["--- Bootstrap Round 0 ---", "Global Model 0.5: F1=0.5000 (4 evaluations)"]
    assert said[1][1:] == ["End of Iteration 1: Global F1=0.6000 (4 evaluations)", "New best F1. Patience reset."]
    assert said[2][2] == "No improvement. Patience: 1 / 2"
    assert said[3][2:5] == [
        "No improvement. Patience: 2 / 2",
        "Early stopping triggered.",
        "--- Final Test Results ---",
    ]
    assert said[3][5] == "Evaluating best model (F1: 0.6000, round 1) on Test Set..."


def test_without_patience_it_never_stops() -> None:
    part = Lorenzo(patience=None)
    fed = federation(problem(script=[0.5]), part)
    for _ in range(15):
        fed.round()
        assert not part.stop()


def test_every_model_is_scored_once() -> None:
    data = problem([8] * 5)
    fed = federation(data, Lorenzo())
    for rounds in range(1, 4):
        assert fed.round().numbers["evaluations"] == 6
        assert data.asked == 6 * rounds


def test_small_clients_are_left_out_and_one_is_enough() -> None:
    part = Lorenzo()
    fed = federation(problem([3, 8, 7]), part, Scaffold())
    for _ in range(3):
        assert fed.round().clients["client"] == [1]
    assert part.H.shape[0] == 1
    torch.testing.assert_close(fed.w, part.H[0])
    assert list(part.final(fed.w)) == ["Best Model", "Global Model", "Client 1"]


def test_no_client_left_is_an_error() -> None:
    with pytest.raises(ArnoError, match=r"no client has 2 batches \(the largest has 7 samples\).*batch_size"):
        federation(problem([3, 6, 7]), Lorenzo())
    federation(problem([3, 6, 7]), Lorenzo(min_batches=0)).round()


@pytest.mark.parametrize(
    ("settings", "federated", "message"),
    [
        ({}, {"server_lr": 0.5}, "server_lr=1"),
        ({"patience": 0}, {}, "patience = 0"),
        ({"bootstrap_epochs": 0}, {}, "bootstrap_epochs = 0"),
        ({"delta": -0.1}, {}, "delta = -0.1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], federated: dict[str, Any], message: str) -> None:
    with pytest.raises(ArnoError, match=message):
        federation(problem(), Lorenzo(**settings), **federated)


def test_it_needs_validation_data() -> None:
    with pytest.raises(ArnoError, match=r"data\.val"):
        federation(problem(val=False), Lorenzo())
    with pytest.raises(ArnoError, match=r"data\.val"):
        federation(Quadratic(torch.ones(3), torch.ones(3, 2)), Lorenzo())


def test_it_needs_everybody() -> None:
    from arno.client_selection.uniform import Uniform

    with pytest.raises(ArnoError, match=r"2 of 4 clients were selected.*participation=1"):
        federation(problem([8] * 4), Uniform(0.5), Lorenzo()).round()


@pytest.mark.parametrize("other", [Varp(), ServerMomentum()])
def test_another_mean_or_server_is_refused(other: Part) -> None:
    with pytest.raises(ArnoError, match="Lorenzo"):
        federation(problem(), Lorenzo(), other)


@pytest.mark.parametrize("more", [[Proximal(0.5)], [Scaffold()], [Proximal(0.1), Scaffold()], [Window(0.5)]])
@pytest.mark.parametrize("first", [True, False])
def test_other_parts_join_the_pass(more: list[Part], first: bool) -> None:
    plain, joined = (federation(problem(), *parts) for parts in ([Lorenzo()], _with(more, first)))
    for _ in range(3):
        plain.round()
        joined.round()
    assert torch.isfinite(joined.w).all()
    assert not torch.equal(plain.w, joined.w)


def _with(more: list[Part], first: bool) -> list[Part]:
    return [Lorenzo(), *more] if first else [*more, Lorenzo()]


def test_a_heavy_proximal_term_holds_clients_at_their_start() -> None:
    moved = []
    for mu in (0.0, 5.0):
        fed = federation(problem(), Lorenzo(), Proximal(mu))
        fed.round()
        moved.append(sum(fed.round().clients["delta_norm"]))
    assert moved[1] < moved[0]


@pytest.mark.parametrize("metric", ["accuracy", "loss", "neg_loss"])
def test_metrics(metric: str) -> None:
    part = Lorenzo(metric=metric)
    fed = federation(problem(script=[0.2, 0.6, 0.4, 0.5]), part)
    fed.round()
    scores = torch.tensor([0.2, 0.6, 0.4], dtype=torch.float64)
    weights = scores if metric == "accuracy" else 1 / (2 - scores)  # the loss is 1 − score, its weight 1/(1 + loss)
    torch.testing.assert_close(fed.w, weights @ part.H / weights.sum())
    assert fed.round().clients["client"] == [1, 2, 0]


@pytest.mark.parametrize("metric", [None, "mae", "r2"])
def test_a_regression_is_scored_by_the_declared_metric(metric: str | None) -> None:
    """The client with the smallest error, or the largest R², trains first and weighs most."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(36, 4, generator=g, dtype=torch.float64)
    y = x.sum(1) + torch.arange(36) // 12  # the clients disagree
    data = Supervised(
        x[:24],
        y[:24],
        Partition(torch.arange(24), torch.tensor([0, 8, 16, 24])),
        lambda: MLP(4, (5,), 1, "tanh"),
        task=Regression(torch.zeros(1), torch.ones(1)),
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"val": (x[24:], y[24:])},
        dtype=torch.float64,
    )
    part = Lorenzo(metric=metric)
    fed = federation(data, part)
    fed.round()
    errors = [data.scores(data.total(w, "balanced"))[metric or "rmse"] for w in part.H]
    distance = 1 - torch.tensor(errors) if metric == "r2" else torch.tensor(errors)
    weights = 1 / (1 + distance.double())
    torch.testing.assert_close(fed.w, weights @ part.H / weights.sum(), rtol=1e-6, atol=1e-8)
    record = fed.round()
    assert record.clients["client"] == distance.argsort().tolist()
    assert len(set(distance.tolist())) == 3
    best = data.scores(data.total(part.best, "balanced"))[metric or "rmse"]  # recorded as the metric's own value
    assert record.numbers[f"best_{metric or 'rmse'}"] == pytest.approx(best, abs=1e-12)
    with pytest.raises(ArnoError, match=r"unknown method.metric 'f1': the known names are loss, mae, r2, rmse"):
        federation(data, Lorenzo(metric="f1"))


def test_without_the_global_model() -> None:
    fed = federation(problem(script=[0.2, 0.6, 0.4, 0.5]), Lorenzo(with_global=False))
    fed.round()
    weights = fed.round().clients["start_weights"]
    assert weights[0] == pytest.approx([0.2 / 1.2, 0.6 / 1.2, 0.4 / 1.2, 0.0])


def test_a_diverged_client_is_dropped_or_stops_the_run() -> None:
    rates = [0.1, 1e200, 0.1]
    with pytest.raises(ArnoError, match="client 1 diverged in round 0"):
        federation(problem(script=[0.5]), Lorenzo(), lr=rates).round()
    part = Lorenzo()
    fed = federation(problem(script=[0.5]), part, lr=rates, on_divergence="drop")
    for _ in range(3):
        record = fed.round()
        assert record.dropped == 1
        assert sorted(record.clients["client"]) == [0, 2]
        assert torch.isfinite(fed.w).all()


def test_buffers_of_the_global_model_are_the_mean_by_samples() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    part = Lorenzo()
    fed = federation(problem([8, 16, 8], [0.5, 0.2, 0.9, 0.4], build), part)
    for _ in range(3):
        fed.round()
        d = fed.layout.d
        assert fed.layout.size > d
        share = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
        torch.testing.assert_close(fed.w[d:], share @ part.H[:, d:])


def test_the_bootstrap_is_one_stream_of_blocks_and_the_pass_is_one_by_one() -> None:
    class Watching(Serial):
        sizes: list[list[int]] = []  # noqa: RUF012

        def train(self, works: Any) -> Any:
            self.sizes.append([])
            for work, out in super().train(works):
                self.sizes[-1].append(len(work))
                yield work, out

    data = problem([8] * 3)
    fed, seen = Federation(data, lorenzo(), engine=Watching(data), local=Local(batch_size=4)), []
    fed.watch = seen.append
    fed.round()
    fed.round()
    assert Watching.sizes == [[3], [1], [1], [1]]
    assert seen[0] == "bootstrap: 3 clients train in parallel"
    assert all("trains: rank" in line and "score" in line for line in seen[1:])


def test_a_run_records_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = small(rounds=2, out=str(tmp_path / "run"), progress=Lines())
    history, clients = result.history, result.clients
    assert history.index.tolist() == [0, 1, 2]
    assert history["evaluations"].tolist() == [5, 5, 5]
    assert clients[clients["round"] == 2]["rank"].tolist() == [1, 2, 3, 4]
    after, before = (
        clients[clients["round"] == t].set_index("client").sort_index()[name]
        for t, name in ((1, "score"), (2, "score_before"))
    )
    assert after.tolist() == before.tolist()
    for weights in clients["start_weights"]:
        assert sum(weights) == pytest.approx(1)
    assert (clients["delta_norm"] > 0).all()
    said = capsys.readouterr().out
    lines = [
        "--- Bootstrap Round 0 ---",
        "Global Model 0.5",
        "--- Global Iteration 1 ---",
        "End of Iteration 1: Global",
    ]
    lines += [
        "--- Global Iteration 2 ---",
        "End of Iteration 2: Global F1=",
        "--- Final Test Results ---",
        "Client 3: ",
    ]
    places = [said.index(line) for line in lines]
    assert places == sorted(places), "in the order of the pseudo-code"
    assert said.index("round 1/2") > said.index("--- Global Iteration 1 ---"), "a headline stands before its round"
    manifest = json.loads((result.path / "manifest.json").read_text())
    assert list(manifest["report"]) == ["Best Model", "Global Model", *(f"Client {k}" for k in range(4))]
    best = history["balanced_f1"].max()
    assert history["balanced_f1"][manifest["best_round"]] == pytest.approx(best, abs=0.001)
    test = result.problem.scores(result.problem.total(result.best, "test"))["f1"]
    assert test == pytest.approx(manifest["report"]["Best Model"])
    for name in ("score.png", "ranks.png"):
        assert (result.path / name).stat().st_size > 10_000


@pytest.mark.parametrize("method", [{"kind": "lorenzo"}, {"kind": "compose", "parts": ["lorenzo", "scaffold"]}])
def test_resuming_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict[str, Any]) -> None:
    for name in ("curves.draw_curves", "draw.write_panels"):
        monkeypatch.setattr(f"arno.pictures.{name}", lambda *drawn: None)
    whole = small(rounds=3, out=str(tmp_path / "whole"), method=method)
    for name, rounds, previous in (("bootstrap", 1, True), ("middle", 2, False)):
        small(rounds=rounds, out=str(tmp_path / name), method=method)
        resumed = running.resume(tmp_path / name, "rounds=3", previous=previous)
        assert torch.equal(whole.final, resumed.final)
        assert torch.equal(whole.best, resumed.best)
        for column in ("balanced_f1", "patience", "evaluations", "test_loss"):
            assert whole.history[column].tolist() == resumed.history[column].tolist()
        assert whole.clients["client"].tolist() == resumed.clients["client"].tolist()
        assert whole.clients["score"].tolist() == resumed.clients["score"].tolist()


def test_a_long_pass_says_who_trains(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arno.runs.progress.SILENCE", -1.0)
    display = Lines()
    display.start("title", 3, -1)
    fed = federation(problem(script=[0.2, 0.6, 0.4, 0.5]), Lorenzo())
    fed.watch = display.watch
    fed.round()
    fed.round()
    assert "  client 1 trains: rank 1 of 3, score 0.6000\n" in capsys.readouterr().out


def test_the_seeds_defaults() -> None:
    from arno.config.settings import compose

    config = compose(["method=lorenzo"])
    assert (config.local.epochs, config.local.lr, config.local.weight_decay) == (5, 0.01, 1e-4)
    assert (config.method.patience, config.method.delta, config.method.bootstrap_epochs) == (10, 0.001, 1)
    assert compose(["method=lorenzo", "local.epochs=2"]).local.epochs == 2
    assert compose(["method=lorenzo", "method.patience=null"]).method.patience is None
