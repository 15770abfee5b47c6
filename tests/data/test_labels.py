"""Several columns to predict: labels of 0 and 1, or numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import arno
from arno.config.build import split
from arno.config.settings import compose, plain
from arno.data import load
from arno.data.sources import python
from arno.errors import ArnoError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python, "_MADE", {})


def frame(n: int = 90) -> pd.DataFrame:
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 2))
    labels = {"rain": x[:, 0] > 0, "wind": (x[:, 1] > 0.5).astype(int), "frost": np.where(x[:, 0] < -1, "yes", "no")}
    numbers = {"litres": x @ [1.0, 2.0], "count": random.integers(0, 5, n)}
    station = np.array(["alp", "bay", "cap"])[np.arange(n) % 3]
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], **labels, **numbers, "station": station})


def read(label: list[str], **settings: object):
    frame().to_csv("weather.csv", index=False)
    return load({"kind": "table", "path": "weather.csv", "label": label, "client": "station"} | settings)


LABELS = ["rain", "wind", "frost"]


def test_columns_of_zeros_and_ones_are_labels():
    data, table = read(LABELS, features=["a", "b"]), frame()
    wanted = np.stack([table["rain"], table["wind"], table["frost"] == "yes"], axis=1).astype(int)
    assert data.classes == tuple(LABELS)
    assert np.array_equal(data.y, wanted[data.rows])
    assert len(data.y_test) == 18
    ones = ", ".join(f"{name} {count}" for name, count in zip(LABELS, wanted.sum(0), strict=True))
    assert f"3 labels of 0 or 1, with ones: {ones} (data.numbers=true if this is wrong)" in data.notes
    assert data.features == ("a", "b")


def test_columns_of_numbers_are_a_regression_with_several_outputs():
    data, table = read(["litres", "count"]), frame()
    assert data.classes == ()
    assert np.allclose(data.y, table[["litres", "count"]].to_numpy(np.float32)[data.rows])
    assert read(["wind", "count"], numbers=True).y.dtype == torch.float32
    with pytest.raises(ArnoError, match=r"^data.label = \[wind, count\]: of several labels each is 0 or 1, and count"):
        read(["wind", "count"])
    assert torch.equal(read(["wind"]).y, read("wind").y)


def test_rows_without_one_of_the_labels_are_left_out():
    table = frame().astype({"wind": "Int64"})
    table.loc[3, "wind"], table.loc[7, "frost"] = pd.NA, None
    table.to_csv("gaps.csv", index=False)
    data = load({"kind": "table", "path": "gaps.csv", "label": LABELS, "client": "station"})
    assert len(data.y) + len(data.y_test) == 88
    assert "left out: 2 rows, no rain or wind or frost" in data.notes


@pytest.mark.parametrize(
    ("label", "settings", "said"),
    [
        (["rain", "wnd"], {}, r"^data.label = wnd: the columns are .*; did you mean wind\?$"),
        (["rain", "rain"], {}, "^data.label: rain: it is named twice"),
        (["rain", "station"], {}, "^data.client = station: it is the label"),
        (["rain", "wind"], {"skip": ["wind"]}, r"^data.skip: wind: it is the label; remove it from data.skip$"),
        ([], {}, "^data=table: the column to predict is not named"),
        (["litres", "station"], {"client": None}, "^data.label = station: 'alp' in row 1: it is a column of numbers"),
    ],
)
def test_mistakes_are_one_line(label, settings, said):
    with pytest.raises(ArnoError, match=said):
        read(label, **settings)


def test_every_form_gives_the_same_data():
    table, data = frame(), read(LABELS, features=["a", "b"])
    x, y = table[["a", "b"]], table[LABELS]
    numbers = (y == "yes").where(y.isin(["yes", "no"]), y).astype(int)
    for one in (
        arno.Data(table, label=LABELS, client="station", features=["a", "b"]),
        arno.Data(x, y, client=table["station"]),
        arno.Data(x.to_numpy(), numbers.to_numpy(), client=table["station"].to_numpy()),
        arno.Data(x.to_numpy(), numbers.to_numpy(float), client=table["station"].to_numpy()),
        arno.Data(torch.tensor(x.to_numpy()), torch.tensor(numbers.to_numpy()), client=list(table["station"])),
        arno.Data(table, label=LABELS, client="station", features=["a", "b"], path="mine.parquet"),
        arno.Data("weather.csv", label=LABELS, client="station", features=["a", "b"]),
    ):
        assert torch.equal(one.dataset.y, data.y)
        assert one.dataset.fingerprint() == data.fingerprint()
    images = np.zeros((90, 4, 4), dtype=np.uint8)
    shown = arno.Data(images, y, client=table["station"])
    assert shown.dataset.classes == tuple(LABELS)
    assert torch.equal(shown.dataset.y, data.y)


def test_runs_score_labels_and_outputs_for_every_client():
    words = ("model=softmax", "rounds=2")
    run = arno.run(*words, data=arno.Data(frame(), label=LABELS, client="station", features=["a", "b"]))
    assert run.problem.task.name == "multilabel"
    assert run.client_scores()["name"].tolist() == ["alp", "bay", "cap"]
    assert run.client_scores()["own_auroc"].between(0, 1).all()
    frame().drop(columns=LABELS).to_csv("w.csv", index=False)
    file = ("data=table", "data.path=w.csv", "data.label=[litres,count]", "data.client=station")
    numbers = arno.run(*file, "data.client_test=0.2", "data.client_val=0.1", *words)
    assert numbers.problem.task.outputs == 2
    assert numbers.client_scores()["tested"].tolist() == [5, 5, 5]
    assert np.isfinite(numbers.client_scores()["own_rmse"]).all()
    data = arno.Data(frame(), label=["rain", "wind"], client="station", features=["a", "b"])
    assert arno.run(*words, data=data, task="regression").problem.task.name == "regression"


def test_one_hot_rows_are_not_guessed():
    y = np.eye(3, dtype=int)[np.arange(60) % 3]
    data = arno.Data(np.random.default_rng(0).normal(size=(60, 2)), y)
    with pytest.raises(ArnoError, match=r"exactly one label that is 1.*; give classes as y.argmax\(1\), or set task="):
        arno.run(data=data, rounds=1)
    assert arno.run("clients=3", data=data, task="multilabel", rounds=1).problem.task.outputs == 3


def test_a_partition_skews_several_labels():
    frame().to_csv("weather.csv", index=False)
    words = ["data=table", "data.path=weather.csv", "data.label=[rain,wind]", "data.skip=[station]", "clients=4"]
    dataset, train, held_out, partition = split(plain(compose(words)))
    assert partition.sizes.sum() == len(train) == 72 - len(held_out)
    assert dataset.stratum_names() == ("rain", "wind", "none")
