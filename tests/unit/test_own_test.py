"""Clients' own test samples: kept apart, scored for the global model and for personal models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

import arno
from arno import ArnoError
from arno.config import build
from arno.config.settings import compose, plain
from arno.data.partition import Partition
from arno.problems.client_tests import keep_some

WORDS = (
    "clients=5",
    "data.limit=300",
    "partition.alpha=0.3",
    "engine=serial",
    "data.client_test=0.25",
    "model.hidden=[8]",
)


def federation(*words: str):
    return build.federation(plain(compose([*WORDS, *words])))


def test_every_client_keeps_some_samples_for_its_test_and_some_to_train() -> None:
    whole = federation("data.client_test=null").problem.partition
    problem = federation().problem
    for k in range(5):
        train, test = problem.partition[k].tolist(), problem.own_test[k].tolist()
        assert sorted(train + test) == sorted(whole[k].tolist())
        assert 0 < len(test) == min(max(1, round(0.25 * len(whole[k]))), len(whole[k]) - 1)
    with pytest.raises(ArnoError, match="client 1: it has one sample"):
        keep_some(Partition(torch.arange(3), torch.tensor([0, 2, 3])), 0.5, 0)
    with pytest.raises(ArnoError, match=r"data\.client_test = 1"):
        federation("data.client_test=1")


def predictions(problem, k: int, w: torch.Tensor) -> tuple[list[int], list[int]]:
    rows = problem.own_test[k]
    with torch.no_grad():
        found = problem.model(w)(problem.inputs(problem.x[rows])).argmax(1)
    return problem.y[rows].tolist(), found.tolist()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "per_fedavg"])
def test_scores_are_those_of_scikit_learn_pooled_and_per_client(method: str) -> None:
    fed = federation(f"method={method}", "participation=0.6")
    for _ in range(3):
        fed.round()
    row = fed.own_scores()
    models = {"own": fed.w.expand(5, -1)}
    if method != "fedavg":
        models["personal"] = fed.personal(torch.arange(5))
    assert {name.split("_")[0] for name in row} == models.keys()
    for prefix, mine in models.items():
        pairs = [predictions(fed.problem, k, w) for k, w in enumerate(mine)]
        true, found = ([label for pair in pairs for label in pair[i]] for i in range(2))
        assert row[f"{prefix}_accuracy"] == pytest.approx(accuracy_score(true, found), abs=1e-6)
        assert row[f"{prefix}_f1"] == pytest.approx(f1_score(true, found, average="weighted"), abs=1e-9)
        each = [f1_score(*pair, average="weighted") for pair in pairs]
        assert row[f"{prefix}_f1_mean"] == pytest.approx(np.mean(each), abs=1e-9)
        assert row[f"{prefix}_f1_worst_decile"] == pytest.approx(min(each), abs=1e-9)


def test_scoring_personal_models_changes_nothing() -> None:
    one, other = (federation("method=fedbabu", "participation=0.6") for _ in range(2))
    for _ in range(3):
        one.round()
        one.own_scores()
        other.round()
    assert torch.equal(one.w, other.w)
    assert one.own_scores() == other.own_scores()


def test_a_run_records_and_declares_them_and_says_how_to_get_them(tmp_path) -> None:
    run = arno.run(*WORDS, method="fedper", rounds=2, out=str(tmp_path / "a"))
    names = [metric.name for metric in run.metrics]
    assert {"personal_f1", "personal_f1_worst_decile", "own_loss"} <= set(names)
    assert "personal_f1" in run.rows[-1]
    again = arno.run(*WORDS, method="fedper", rounds=1, out=str(tmp_path / "b"))
    arno.resume(again.path, "rounds=2")
    assert torch.equal(arno.RunResult(again.path).final, run.final)
    assert arno.RunResult(again.path).rows[-1]["personal_f1"] == run.rows[-1]["personal_f1"]
    assert any("data.client_test" in line for line in federation("method=fedper", "data.client_test=null").advice)
