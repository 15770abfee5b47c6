"""The forms in which people have their data in Python: each gives the right rows, or one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from torch.utils.data import DataLoader, Dataset

import arno
from arno.data.sources import python
from arno.errors import ArnoError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python, "_MADE", {})


def frame(n: int = 60, **columns: object) -> pd.DataFrame:
    base = {"age": np.arange(n) * 0.5, "colour": ["red", "blue"] * (n // 2), "sick": np.arange(n) // 2 % 2}
    return pd.DataFrame(base | {"hospital": np.array(["a", "b", "c"])[np.arange(n) % 3]}).assign(**columns)


def made(x: object, y: object = None, **settings: object):
    return arno.Data(x, y, **settings).dataset


NAMED = {"label": "sick", "client": "hospital"}


def test_tables_of_other_libraries_are_the_same_as_a_frame():
    usual = made(frame(), **NAMED).fingerprint()
    table = pa.Table.from_pandas(frame())
    for other in (
        table,
        pa.RecordBatch.from_pandas(frame()),
        frame().convert_dtypes(dtype_backend="pyarrow"),
        frame().convert_dtypes(),
        frame().astype({"colour": "category", "hospital": "category", "sick": "category"}),
        frame().set_index("hospital"),
        frame().set_index(["hospital", "sick"]),
        frame().set_index(np.zeros(60, dtype=int)),
        frame().assign(age=pd.arrays.SparseArray(frame()["age"])),
    ):
        assert made(other, **NAMED).fingerprint() == usual
    records = frame()[["age", "sick"]].to_records(index=False)
    assert made(records, label="sick").fingerprint() == made(frame()[["age", "sick"]], label="sick").fingerprint()
    frame().to_csv("heart.csv", index=False)
    assert made("heart.csv", **NAMED).fingerprint() == made(Path("heart.csv"), **NAMED).fingerprint() == usual
    assert arno.run("rounds=1", data=arno.Data("heart.csv", **NAMED)).folder.manifest()["clients"] == ["a", "b", "c"]


def test_a_frame_or_a_data_set_for_each_client():
    table = frame().sort_values("hospital", kind="stable")
    usual = made(table, **NAMED)
    each = {name: rows.drop(columns="hospital") for name, rows in table.groupby("hospital")}
    one = made(each, label="sick")
    assert (one.clients, one.fingerprint()) == (usual.clients, usual.fingerprint())
    assert made(list(each.values()), label="sick").clients == ("0", "1", "2")
    sets = made({"bern": Samples(30), "rome": Samples(20)})
    assert sets.clients == ("bern", "rome")
    assert (torch.bincount(sets.client) + torch.bincount(sets.client_test)).tolist() == [30, 20]
    with pytest.raises(ArnoError, match="x has the data of each client, with the targets in them; leave out client="):
        made(each, label="sick", client="hospital")


class Samples(Dataset):
    def __init__(self, n: int = 40, broken: int = -1) -> None:
        self.n, self.broken = n, broken

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        if i == self.broken:
            raise RuntimeError("no such\nfile")
        return torch.full((1, 4, 4), float(i)), i % 2


def test_columns_with_numbers_as_names():
    table = pd.DataFrame(np.c_[np.arange(40.0), np.arange(40) % 2, np.arange(40) % 4])
    data = made(table, label=1, client=2)
    assert (data.features, data.classes, data.clients) == (("0",), ("0", "1"), ("0", "1", "2", "3"))


def test_types_of_pandas():
    stage = pd.Categorical(["low", "high"] * 30, categories=["low", "mid", "high"], ordered=True)
    assert made(frame(sick=stage), **NAMED).classes == ("low", "high")
    data = made(frame(bin=pd.cut(np.arange(60), 3), mix=["1", 2, "x", "y", None, "z"] * 10), **NAMED)
    assert next(name for name in data.features if name.startswith("bin")) == "bin=(-0.059, 19.667]"
    assert {"mix=1", "mix=2", "mix=x", "mix=y", "mix=z"} <= set(data.features)
    gaps = made(frame(age=pd.array([1, None] * 30, dtype="Int64"), ok=pd.array([True, None] * 30, "boolean")), **NAMED)
    assert gaps.features[0] == "age"
    assert any("age 30, ok 30" in note for note in gaps.notes)


def test_arrays_of_every_type():
    x, y = np.random.default_rng(0).normal(0, 50, (60, 3)), np.arange(60) % 2
    for kind in ("float16", "float64", "int8", "int64"):
        assert np.array_equal(made(x.astype(kind), y).x, x.astype(kind)[made(x, y).rows].astype(np.float32))
    on = made(x > 0, y)
    assert on.features == ("x0", "x1", "x2")
    assert np.array_equal(on.x, (x > 0)[on.rows])
    masked = made(np.ma.masked_array(x, mask=x > 50), y)
    assert masked.x.max() <= 50
    assert any(note.startswith("missing values") for note in masked.notes)
    assert made(x, y[:, None]).fingerprint() == made(x, y).fingerprint() == made(x, y.astype(float)).fingerprint()
    assert made(x, y, client=y[:, None] * 900 - 5).clients == ("-5", "895")
    assert made(x, x[:, :1]).y.dim() == 1


def test_images_say_what_was_inferred_and_know_the_clients_of_tests():
    x, y, who = np.zeros((40, 5, 5, 3), dtype=np.uint8), np.arange(40) % 2, np.array(["a", "b"])[np.arange(40) // 20]
    assert made(x, y, client=who).notes == (
        "samples: 40 of shape 3 × 5 × 5, uint8, 0 to 255",
        "label y: 2 classes: 0, 1 (data.numbers=true if this is wrong)",
        "clients: 2, with samples: a 20, b 20",
        "to train and validate 32, to test 8 samples",
    )
    tests = made(x, y, client=who, x_test=x[:3], y_test=y[:3], client_of_test=["b", "a", "paris"])
    assert tests.client_test.tolist() == [1, 0, -1]


def test_tokens_with_a_target_at_each_position():
    x = np.random.default_rng(0).integers(0, 20, (60, 12))
    run = arno.run("model=lstm", "clients=3", "rounds=1", data=arno.Data(x, np.roll(x, -1, 1)))
    assert run.problem.task.name == "tokens"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: made(sparse.eye(60, format="csr"), np.arange(60) % 2),
            r"is sparse, and rows .*; write x\.toarray\(\)",
        ),
        (lambda: made(torch.eye(60).to_sparse(), np.arange(60) % 2), r"is sparse, and rows .*; write x\.to_dense\(\)"),
        (lambda: made(np.arange(60.0), np.arange(60) % 2), r"not float64 \[60\]; write x\[:, None\]$"),
        (lambda: made(pd.Series(np.arange(60.0)), np.arange(60) % 2), r"not float64 \[60\]; write x\[:, None\]$"),
        (lambda: made(frame()[["age"]], frame()["sick"][::-1]), r"y: its index has the rows of x in another order"),
        (lambda: made(pd.DataFrame(np.zeros((4, 2)), columns=["a", "a"]), [0, 1, 0, 1]), "two columns are called 'a'"),
        (lambda: made(DataLoader(Samples())), r"it gives batches; give its data set: arno\.Data\(loader\.dataset\)$"),
        (lambda: made(Samples(broken=5)), r"sample 5: it cannot be read \(RuntimeError: no such file\); correct the"),
        (lambda: made([(1, 2, 3, 4)] * 9), "the first sample is an object of type tuple of 4 values; a sample is"),
        (lambda: made({"a": [1, 2], "b": [1]}, label="b"), "its columns cannot be used .*; give columns of the same"),
        (
            lambda: made(Samples(), client="hospital"),
            r"client = hospital: samples of shape \[1, 4, 4\] have no columns",
        ),
        (lambda: made(Samples(), client=["a"] * 7), "7 values of client: x has 40 rows, and every row needs one value"),
        (
            lambda: made(np.zeros((9, 2)), [0] * 9, client=np.zeros((9, 2))),
            "one value per sample is needed, not an arr",
        ),
        (lambda: made("heart.csv", [0, 1]), "x is the path of a table, and its columns have the targets; write arno.D"),
        (lambda: made(np.zeros((4, 3, 3, 1)), [0, 1, None, 1]), "arno.Data: y: a value is missing; leave out samples"),
    ],
)
def test_mistakes_are_one_line(make, said):
    with pytest.raises(ArnoError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
