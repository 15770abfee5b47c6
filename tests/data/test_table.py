"""Tables of a user: what is read, what is inferred, and the mistakes that a person makes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from arno.config.build import split
from arno.config.settings import as_overrides, compose, plain
from arno.data import load
from arno.errors import ArnoError

HOSPITALS = {"bern": 30, "rome": 50, "oslo": 20}


def frame(seed: int = 0) -> pd.DataFrame:
    """100 patients of three hospitals; a missing age and two missing colours."""
    random = np.random.default_rng(seed)
    n = sum(HOSPITALS.values())
    table = pd.DataFrame(
        {
            "age": random.integers(20, 80, n).astype(float),
            "colour": random.choice(["red", "green", "blue"], n),
            "smoker": random.random(n) < 0.5,
            "sick": random.integers(0, 3, n),
            "hospital": np.repeat(list(HOSPITALS), list(HOSPITALS.values())),
        }
    )
    table.loc[3, "age"] = np.nan
    table.loc[[5, 60], "colour"] = None
    return table


def write(table: pd.DataFrame, path: Path, missing: str = "?") -> Path:
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif path.suffix == ".feather":
        table.to_feather(path)
    else:
        table.to_csv(path, index=False, na_rep=missing, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def read(path: object, **settings: object):
    return load({"kind": "table", "path": path if isinstance(path, list) else str(path), "label": "sick", **settings})


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    return write(frame(), tmp_path / "heart.csv")


def test_rows_clients_and_features_are_those_of_the_file(heart):
    data, table = read(heart, client="hospital"), frame()
    assert data.clients == ("bern", "oslo", "rome")
    held = np.setdiff1d(np.arange(100), data.rows.numpy())
    assert len(data.y) == 80
    assert len(held) == len(data.y_test) == 20
    owners = [data.clients[k] for k in data.client.tolist()]
    assert owners == table["hospital"].iloc[data.rows.numpy()].tolist()
    assert data.y.tolist() == table["sick"].iloc[data.rows.numpy()].tolist()
    assert data.features == (
        "age",
        *("colour=blue", "colour=green", "colour=red"),
        *("smoker=false", "smoker=true"),
    )
    kept = table.iloc[data.rows.numpy()]
    age = kept["age"].fillna(kept["age"].mean()).to_numpy()
    assert np.allclose(data.x[:, 0], age)
    assert np.array_equal(data.x[:, 3].bool().numpy(), (kept["colour"] == "red").to_numpy())
    assert data.x.numpy()[kept["colour"].isna(), 1:4].sum() == 0  # a missing category is none of them
    assert np.array_equal(data.x[:, 5].bool().numpy(), kept["smoker"].to_numpy())


def test_scaling_is_learned_on_training_rows_only(heart):
    data = read(heart, client="hospital")
    age = frame()["age"].iloc[data.rows.numpy()].dropna()
    assert data.mean[0] == pytest.approx(age.mean())
    assert data.std[0] == pytest.approx(age.std(ddof=0))
    assert data.mean[1:] == (0.0,) * 5
    assert data.std[1:] == (1.0,) * 5


def test_test_rows_are_taken_inside_each_client(heart):
    data = read(heart, client="hospital")
    whole = Counter(frame()["hospital"])
    assert {
        name: 5 * (whole[name] - n) for name, n in zip(data.clients, data.client.bincount().tolist(), strict=True)
    } == whole
    again = load({"kind": "table", "path": str(heart), "label": "sick", "client": "hospital"}, seed=5)
    assert torch.equal(data.rows, again.rows)  # the same for every seed


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".feather"])
def test_every_format_gives_the_same_data(heart, tmp_path, suffix):
    one, other = read(heart, client="hospital"), read(write(frame(), tmp_path / f"heart{suffix}"), client="hospital")
    assert one.fingerprint() == other.fingerprint()
    assert (one.features, one.clients, one.classes) == (other.features, other.clients, other.classes)


@pytest.mark.parametrize("mark", ["", "?", "NA", "NaN"])
def test_marks_of_missing_values(tmp_path, heart, mark):
    assert read(write(frame(), tmp_path / "b.csv", mark)).fingerprint() == read(heart).fingerprint()


def test_marks_in_text_columns_of_parquet(tmp_path, heart):
    table = frame()
    table["age"] = ["?" if a != a else str(a) for a in table["age"]]
    assert read(write(table, tmp_path / "b.parquet")).fingerprint() == read(heart).fingerprint()


def test_semicolons_and_a_byte_order_mark(tmp_path, heart):
    frame().to_csv(tmp_path / "b.csv", index=False, sep=";", encoding="utf-8-sig")
    assert read(tmp_path / "b.csv").fingerprint() == read(heart).fingerprint()


def test_a_folder_with_a_file_per_client_is_the_same_as_a_column(tmp_path):
    table = frame().sort_values("hospital", kind="stable")
    one = read(write(table, tmp_path / "all.csv"), client="hospital")
    place = tmp_path / "each"
    place.mkdir()
    files = [write(rows.drop(columns="hospital"), place / f"{name}.csv") for name, rows in table.groupby("hospital")]
    for path in (place, f"{place}/*.csv", [str(file) for file in files]):
        other = read(path)
        assert other.clients == one.clients
        assert other.fingerprint() == one.fingerprint()


def test_a_file_with_brackets_in_its_name_is_no_pattern(tmp_path, heart):
    path = write(frame(), tmp_path / "heart[1].csv")
    assert read(path).fingerprint() == read(heart).fingerprint()
    with pytest.raises(ArnoError, match=r"heart\*\.tsv: it has no file of a known kind"):
        read(tmp_path / "heart*.tsv")


def test_integers_in_one_file_and_missing_values_in_another_are_one_column(tmp_path):
    place = tmp_path / "each"
    place.mkdir()
    (place / "a.csv").write_text("x,sick\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    (place / "b.csv").write_text("x,sick\n" + "".join(f"{'' if i % 5 else i + 0.5},{i % 2}\n" for i in range(20)))
    (place / "c.csv").write_text("x,sick\n" + "".join(f"?,{i % 2}\n" for i in range(20)))
    assert read(place).features == ("x",)


def test_a_column_whose_type_changes_after_the_first_block(tmp_path):
    """Types are taken from the first block (1 MB); a later row that does not fit them is not an error."""
    n = 200_000
    x = np.arange(n).astype(object)
    x[-1], y = 0.5, np.arange(n) % 2
    table = pd.DataFrame({"x": x, "late": [None] * (n - 100) + [3.0] * 100, "code": np.arange(n) % 7, "sick": y})
    data = read(write(table, tmp_path / "long.csv"), test=0.5, categories=["code"])
    assert data.features == ("x", "late", *(f"code={i}" for i in range(7)))
    x[-1] = "half"
    with pytest.raises(
        ArnoError, match=r"^column x: 'half' in row 200000: it is a column of numbers, and 1 of 200,000"
    ):
        read(write(table.assign(x=x), tmp_path / "text.csv"))


def test_labels_by_type(tmp_path, heart):
    table = frame()
    assert read(heart).classes == ("0", "1", "2")
    table["sick"] = table["sick"].map({0: "no", 1: "a bit", 2: "very"})
    text = read(write(table, tmp_path / "text.csv"))
    assert text.classes == ("a bit", "no", "very")
    assert [text.classes[i] for i in text.y] == table["sick"].iloc[text.rows.numpy()].tolist()
    table["sick"] = table["sick"] == "no"
    assert read(write(table, tmp_path / "bool.csv")).classes == ("false", "true")
    table["sick"] = np.linspace(0.5, 9.0, 100)
    numbers = read(write(table, tmp_path / "float.csv"))
    assert numbers.classes == ()
    assert np.allclose(numbers.y, table["sick"].iloc[numbers.rows.numpy()])


def test_the_kind_of_the_label_can_be_forced(tmp_path, heart):
    assert read(heart, numbers=True).y.dtype == torch.float32
    table = frame()
    table["sick"] = table["sick"].astype(float)
    path = write(table, tmp_path / "float.csv")
    assert read(path).classes == ()
    assert read(path, numbers=False).classes == ("0", "1", "2")
    settings = ["data=table", f"data.path={path}", "data.label=sick", "clients=4"]
    assert split(plain(compose([*settings, "task=classification"])))[0].classes == ("0", "1", "2")
    assert split(plain(compose([*settings, "task=regression"])))[0].classes == ()


def test_missing_values_can_be_dropped_or_refused(heart):
    data = read(heart, missing="drop")
    assert len(data.y) + len(data.y_test) == 97
    assert not {3, 5, 60} & set(data.rows.tolist())
    assert "left out: 3 rows, missing values (data.missing=drop)" in data.notes
    with pytest.raises(ArnoError, match=r"column age: it has 1 missing values; use data\.missing=mean"):
        read(heart, missing="error")


def test_rows_without_label_or_client_are_left_out(tmp_path):
    table = frame()
    table["sick"] = table["sick"].astype("Int64")
    table.loc[[0, 1], "sick"] = pd.NA
    table.loc[[7], "hospital"] = None
    data = read(write(table, tmp_path / "gaps.csv"), client="hospital")
    assert len(data.y) + len(data.y_test) == 97
    assert data.classes == ("0", "1", "2")
    assert {"left out: 2 rows, no sick", "left out: 1 rows, no hospital"} <= set(data.notes)


def test_features_skip_and_categories(heart):
    assert read(heart, features=["age"]).features == ("age",)
    assert read(heart, skip=["colour", "hospital"]).features == ("age", "smoker=false", "smoker=true")
    assert "hospital=rome" in read(heart).features  # without data.client it is a column as the others
    table = read(heart, features=["smoker"], categories=["smoker"])
    assert table.features == ("smoker=false", "smoker=true")
    assert len(read(heart, features=["age"], categories=["age"], missing="drop").features) > 20


def test_test_rows_from_another_file(tmp_path, heart):
    other = frame(1).drop(columns="hospital")
    other.loc[0, "colour"] = "violet"
    data = read(heart, client="hospital", test_path=str(write(other, tmp_path / "test.csv")))
    assert (len(data.y), len(data.y_test)) == (100, 100)
    assert data.y_test.tolist() == other["sick"].tolist()
    assert torch.bincount(data.client).tolist() == [30, 20, 50]
    assert data.mean[0] == pytest.approx(frame()["age"].mean())
    assert "colour: 1 test rows have a category that no training row has" in data.notes


def test_a_limit_keeps_every_client(heart):
    data = read(heart, client="hospital", limit=12)
    assert len(data.y) == 12
    assert data.client.bincount().tolist() == [4, 2, 6]
    assert [data.clients[k] for k in data.client] == frame()["hospital"].iloc[data.rows.numpy()].tolist()
    with pytest.raises(ArnoError, match=r"data\.limit = 2: the data name 3 clients"):
        read(heart, client="hospital", limit=2)


def test_the_notes_say_what_was_inferred(heart):
    assert read(heart, client="hospital").notes == (
        "rows: 100 of heart.csv",
        "label sick: 3 classes: 0, 1, 2 (data.numbers=true if this is wrong)",
        "numbers: age",
        "categories of colour: blue, green, red",
        "categories of smoker: false, true",
        "missing values, replaced with the mean of the training rows (a category: with none): age 1, colour 2",
        "clients: 3, with rows: bern 30, oslo 20, rome 50",
        "to train and validate 80, to test 20 rows",
    )


def changed(**columns: object) -> pd.DataFrame:
    return frame().assign(**columns)


def text_among_numbers() -> pd.DataFrame:
    table = frame()
    table["age"] = table["age"].astype(object)
    table.loc[17, "age"] = "about 40"
    return table


@pytest.mark.parametrize(
    ("table", "settings", "said"),
    [
        (frame(), {"label": "sik"}, r"^data.label = sik: the columns are age, .*; did you mean sick\?$"),
        (frame(), {"client": "hopital"}, r"^data.client = hopital: .* did you mean hospital\?$"),
        (frame(), {"features": ["aeg"]}, r"^data.features = aeg: .* did you mean age\?$"),
        (frame(), {"features": ["age", "sick"]}, "^data.features: sick: it is the label; remove it"),
        (frame(), {"client": "sick"}, "^data.client = sick: it is the label; choose another column"),
        (frame(), {"label": None}, "^data=table: the column to predict is not named; write data=table data.path="),
        (changed(sick=1), {}, r"^data.label = sick: all rows have the same value \(1\); choose another column$"),
        (
            changed(sick=range(100)),
            {},
            "^data.label = sick: 100 different values in 100 rows are no classes; it looks like an identifier; "
            "choose another column, or data.numbers=true for a regression$",
        ),
        (
            changed(hospital=["alone", *["rome"] * 99]),
            {"client": "hospital"},
            "^client 'alone': it has a single row, and none would be left for testing; data.min_rows=2 leaves",
        ),
        (
            text_among_numbers(),
            {},
            "^column age: 'about 40' in row 18: it is a column of numbers, and 1 of 100 values are text; correct these",
        ),
        (changed(colour=[f"patient {i}" for i in range(100)]), {}, "^column colour: 100 different values in 100 rows"),
        (changed(age=pd.Timestamp("2024-01-01")), {}, "^column age: values of type .*data.skip="),
        (changed(sick=None), {}, "^data.path = .*: no rows are left"),
        (frame(), {"min_rows": 60, "client": "hospital"}, "^data.min_rows = 60: the largest client has 50 rows"),
        (frame(), {"test": 1.5}, "^data.test = 1.5: it must be a share of the 100 rows"),
        (frame(), {"skip": ["age", "colour", "smoker", "hospital"]}, "no column is left as a feature"),
        (changed(sick="yes"), {"numbers": True}, "^data.label = sick: 'yes' in row 1: it is a column of numbers"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(tmp_path, table, settings, said):
    path = write(table, tmp_path / "t.csv")
    with pytest.raises(ArnoError, match=said) as caught:
        read(path, **settings)
    assert "\n" not in str(caught.value)


def test_small_clients_are_left_out_or_kept_if_asked(tmp_path):
    path = write(changed(hospital=["alone", *["rome"] * 99]), tmp_path / "t.csv")
    assert read(path, client="hospital", min_rows=2).clients == ("rome",)
    kept = read(path, client="hospital", min_rows=1)
    assert kept.clients == ("alone", "rome")
    assert kept.client.bincount()[0] == 1


def test_ten_thousand_classes_are_a_mistake(tmp_path):
    path = tmp_path / "ids.csv"
    pd.DataFrame({"x": range(10_000), "sick": range(10_000)}).to_csv(path, index=False)
    with pytest.raises(ArnoError, match="10,000 different values in 10,000 rows are no classes"):
        read(path)


def test_files_with_unequal_columns_are_refused(tmp_path):
    place = tmp_path / "each"
    place.mkdir()
    write(frame(), place / "a.csv")
    write(frame().rename(columns={"age": "years"}), place / "b.csv")
    with pytest.raises(ArnoError, match=r"b.csv: it lacks age and has also years: a.csv has other columns; give all"):
        read(place)
    with pytest.raises(ArnoError, match=r"data.test_path = .*b.csv: it lacks the column age of a.csv; give both"):
        read(place / "a.csv", test_path=str(place / "b.csv"))


def test_test_rows_with_a_new_class_are_refused(tmp_path, heart):
    with pytest.raises(ArnoError, match="test rows with sick = 7: the training rows have no such class"):
        read(heart, test_path=str(write(changed(sick=[*[0] * 99, 7]), tmp_path / "test.csv")))


def test_files_that_are_no_tables_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ArnoError, match="is a device, pipe or socket"):
        read(tmp_path / "pipe.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArnoError, match="no file of a known kind"):
        read(tmp_path / "empty")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(ArnoError, match="its kind is unknown"):
        read(tmp_path / "t.xlsx")
    (tmp_path / "t.parquet").write_bytes(b"nothing")
    with pytest.raises(ArnoError, match="it cannot be read as parquet"):
        read(tmp_path / "t.parquet")
    (tmp_path / "ragged.csv").write_text("age,sick\n1,0\n2,1,3\n")
    with pytest.raises(ArnoError, match="it cannot be read as csv"):
        read(tmp_path / "ragged.csv")
    (tmp_path / "head.csv").write_text("age,sick\n")
    with pytest.raises(ArnoError, match="it has no rows"):
        read(tmp_path / "head.csv")
    (tmp_path / "twice.csv").write_text("age,age,sick\n1,2,0\n")
    with pytest.raises(ArnoError, match="two columns are called 'age'"):
        read(tmp_path / "twice.csv")
    (tmp_path / "latin.csv").write_bytes("age,name,sick\n1,Müller,0\n2,Weiß,1\n".encode("latin-1"))
    with pytest.raises(ArnoError, match="no UTF-8 text"):
        read(tmp_path / "latin.csv")
    with pytest.raises(ArnoError, match="No such file"):
        read(tmp_path / "absent.csv")


def composed(*words: str) -> dict:
    return plain(compose(["data=table", "data.label=sick", *words]))


def test_named_clients_are_the_default_partition(heart, tmp_path):
    named = composed(f"data.path={heart}", "data.client=hospital")
    assert (named["partition"], named["clients"]) == ({"kind": "natural", "seed": None}, None)
    assert composed(f"data.path={tmp_path}")["partition"]["kind"] == "natural"  # a folder
    plain_table = composed(f"data.path={heart}")
    assert (plain_table["partition"]["kind"], plain_table["clients"]) == ("dirichlet", 20)
    alpha = composed(f"data.path={heart}", "data.client=hospital", "partition.alpha=0.1")
    assert (alpha["partition"]["kind"], alpha["partition"]["alpha"], alpha["clients"]) == ("dirichlet", 0.1, 20)
    for config in (
        named,
        plain_table,
        alpha,
        composed(f"data.path={heart}", "data.client=hospital", "partition=dirichlet"),
    ):
        assert plain(compose(as_overrides(config))) == config
    assert plain(compose(["partition=dirichlet"], named))["clients"] == 20


def test_natural_gives_each_client_its_rows_and_validates_inside(heart):
    dataset, train, held, partition = split(composed(f"data.path={heart}", "data.client=hospital", "data.val=0.25"))
    assert partition.names == ("bern", "oslo", "rome")
    for k in range(3):
        assert set(dataset.client[train][partition[k]].tolist()) == {k}
    assert dataset.client[held].bincount().tolist() == [6, 4, 10]
    assert partition.sizes.tolist() == [18, 12, 30]
    assert len(set(train.tolist()) | set(held.tolist())) == 80


def test_clients_that_are_not_used_are_said(heart):
    words = (f"data.path={heart}", "data.client=hospital", "partition=iid", "clients=5")
    dataset, _, _, partition = split(composed(*words))
    assert dataset.notes[-1] == "the 3 clients of the data are not used (partition=iid); partition=natural uses them"
    assert (len(partition), partition.names) == (5, None)


def test_every_client_keeps_a_training_row(tmp_path):
    path = write(changed(hospital=[f"h{i % 50:02}" for i in range(100)]), tmp_path / "many.csv")
    partition = split(composed(f"data.path={path}", "data.client=hospital", "data.val=0.4"))[3]
    assert partition.sizes.min() == 1
    assert len(partition) == 50


def test_a_wrong_number_of_clients_is_an_error(heart):
    with pytest.raises(ArnoError, match=r"^clients = 7: the data name 3 clients \(bern, oslo, rome\); leave out"):
        split(composed(f"data.path={heart}", "data.client=hospital", "clients=7"))
    assert len(split(composed(f"data.path={heart}", "data.client=hospital", "clients=3"))[3]) == 3
    with pytest.raises(
        ArnoError, match=r"^partition=natural: heart does not name the client of each sample; use partition="
    ):
        split(composed(f"data.path={heart}", "partition=natural"))


def test_a_partition_file_addresses_the_rows_of_the_table(heart, tmp_path):
    table = frame()
    owners = {name: np.flatnonzero(table["hospital"] == name).tolist() for name in ("bern", "oslo", "rome")}
    (tmp_path / "who.json").write_text(str(owners).replace("'", '"'))
    words = (f"data.path={heart}", "data.skip=[hospital]", "partition=file", f"partition.path={tmp_path / 'who.json'}")
    dataset, train, _, partition = split(composed(*words))
    assert partition.names == ("bern", "oslo", "rome")
    rows = dataset.rows[train]
    for k, name in enumerate(partition.names):
        assert set(table["hospital"].iloc[rows[partition[k]].numpy()]) == {name}


def test_the_real_heart_disease_table(shared):
    path = shared / "heart-disease" / "heart.csv"
    if not path.exists():
        pytest.skip("the heart disease table is not here")
    data = load({"kind": "table", "path": str(path), "label": "target", "client": "hospital"})
    table = pd.read_csv(path, na_values="?")
    counts = table.groupby("hospital").size()
    assert data.clients == tuple(counts.index)
    kept = table.iloc[data.rows.numpy()]
    assert kept["hospital"].tolist() == [data.clients[k] for k in data.client]
    assert kept["target"].tolist() == data.y.tolist()
    held = counts - kept.groupby("hospital").size()
    assert held.sum() == len(data.y_test) == 184
    assert (held / counts).between(0.19, 0.21).all()
