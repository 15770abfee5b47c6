"""Data given in Python: DataFrames, arrays, tensors and lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import arno
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


def test_arrays_tensors_and_lists_are_the_same():
    x, y, ids = np.arange(60.0).reshape(20, 3), np.arange(20) % 2, np.arange(20) // 10
    one = arno.Data(x, y, client=ids)
    assert one.dataset.x.shape == (16, 3)
    for other in (
        arno.Data(torch.from_numpy(x), torch.from_numpy(y), client=torch.from_numpy(ids)),
        arno.Data(x.tolist(), y.tolist(), client=ids.tolist()),
    ):
        assert dict(other) == dict(one)


def test_a_run_and_its_continuation():
    table = frame()
    run = arno.run(data=given(table), rounds=2, out="it")
    assert run.folder.manifest()["clients"] == ["bern", "oslo", "rome"]
    assert run.config["partition"]["kind"] == "natural"
    assert run.config["data"]["fingerprint"] == given(table).dataset.fingerprint()
    python._MADE.clear()
    with pytest.raises(ArnoError, match=r"these data are not in this process; make the same arno\.Data"):
        arno.resume("it", "rounds=4")
    data = given(table)
    whole = arno.run(data=data, rounds=4, out="whole")
    assert arno.resume("it", "rounds=4").final.equal(whole.final)


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: arno.Data(frame(), frame()["sick"]), "arno.Data: sick: it is the label or the client, and also a col"),
        (lambda: arno.Data(np.zeros((5, 2)), [0, 1]), "arno.Data: 2 values of y: x has 5 rows"),
        (lambda: arno.Data(np.zeros((5, 2, 2, 1)), [0, 1, 0, 1, 0]), r"numbers \[n, features\] are needed"),
        (lambda: arno.Data(np.zeros((5, 2)), [0] * 5), "data.label = y: all rows have the same value"),
        (lambda: arno.Data(np.zeros((5, 2)), [0] * 5, x_test=[[1, 2]]), "x_test and y_test belong together"),
        (lambda: arno.Data(np.zeros((5, 2)), [0] * 5, mising="drop"), "arno.Data: mising: it is no setting"),
        (lambda: arno.Data(pd.DataFrame({"a": [1, "b"]}), [0, 1]), "arno.Data: a: its values cannot be used"),
        (lambda: arno.run("data=python", rounds=1), "data=python: these data are given in Python"),
    ],
)
def test_mistakes_are_one_line(make, said):
    with pytest.raises(ArnoError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
