"""Data given in Python: DataFrames, arrays, tensors and lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_diabetes, load_wine
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import arno
from arno.cli import main
from arno.data import load
from arno.data.sources import python
from arno.errors import ArnoError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python, "_MADE", {})


def frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"age": random.normal(50, 10, 90), "colour": random.choice(["red", "blue"], 90)})
    return table.assign(sick=random.integers(0, 3, 90), hospital=np.repeat(["bern", "oslo", "rome"], 30))


class Endless(IterableDataset):
    def __iter__(self):
        return iter([(0, 0)])


def given(table: pd.DataFrame, **settings: object) -> arno.Data:
    return arno.Data(table[["age", "colour"]], table["sick"], client=table["hospital"], **settings)


def test_a_data_frame_is_the_same_as_its_file():
    table = frame()
    table.loc[3, "age"] = np.nan
    table.to_parquet("heart.parquet")
    file = load({"kind": "table", "path": "heart.parquet", "label": "sick", "client": "hospital"})
    assert given(table).dataset.fingerprint() == file.fingerprint()
    assert given(table).dataset.features == file.features == ("age", "colour=blue", "colour=red")
    assert given(table).dataset.clients == ("bern", "oslo", "rome")


def test_columns_by_name():
    table = frame()
    for one in (arno.Data(table, label="sick", client="hospital"), arno.Data(table, "sick", client="hospital")):
        assert dict(one) == dict(given(table))
    assert arno.Data(table, label="sick", client="hospital", features=["age"]).dataset.features == ("age",)
    assert "3 classes: 0, 1, 2" in repr(arno.Data(table, label="sick"))
    columns = {name: table[name].to_numpy() for name in table}
    assert dict(arno.Data(columns, label="sick", client="hospital")) == dict(given(table))


def test_a_bunch_of_scikit_learn():
    data = arno.Data(load_wine()).dataset
    assert (data.classes, data.features[0], len(data.y)) == (("class_0", "class_1", "class_2"), "alcohol", 142)
    assert arno.Data(load_wine(as_frame=True)).dataset.fingerprint() == data.fingerprint()
    assert arno.Data(load_diabetes()).dataset.classes == ()


class Pictures(Dataset):
    """Samples of torch: (image, label)."""

    def __init__(self, kind: str = "pair") -> None:
        self.kind = kind
        self.x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 5, 6), dtype=np.uint8))

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int):
        label, who = i % 2, f"speaker {i // 10}"
        x = Image.fromarray(self.x[i].permute(1, 2, 0).numpy()) if self.kind == "PIL" else self.x[i]
        if self.kind == "dict":
            return {"image": x, "label": label, "who": who, "id": i}
        return (x, label, who) if self.kind == "three" else (x, label)


def test_data_sets_of_torch():
    who = [f"speaker {i // 10}" for i in range(40)]
    one = arno.Data(Pictures(), client=who)
    assert one.dataset.clients == ("speaker 0", "speaker 1", "speaker 2", "speaker 3")
    assert torch.bincount(one.dataset.client_test).tolist() == [2, 2, 2, 2]
    assert one.dataset.x.shape == (32, 3, 5, 6)
    assert one.dataset.x.dtype == torch.uint8
    rows = one.dataset.rows
    assert torch.equal(one.dataset.x, Pictures().x[rows])
    assert one.dataset.y.tolist() == [i % 2 for i in rows]
    assert one.dataset.client.tolist() == [i // 10 for i in rows]
    for other in (
        arno.Data(Pictures("three")),
        arno.Data(Pictures("PIL"), client=who),
        arno.Data(Pictures("dict"), client="who", features=["image"]),
        arno.Data(Pictures("dict"), label="label", client="who"),
        arno.Data(TensorDataset(Pictures().x, torch.arange(40) % 2), client=who),
        arno.Data(Pictures().x.permute(0, 2, 3, 1).numpy(), np.arange(40) % 2, client=who),
        arno.Data([Pictures()[i] for i in range(40)], client=who),
    ):
        assert dict(other) == dict(one)
    tested = arno.Data(Pictures(), x_test=Subset(Pictures(), [0, 2, 4])).dataset
    assert (len(tested.y), tested.y_test.tolist()) == (40, [0, 0, 0])


def test_samples_that_are_dictionaries_of_single_values_are_a_table():
    table = frame()
    samples = table.to_dict("records")
    assert dict(arno.Data(samples, label="sick", client="hospital")) == dict(given(table))


def test_hugging_face_data_sets():
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets")
    table = frame().assign(sick=frame()["sick"].astype(int))
    kinds = datasets.ClassLabel(names=["well", "ill", "worse"])
    made = datasets.Dataset.from_pandas(table).cast_column("sick", kinds)
    data = arno.Data(made, label="sick", client="hospital").dataset
    assert data.classes == ("ill", "well", "worse")
    assert data.clients == ("bern", "oslo", "rome")
    assert len(data.y) + len(data.y_test) == 90
    pictures = datasets.Dataset.from_dict(
        {"image": [Pictures("PIL")[i][0] for i in range(40)], "label": [i % 2 for i in range(40)]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}),
    )
    shown = arno.Data(pictures).dataset
    assert shown.classes == ("cat", "dog")
    assert torch.equal(shown.x, Pictures().x[shown.rows])


def test_the_task_decides_on_whole_numbers():
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = (10 * x[:, 0]).round().astype(int) // 10
    data = arno.Data(x, y)
    assert len(data.dataset.classes) > 2
    run = arno.run("model=softmax", "clients=3", data=data, task="regression", rounds=1)
    assert "test_rmse" in run.rows[-1]
    back = arno.Data(x, y.astype(float))
    assert back.dataset.classes == ()
    run = arno.run("model=softmax", "clients=3", data=back, task="classification", rounds=1)
    assert "test_f1" in run.rows[-1]
    with pytest.raises(ArnoError, match="the targets are the classes a, b"):
        arno.run(data=arno.Data(x, ["a", "b"] * 30), task="regression", rounds=1)


def test_arrays_tensors_and_lists_are_the_same():
    x, y, ids = np.arange(60.0).reshape(20, 3), np.arange(20) % 2, np.arange(20) // 10
    one = arno.Data(x, y, client=ids)
    assert one.dataset.x.shape == (16, 3)
    for other in (
        arno.Data(torch.from_numpy(x), torch.from_numpy(y), client=torch.from_numpy(ids)),
        arno.Data(x.tolist(), y.tolist(), client=ids.tolist()),
    ):
        assert dict(other) == dict(one)


def test_a_run_and_its_continuation(capsys):
    table = frame()
    run = arno.run(data=given(table), rounds=2, out="it")
    assert run.folder.manifest()["clients"] == ["bern", "oslo", "rome"]
    assert run.config["partition"]["kind"] == "natural"
    assert run.config["data"]["fingerprint"] == given(table).dataset.fingerprint()
    python._MADE.clear()
    with pytest.raises(ArnoError, match=r"its data were objects .*; continue it in Python .*arno\.resume\('it', data="):
        arno.resume("it", "rounds=4")
    with pytest.raises(ArnoError, match=r"data of it: the run was started with data .*, and the given data differs"):
        arno.resume("it", "rounds=4", data=given(table.iloc[:80]))
    whole = arno.run(data=given(table), rounds=4, out="whole")
    python._MADE.clear()
    assert arno.resume("it", "rounds=4", data=given(table)).final.equal(whole.final)
    python._MADE.clear()
    with pytest.raises(SystemExit):
        main(["resume", "whole"])
    assert "continue it in Python with the same: arno.resume('whole', data=arno.Data(…))" in capsys.readouterr().err
    assert arno.RunResult("it", data=given(table)).model().head.out_features == 3


def test_equal_numbers_with_other_names_stay_apart():
    """The fingerprint depends on numbers only; names are those of the data that a run was given."""
    x = np.random.default_rng(0).random((20, 3))
    first, second = arno.Data(x, ["3", "4"] * 10), arno.Data(x, ["cat", "dog"] * 10)
    assert first["fingerprint"] == second["fingerprint"]
    for i, (data, names) in enumerate([(first, ("3", "4")), (second, ("cat", "dog")), (first, ("3", "4"))]):
        assert data.dataset.classes == names
        assert arno.run("model=softmax", "rounds=1", "clients=2", data=data, out=f"{i}").problem.class_names == names


def test_a_path_serves_other_processes():
    data = given(frame(), path="mine.parquet")
    assert data["kind"] == "table"
    memory = arno.run(data=given(frame()), rounds=2, out="memory")
    assert arno.run(data=data, rounds=2, out="file").final.equal(memory.final)
    found = arno.compare(method=["fedavg", "scaffold"], data=data, rounds=1, out="both", jobs=1)
    assert len(found.table()) == 2


def test_test_rows_of_their_own():
    x = np.random.default_rng(0).normal(size=(50, 2))
    y = x @ [1.0, 2.0]
    data = arno.Data(x[:40], y[:40], x_test=x[40:], y_test=y[40:])
    assert (len(data.dataset.y), len(data.dataset.y_test), data.dataset.classes) == (40, 10, ())
    assert np.allclose(data.dataset.x_test, x[40:])
    file = arno.Data(x[:40], y[:40], x_test=x[40:], y_test=y[40:], path="mine.parquet")
    assert load(dict(file)).fingerprint() == data.dataset.fingerprint()


def test_the_clients_of_test_rows_are_known_by_name():
    table = frame()
    tests = table.iloc[::9].assign(hospital=["rome"] * 6 + ["paris"] * 4)
    data = arno.Data(table, label="sick", client="hospital", x_test=tests).dataset
    assert data.client_test.tolist() == [2] * 6 + [-1] * 4
    table.to_csv("train.csv", index=False)
    tests.to_csv("test.csv", index=False)
    file = {"kind": "table", "path": "train.csv", "test_path": "test.csv", "label": "sick", "client": "hospital"}
    assert load(file).client_test.tolist() == data.client_test.tolist()
    run = arno.run("model=softmax", data=file, rounds=1)
    assert run.client_scores()["tested"].tolist() == [0, 0, 6]
    assert run.client_scores()["own_f1"].isna().tolist() == [True, True, False]
    tests.drop(columns="hospital").to_csv("test.csv", index=False)
    assert load(file).client_test is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: arno.Data(frame(), frame()["sick"]), "arno.Data: sick: it is the label or the client, and also a col"),
        (lambda: arno.Data(np.zeros((5, 2)), [0, 1]), "arno.Data: 2 values of y: x has 5 rows"),
        (lambda: arno.Data(np.zeros((5, 2, 2, 1, 1)), [0, 1, 0, 1, 0]), "arno.Data: x: numbers of shape"),
        (lambda: arno.Data(np.zeros((5, 2, 2)), [0, 1, 0]), "arno.Data: 3 values of y: x has 5 rows"),
        (lambda: arno.Data(["a", "b"], [0, 1]), r"numbers \[n, features\] are needed"),
        (lambda: arno.Data(frame()), "the column to predict is not named; there are age, colour, sick, hospital"),
        (lambda: arno.Data(frame(), label="sik"), "data.label = sik: the columns are .*; did you mean sick"),
        (lambda: arno.Data(frame(), label="sick", client="ward"), "data.client = ward: the columns are"),
        (lambda: arno.Data(frame(), frame()["sick"], label="sick"), "y and label both say what to predict"),
        (lambda: arno.Data(3), "arno.Data: an object of type int: these are no data"),
        (lambda: arno.Data([]), "it has no samples"),
        (lambda: arno.Data([1, 2]), "the first sample is an object of type int; a sample is"),
        (lambda: arno.Data([(np.zeros((1, 2, 2)), 0), (np.zeros((1, 3, 3)), 1)]), "a sample of shape .1, 3, 3.: the f"),
        (lambda: arno.Data(Endless()), r"it does not say how many samples it has; take some: arno\.Data\(list"),
        (lambda: arno.run(data=np.zeros((3, 2)), rounds=1), "data: it must be a name or an arno.Data, not ndarray"),
        (lambda: arno.run(model=3, rounds=1), "model: it must be a name, a torch.nn.Module, its class"),
        (lambda: arno.Data(np.zeros((5, 2)), [0] * 5), "data.label = y: all rows have the same value"),
        (lambda: arno.Data(np.zeros((5, 2)), [0] * 5, x_test=[[1, 2]]), "x_test and y_test belong together"),
        (lambda: arno.Data(np.zeros((5, 2)), [0] * 5, mising="drop"), "arno.Data: mising: it is no setting"),
        (lambda: arno.Data(pd.DataFrame({"a": [1, object()]}), [0, 1]), "arno.Data: a: its values cannot be used"),
        (lambda: arno.run("data=python", rounds=1), "data=python: these data are given in Python"),
    ],
)
def test_mistakes_are_one_line(make, said):
    with pytest.raises(ArnoError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
