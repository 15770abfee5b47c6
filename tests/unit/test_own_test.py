"""Clients' own test samples: kept apart, scored for the global model and for personal models."""

from __future__ import annotations

from pathlib import Path

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
    with pytest.raises(ArnoError, match=r"data\.client_test = 0\.5: every client has a single sample"):
        keep_some(Partition(torch.arange(2), torch.tensor([0, 1, 2])), 0.5, 0)
    with pytest.raises(ArnoError, match="clients share samples"):
        keep_some(Partition(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 2, 4])), 0.5, 0)
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


def few(*words: str):
    """Clients 0 and 2 have many samples, clients 1 and 3 a single one."""
    Path("who.json").write_text(
        '{"bern": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "oslo": [10], "rome": [11, 12, 13], "bonn": [14]}'
    )
    at = ("partition=file", "partition.path=who.json", "data.val=0", "engine=serial", "model.hidden=[8]")
    return build.federation(plain(compose([*at, "data.client_test=0.25", *words])))


def test_a_client_with_a_single_sample_trains_on_it_and_is_not_scored(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fed = few("method=ditto")
    assert fed.problem.own_test.sizes.tolist() == [2, 0, 1, 0]
    assert fed.problem.partition.sizes.tolist() == [8, 1, 2, 1]
    assert any("2 of 4 clients have a single sample and keep none: oslo, bonn" in line for line in fed.advice)
    fed.round()
    row, table = fed.own_scores(), fed.problem.own_table(fed.own_tallies())
    assert table["name"] == ["bern", "oslo", "rome", "bonn"]
    assert (table["samples"], table["tested"]) == ([8, 1, 2, 1], [2, 0, 1, 0])
    for prefix in ("own", "personal"):
        each = table[f"{prefix}_f1"]
        assert [np.isnan(score) for score in each] == [False, True, False, True]
        assert row[f"{prefix}_f1_mean"] == pytest.approx((each[0] + each[2]) / 2)
        assert row[f"{prefix}_loss"] == pytest.approx((2 * table[f"{prefix}_loss"][0] + table[f"{prefix}_loss"][2]) / 3)


def test_validation_samples_of_the_clients(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fed = few("data.val=null", "data.client_val=0.3", "method=lorenzo", "method.min_batches=0", "local.batch_size=2")
    problem = fed.problem
    assert problem.partition.sizes.tolist() == [
        6,
        1,
        1,
        1,
    ]  # of 10, 1, 3, 1: 2, 0, 1, 0 to test, 2, 0, 1, 0 to validate
    assert problem.own_test.sizes.tolist() == [2, 0, 1, 0]
    x, y = problem.held_out["val"]
    kept = {tuple(row.flatten().tolist()) for row in x}
    used = {tuple(row.flatten().tolist()) for k in range(4) for row in problem.x[problem.partition[k]]}
    tested = {tuple(row.flatten().tolist()) for k in range(4) for row in problem.x[problem.own_test[k]]}
    assert (len(y), len(kept), len(used), len(tested)) == (3, 3, 9, 3)
    assert not kept & used
    assert not tested & (kept | used)
    assert problem.validation == (
        "validation: 3 samples that 2 clients keep (data.client_val), taken together, choose the best model"
    )
    assert problem.validation in fed.advice
    assert any(line.startswith("Lorenzo scores models by F1 on balanced validation samples") for line in fed.advice)
    with pytest.raises(ArnoError, match=r"data\.val = 0\.1 with data\.client_val = 0\.2"):
        federation("data.val=0.1", "data.client_val=0.2")


def test_a_run_has_one_row_per_client(tmp_path) -> None:
    words = (*WORDS, "data.client_val=0.2")
    run = arno.run(*words, method="fedper", rounds=3, out=str(tmp_path / "a"))
    frame, last = run.client_scores(), run.rows[-1]
    assert frame["client"].tolist() == list(range(5))
    assert (frame["round"] == 3).all()
    for prefix in ("own", "personal"):
        assert frame[f"{prefix}_f1"].mean() == pytest.approx(last[f"{prefix}_f1_mean"])
        assert frame[f"{prefix}_f1"].min() == pytest.approx(last[f"{prefix}_f1_worst_decile"])
        pooled = np.average(frame[f"{prefix}_accuracy"], weights=frame["tested"])
        assert pooled == pytest.approx(last[f"{prefix}_accuracy"])
    assert run.folder.manifest()["validation"].startswith("validation: ")
    again = arno.run(*words, method="fedper", rounds=1, out=str(tmp_path / "b"))
    assert arno.resume(again.path, "rounds=3").client_scores().equals(frame)
    for engine in ("batched", "processes"):
        other = arno.run(*words, f"engine={engine}", method="fedper", rounds=3, out=str(tmp_path / engine))
        assert np.allclose(other.client_scores(), frame, atol=1e-5)


def test_named_clients_of_test_rows_are_scored_on_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    where = np.repeat(["<b>bern</b>", "oslo", "rome"], [60, 40, 20])
    data = arno.Data(random.normal(size=(120, 3)), random.integers(0, 2, 120), client=where)
    run = arno.run("model=softmax", data=data, rounds=2)
    frame = run.client_scores()
    assert frame["name"].tolist() == ["<b>bern</b>", "oslo", "rome"]
    assert frame["tested"].tolist() == [12, 8, 4]
    assert np.average(frame["own_accuracy"], weights=frame["tested"]) == pytest.approx(run.rows[-1]["test_accuracy"])
    assert "own_accuracy" not in run.rows[-1]  # it is test_accuracy
    assert len(arno.run("model=softmax", "partition=iid", "clients=3", data=data, rounds=1).client_scores()) == 0
