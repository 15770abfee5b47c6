"""A regression from end to end: run, engines, best model, comparison and report, and what methods refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import arno as package
from arno.records.metrics_file import read as recorded

DIABETES = ("data=sklearn", "data.name=diabetes", "clients=5")
SCORES = ("rmse", "mae", "r2", "loss")


def rows(run: Path) -> list[dict]:
    return recorded(run)


def table(path: str) -> list[dict]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def held_out(run: package.RunResult, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = run.problem.held_out[split]
    return run.problem.inputs(x), y[:, 0].double()


def test_a_run_records_the_scores_of_a_regression(arno, pictures):
    said = arno("run", *DIABETES, "rounds=6", "out=it")
    last = rows(said.folder)[-1]
    assert {f"{split}_{name}" for split in ("test", "val") for name in SCORES} <= last.keys()
    assert not [key for key in last if "accuracy" in key or "f1" in key]
    for words in (
        "diabetes by dirichlet, mlp: 5 clients, 1,537 parameters",
        "round 6/6  rmse ",
        "test RMSE",
        "test R²",
    ):
        assert words in said.out
    assert (said.folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert not (said.folder / "counts.npy").exists(), "there are no classes to count"
    assert last["test_rmse"] < rows(said.folder)[0]["test_rmse"]
    manifest = json.loads((said.folder / "manifest.json").read_text())
    better = {metric["name"]: metric["better"] for metric in manifest["metrics"]}
    assert (better["test_rmse"], better["val_mae"], better["test_r2"]) == ("less", "less", "more")


def test_scores_are_those_of_scikit_learn_and_the_best_model_has_the_lowest_rmse():
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    run = package.run(*DIABETES, rounds=12, local={"lr": 0.2}, out="it")
    task = run.problem.task
    for which, t in (("final", 12), ("best", int(run.history["val_rmse"].idxmin()))):
        for split in ("test", "val"):
            x, y = held_out(run, split)
            with torch.no_grad():
                estimate = (task.mean + task.std * run.model(which)(x).double())[:, 0]
            row = run.history.loc[t]
            assert row[f"{split}_rmse"] == pytest.approx(root_mean_squared_error(y, estimate), rel=1e-5)
            assert row[f"{split}_mae"] == pytest.approx(mean_absolute_error(y, estimate), rel=1e-5)
            assert row[f"{split}_r2"] == pytest.approx(r2_score(y, estimate), rel=1e-4)
    assert run.folder.manifest()["best_round"] == run.history["val_rmse"].idxmin()


def test_a_linear_model_reaches_the_least_squares_solution():
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import root_mean_squared_error

    run = package.run(
        *DIABETES, "model=softmax", "local.batch_size=1000", "local.lr=0.2", "eval.every=400", rounds=400, out="it"
    )
    assert len(run.final) == 11
    x, y = run.problem.inputs(run.problem.x), run.problem.y[:, 0]
    test_x, test_y = held_out(run, "test")
    exact = root_mean_squared_error(test_y, LinearRegression().fit(x, y).predict(test_x))
    assert run.history["test_rmse"].iloc[-1] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_engines_agree(model, arno):
    """The others are `serial` to the bit or, where many clients train at once, to rounding."""
    small = (*DIABETES, "rounds=3", f"model={model}", "participation=0.8")
    want = load_file(arno("run", *small, "engine=serial", "out=serial").folder / "final.safetensors")["w"]
    for engine in ("processes", "batched", "auto"):
        run = arno("run", *small, f"engine={engine}", f"out={engine}").folder
        got = load_file(run / "final.safetensors")["w"]
        if engine == "processes":
            assert torch.equal(got, want)
        else:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_comparison_stars_the_lower_rmse(arno):
    words = (*DIABETES, "local.lr=0.0005,0.1", "seed=0..2", "rounds=3", "model=softmax")
    said = arno("compare", *words, "target=60", "out=it")
    assert said.status == 0
    assert "test RMSE, lower is better" in said.out
    better, worse = table("it/table.csv")
    assert (better["name"], better["winner"]) == ("local.lr=0.1", "True")
    assert (worse["name"], worse["winner"]) == ("local.lr=0.0005", "False")
    assert float(better["final"]) < 60 < float(worse["final"])
    assert (better["reached"], worse["reached"]) == ("3", "0"), "the target is an RMSE of at most 60"
    (gap,) = table("it/differences.csv")
    assert float(gap["difference"]) < 0
    assert arno("report", "it").out.strip() == "it/report.html"
    assert "test RMSE" in Path("it/report.html").read_text()
    r2 = arno("compare", *words, "metric=test_r2", "out=it")
    assert "test R²" in r2.out
    assert table("it/table.csv")[0]["name"] == "local.lr=0.1", "more is better"


def test_a_report_of_one_run(arno):
    run = arno("run", *DIABETES, "rounds=2", "out=it").folder
    assert arno("report", run).status == 0
    assert "test RMSE" in (run / "report.html").read_text()


def test_lorenzo_scores_by_rmse(arno):
    run = arno("run", *DIABETES, "method=lorenzo", "rounds=6", "local.batch_size=8", "local.lr=0.1", "out=it").folder
    found = rows(run)
    assert [row["balanced_rmse"] for row in found] == [row["val_rmse"] for row in found]
    best = min(found, key=lambda row: row["val_rmse"])
    assert found[-1]["best_rmse"] <= best["val_rmse"] + 0.001
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["best_round"] == next(row["round"] for row in found if row["val_rmse"] == found[-1]["best_rmse"])
    tested = {row["round"]: row["test_rmse"] for row in found}
    assert manifest["report"]["Best Model"] == pytest.approx(tested[manifest["best_round"]])
    assert manifest["report"]["Global Model"] == pytest.approx(found[-1]["test_rmse"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("method=fedrcl", "FedRCL on task regression: it contrasts classes"),
        ("method=qrmix", "QR-Mix on task regression: its Hessian is that of the cross-entropy"),
        ("method=cluster_fedvarp method.by=labels method.clusters=2", "method.by = labels: this problem has no labels"),
        ("task=classification", "task=classification: the targets are not classes"),
        ("task=regression data.name=wine", "task=regression: the targets are labels of classes"),
        (
            "data.name=vine",
            "unknown data.name 'vine': the known names are breast_cancer, diabetes, wine; did you mean 'wine'?",
        ),
        ("model=lenet5", "model=lenet5 on data of shape (10,): it needs images"),
    ],
)
def test_what_needs_classes_or_images_says_so(words, said, arno):
    assert said in arno("run", *DIABETES, *words.split()).error


def test_scores_per_client_need_classes(arno):
    run = arno("run", *DIABETES, "rounds=1", "eval.clients=true", "out=it").folder
    assert not [key for key in rows(run)[-1] if key.startswith("client_")]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards", "classes", "quantity", "replace"])
def test_clients_differ_in_their_targets(partition, arno):
    said = arno("data", "show", *DIABETES, f"partition={partition}", "--out", "it.png")
    assert said.status == 0
    for words in ("283 to train, 71 to validate, 88 to test", "deciles of the target", "31 to 60", "deciles max"):
        assert words in said.out
    assert "classes" not in said.out.replace("diabetes, classes", "")
    assert Path("it.png").read_bytes()[:4] == b"\x89PNG"


def test_numbers_of_a_file_and_several_outputs(arno):
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 4))
    y = x @ random.normal(size=(4, 2)) + [100, -5]
    for name, targets in (("one", y[:, 0]), ("two", y)):
        np.savez(f"{name}.npz", x=x, y=targets)
        run = arno(
            "run", "data=npz", f"data.path={name}.npz", "clients=4", "model=softmax", "rounds=40", f"out={name}"
        ).folder
        assert rows(run)[-1]["test_r2"] > 0.99
    assert len(load_file(Path("two/final.safetensors"))["w"]) == 10


def test_a_resumed_regression_is_the_same(arno, same_run):
    words = (*DIABETES, "method=scaffold", "checkpoint.every=2", "engine=serial")
    whole = arno("run", *words, "rounds=4", "out=whole").folder
    arno("run", *words, "rounds=2", "out=parts")
    same_run(whole, arno("resume", "parts", "rounds=4").folder)
