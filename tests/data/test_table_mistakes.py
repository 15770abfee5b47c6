"""What people hand over as a table: every case works rightly or is one line that says what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from arno.config.settings import compose, plain
from arno.data import load
from arno.errors import ArnoError

RANDOM = np.random.default_rng(0)


def frame(n: int = 60, **columns: object) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "age": RANDOM.normal(50, 9, n).round(1),
            "colour": RANDOM.choice(["red", "blue"], n),
            "sick": np.arange(n) % 2,
            "hospital": np.array(["a", "b", "c"])[np.arange(n) % 3],
        }
    )
    return table.assign(**columns)


def read(path: object, **settings: object):
    return load({"kind": "table", "path": str(path), "label": "sick", **settings})


@pytest.fixture
def save(tmp_path: Path):
    """Write a table or a text, and return the path."""

    def write(what: pd.DataFrame | str | bytes, name: str = "t.csv", **how: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(what, pd.DataFrame):
            what.to_csv(path, index=False, **how)
        else:
            path.write_bytes(what.encode() if isinstance(what, str) else what)
        return path

    return write


ROWS = "1,0\n2,1\n" * 20


@pytest.mark.parametrize(
    ("what", "name", "said"),
    [
        ("", "t.csv", r"t\.csv: it is empty; is this the right file\?$"),
        ("\n\n \n", "t.csv", r"t\.csv: it is empty"),
        ("age,sick\n", "t.csv", r"t\.csv: it has no rows; is this the right file\?$"),
        ("age,age,sick\n1,2,0\n2,3,1\n", "t.csv", "two columns are called 'age'; rename one of them$"),
        (ROWS, "t.csv", "^data.label = sick: the columns are 1, 0; the first line of the file names the columns$"),
        (
            "age sick\n1 0\n",
            "t.csv",
            r"columns are age sick; separate the columns with commas, semicolons, tabs or \|$",
        ),
        ("age,sick\n1,0\n2,1,5\n", "t.csv", "Expected 2 columns, got 3: 2,1,5; correct this line; a value that has"),
        (frame().to_csv().encode("utf-16"), "t.csv", r"t\.csv: it is UTF-16 text; save the file as UTF-8$"),
        (frame(colour="grün").to_csv().encode("latin-1"), "t.csv", "colour .*: it is no UTF-8 text; save the file as"),
        (gzip.compress(ROWS.encode(), mtime=0), "t.parquet.gz", "its kind is unknown; .*; unpack it first$"),
        (
            gzip.compress(ROWS.encode(), mtime=0)[:-9],
            "t.csv.gz",
            r"t\.csv\.gz: it cannot be unpacked .*; is the file damaged\?$",
        ),
        (gzip.compress(bytes(2**29), mtime=0), "t.csv.gz", "packed bytes at most .* are unpacked; is it damaged"),
        (
            "# of 2024\nage,sick\n" + ROWS,
            "t.csv",
            "first line has one column, .*; the first line must name the columns",
        ),
        (
            "größe,sick\n1,0\n".encode("latin-1"),
            "t.csv",
            "^the first line of .*: it is no UTF-8 text; save the file as",
        ),
        (b"", "t.feather", "it cannot be read as feather: the file is empty; is the file damaged"),
        (b"ARROW1\0\0" * 9, "t.feather", r"it cannot be read as feather: .*; is the file damaged\?$"),
        ("age,sick", "t.csv", r"t\.csv: it has no rows; is this the right file\?$"),
        (
            ",,\nage,sick,\n" + ROWS.replace("\n", ",\n"),
            "t.csv",
            "the columns are Unnamed: 0, Unnamed: 1, Unnamed: 2; the f",
        ),
        ("# of 2024\n# by us\nage,sick\n" + ROWS, "t.csv", "remove the lines above the names$"),
        (frame().to_csv().encode("utf-16-le"), "t.csv", "it holds null characters and is no UTF-8 text; save the file"),
        (frame().to_csv().encode("utf-32"), "t.csv", "it is UTF-32 text; save the file as UTF-8$"),
        (gzip.compress(ROWS.encode(), mtime=0), "t.csv", r"packed with gzip; give it a name that ends with \.csv\.gz$"),
        (b"PK\x03\x04\0", "t.csv", "it is a ZIP archive or a workbook of Excel; unpack it, or save it as CSV$"),
        (b"PAR1\0\0", "t.csv", r"it is a Parquet file; give it a name that ends with \.parquet$"),
        ("age,sick\n1,\x1b[31m\n2\n", "t.csv", "Expected 2 columns, got 1: 2; correct this line"),
        ("age,sick\n1.5,1\n", "t.csv", "a single row is left; give more rows$"),
        (b"PK\x03\x04", "t.xlsx", "its kind is unknown; .*; save it as CSV$"),
        ("age,sick\n" + "inf,0\n2,1\n" * 20, "t.csv", "^column age: row 1: a number must be finite and fit into 32"),
        ("age,sick\n" + "1,0\n1e300,1\n" * 20, "t.csv", "^column age: row 2: a number must be finite"),
        (
            "age,sick\n" + '"1,234",0\n"2,500",1\n' * 20,
            "t.csv",
            "^column age: 1,234: the comma may be a decimal comma or may group thousands; write 1.234 or 1234; data",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_is_no_table_is_one_line(save, what, name, said):
    with pytest.raises(ArnoError, match=said) as caught:
        read(save(what, name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        ({"age": pd.date_range("2020-01-01", periods=60)}, {}, "^column age: values of type date.*data.skip="),
        (
            {"age": pd.date_range("2020-01-01", periods=60, freq="h")},
            {},
            "^column age: values of type timestamp.*skip=",
        ),
        (
            {"sick": pd.date_range("2020-01-01", periods=60)},
            {},
            "^data.label = sick: values of type date.*: this is no",
        ),
        (
            {"hospital": np.arange(60)},
            {"client": "hospital"},
            "each of the 60 rows has another client; it looks like an",
        ),
        (
            {"hospital": np.arange(60) / 7},
            {"client": "hospital"},
            "its values are numbers with fractions, and a client",
        ),
        ({"hospital": ["alone", *["b"] * 59]}, {"client": "hospital"}, "^client 'alone': it has a single row"),
        (
            {"sick": np.arange(60) * 1000},
            {},
            "60 different values in 60 rows are no classes; .* data.numbers=true for a",
        ),
        (
            {"sick": [f"p{i}" for i in range(60)]},
            {},
            "60 different values in 60 rows are no classes; it looks like an id",
        ),
        ({"sick": "yes"}, {}, r"all rows have the same value \(yes\); choose another column$"),
        (
            {"colour": [f"c{i}" for i in range(60)]},
            {},
            r"60 different values .* no categories; leave it out: data.skip=",
        ),
        ({"age": [f"{i} kg" for i in range(60)]}, {}, "such as '.* kg', are no categories; if they are numbers, write"),
        ({"sick": 1.5}, {}, r"^data.label = sick: all rows have the same value \(1.5\); choose another column$"),
        ({}, {"min_rows": 0, "client": "hospital"}, "^data.min_rows = 0: it must be at least 1"),
        ({}, {"skip": ["age"], "features": ["age"]}, "^data.skip: age: it is in data.features too; name it in one"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_what_it_is_for(save, columns, settings, said):
    with pytest.raises(ArnoError, match=said) as caught:
        read(save(frame(**columns)), **settings)
    assert "\n" not in str(caught.value)


def test_a_name_with_a_line_break_stays_on_one_line(save):
    with pytest.raises(ArnoError) as caught:
        read(save(frame().rename(columns={"age": "age\nyears"})), label="nothing")
    assert "\n" not in str(caught.value)
    data = read(save(frame(colour=["a\nb", "c"] * 30)))
    assert data.features[1:3] == ("colour=a\nb", "colour=c")
    assert "categories of colour: a b, c" in data.notes


@pytest.mark.parametrize(
    "how",
    [
        {"sep": ";"},
        {"sep": "|"},
        {"sep": "\t"},
        {"encoding": "utf-8-sig"},
        {"sep": ";", "decimal": ","},
        {"decimal": ","},
    ],
    ids=str,
)
def test_separators_marks_of_order_and_decimal_commas(save, how):
    table = frame()
    assert read(save(table, "b.csv", **how)).fingerprint() == read(save(table)).fingerprint()


def test_spaces_around_names_do_not_matter(save):
    table = frame()
    spaced = table.rename(columns={"sick": " sick", "age": "age  "})
    assert read(save(spaced, "b.csv")).fingerprint() == read(save(table)).fingerprint()


def test_the_numbers_of_rows_that_pandas_writes_are_no_feature(save, tmp_path):
    table = frame()
    usual = read(save(table))
    table.to_csv(tmp_path / "index.csv")
    table.to_csv(tmp_path / "twice.csv")
    pd.read_csv(tmp_path / "index.csv").to_csv(tmp_path / "twice.csv", index=False)
    table.iloc[np.arange(60)].set_index(RANDOM.permutation(60)).to_parquet(tmp_path / "index.parquet")
    for name, said in (("index.csv", "column 1"), ("twice.csv", "column 1"), ("index.parquet", "column 5")):
        data = read(tmp_path / name)
        assert data.features == usual.features
        assert f"left out, no name: {said}" in data.notes
    assert "Unnamed: 0" in read(tmp_path / "twice.csv", features=["Unnamed: 0", "age"]).features


def test_a_constant_column_and_one_without_values(save):
    data = read(save(frame(age=5.0, empty=None)))
    assert data.std[0] == 1.0
    assert "empty" not in data.features
    assert "left out, no values: empty" in data.notes


@pytest.mark.parametrize("size", [1e-14, 1.0, 1e8])
def test_columns_of_any_size_are_scaled(save, size):
    """A deviation counts as 0 in comparison to the mean: farads are small, and 1e8 in every row is a constant."""
    numbers = np.arange(60.0)
    data = read(save(frame(age=size * numbers, same=size)))
    assert data.std == pytest.approx((size * numbers[data.rows].std(), *data.std[1:]), rel=0.2)
    assert data.std[data.features.index("same")] == 1.0


def test_whole_numbers_as_floats_are_said_to_be_possible_classes(save):
    path = save(frame(sick=[np.nan, *[1.0, 0.0, 2.0] * 19, 1.0, 0.0]))
    said = "label sick: numbers, a regression; its 3 values are whole numbers, data.numbers=false makes them classes"
    assert said in read(path).notes
    assert read(path, numbers=False).classes == ("0", "1", "2")


def test_two_whole_numbers_as_floats_are_classes(save):
    """Integers with a gap, as pandas writes them."""
    path = save(frame(sick=[np.nan, *[1.0, 0.0] * 29, 1.0]))
    assert read(path).classes == ("0", "1")
    assert "label sick: 2 classes: 0, 1 (data.numbers=true if this is wrong)" in read(path).notes
    assert read(path, numbers=True).classes == ()
    assert read(save(frame(sick=[0.5, 1.5] * 30))).classes == ()


@pytest.mark.parametrize("ids", [[1, 2], [1.0, 2.0], ["1", "2"], [True, False]], ids=str)
def test_ids_of_clients_of_every_type(save, ids):
    data = read(save(frame(hospital=ids * 30)), client="hospital")
    assert data.clients == (("false", "true") if ids == [True, False] else ("1", "2"))
    gaps = frame(hospital=[*ids * 29, None, None])
    assert read(save(gaps), client="hospital").clients == data.clients


def test_ids_that_are_whole_in_one_file_and_floats_in_another(save, tmp_path):
    save(frame(hospital=1), "d/a.csv")
    save(frame(hospital=[1.0, 2.0] * 30), "d/b.csv")
    assert read(tmp_path / "d", client="hospital").clients == ("1", "2")


@pytest.mark.parametrize(("column", "values"), [("age", ["?", "x"]), ("sick", ["yes", "no"])])
def test_text_in_one_file_and_numbers_in_another(save, tmp_path, column, values):
    save(frame(), "d/a.csv")
    save(frame(**{column: values * 30}), "d/b.csv")
    with pytest.raises(
        ArnoError, match=rf"^column {column}: it has text in b.csv and numbers in a.csv; write the same"
    ):
        read(tmp_path / "d", client="hospital")
    if column == "age":
        save(frame(age=4), "d/a.csv")
        assert "age=x" in read(tmp_path / "d", client="hospital", categories=["age"]).features
        assert "age" not in read(tmp_path / "d", client="hospital", skip=["age"]).features


def test_the_place_of_a_wrong_value_counts_all_rows_and_names_the_file(save):
    wrong = frame().astype({"age": object})
    wrong.loc[17, "age"] = "about 40"
    path = save(wrong.assign(sick=[None, *[0, 1] * 29, 1]).astype({"sick": "Int64"}), "b.csv")
    with pytest.raises(ArnoError, match=r"^column age: 'about 40' in row 18: it is a column of numbers, and 1 of 59"):
        read(path)
    with pytest.raises(ArnoError, match=r"^column age: 'about 40' in row 18 of b\.csv: "):
        read(save(frame()), test_path=str(path))


def test_files_with_other_separators_and_kinds_are_one_table(save, tmp_path):
    table = frame()
    save(table[:30], "d/a.csv", sep=";")
    table[30:].to_parquet(tmp_path / "d" / "b.parquet", index=False)
    (tmp_path / "d" / "readme.txt").write_text("no table")
    assert read(tmp_path / "d", client="hospital").fingerprint() == read(save(table), client="hospital").fingerprint()


def test_rows_are_not_counted_twice(save):
    path = str(save(frame()))
    with pytest.raises(ArnoError, match=r"it is named twice, and its rows would count twice; name it once$"):
        load({"kind": "table", "path": [path, path], "label": "sick", "client": "hospital"})
    with pytest.raises(ArnoError, match=r"its rows are also training rows \(data.path\); name another file"):
        read(path, test_path=path)


def test_text_of_rows_that_are_left_out_makes_no_categories(save):
    table = frame(age=[str(value) for value in range(60)])
    units = pd.DataFrame({"age": ["years"], "colour": [None], "sick": [None], "hospital": [None]})
    data = read(save(pd.concat([units, table])), client="hospital")
    assert "left out: 1 rows, no sick" in data.notes
    assert "numbers: age" in data.notes
    assert sorted([*data.x[:, 0].tolist(), *data.x_test[:, 0].tolist()]) == list(range(60))


def test_a_client_that_is_left_out_is_named(save):
    data = read(save(frame(sick=[None, 0, 1] * 20)), client="hospital")
    assert data.clients == ("b", "c")
    assert "left out: clients without other rows: a" in data.notes
    data = read(save(frame(), "a.csv"), test_path=str(save(frame(hospital="d"), "b.csv")), client="hospital")
    assert "60 test rows are of no client that has training rows; no client is scored on them" in data.notes


@pytest.mark.parametrize(("offset", "said"), [(1.6e9, True), (-3e10, True), (2000, False)])
def test_numbers_that_32_bits_hardly_tell_apart_are_said(save, offset, said):
    table = frame(age=offset + np.arange(60.0), sick=offset + 99 * np.arange(60) + 0.5)
    notes = "\n".join(read(save(table)).notes)
    assert notes.count("rounded to 32 bits and hardly differ; subtract") == 2 * said


def test_a_sign_of_unicode_is_a_minus(save):
    data = read(save(frame(age=[f"\N{MINUS SIGN}{i}" for i in range(60)])))
    assert sorted([*data.x[:, 0].tolist(), *data.x_test[:, 0].tolist()]) == list(range(-59, 1))


def test_names_that_yaml_reads_as_numbers(save, monkeypatch, tmp_path):
    """`data.label=2` is the column called 2, `data.path=2021` the folder called 2021."""
    table = pd.DataFrame({"0": RANDOM.normal(size=60), "1": RANDOM.choice(["u", "v"], 60), "2": np.arange(60) % 2})
    for name in ("a", "b"):
        save(table, f"2021/{name}.csv")
    monkeypatch.chdir(tmp_path)
    config = plain(compose(["data=table", "data.path=2021", "data.label=2", "data.categories=[1]"]))
    assert config["partition"]["kind"] == "natural"
    given = {key: value for key, value in config["data"].items() if key in ("kind", "path", "label", "categories")}
    found = load(given)
    assert found.clients == ("a", "b")
    assert found.classes == ("0", "1")
    with pytest.raises(ArnoError, match=r"data.label = 3: the columns are 0, 1, 2; the first line"):
        load({**given, "label": 3})
    with pytest.raises(ArnoError, match=r"data.label = False: the columns are 0, 1, 2"):
        load({**given, "label": False})


def test_a_text_that_yaml_reads_as_a_number(monkeypatch, tmp_path):
    (tmp_path / "2021").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "2021" / name).write_text("to be or not to be " * 200)
    monkeypatch.chdir(tmp_path)
    assert plain(compose(["data=text", "data.path=2021"]))["partition"]["kind"] == "natural"
