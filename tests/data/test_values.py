"""How values are written in tables: numbers, codes, names, separators, packed files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from arno.data import load
from arno.data.cell_values import valued
from arno.errors import ArnoError

ROWS = 60


def frame(**columns: object) -> pd.DataFrame:
    base = {"age": np.arange(ROWS) * 0.5, "sick": np.arange(ROWS) % 2, "hospital": ["a", "b", "c"] * 20}
    return pd.DataFrame(base).assign(**columns)


def read(path: Path, **settings: object):
    return load({"kind": "table", "path": str(path), "label": "sick", "client": "hospital", **settings})


@pytest.fixture
def save(tmp_path: Path):
    def write(table: pd.DataFrame, name: str = "t.csv", **how: object) -> Path:
        path = tmp_path / name
        if path.suffix == ".feather":
            table.to_feather(path)
        elif path.suffix == ".parquet":
            table.to_parquet(path, index=False)
        else:
            table.to_csv(path, index=False, **how)
        return path

    return write


@pytest.mark.parametrize(
    ("written", "numbers"),
    [
        (["1,5", "2"], [1.5, 2]),
        (["1,234,567", "5"], [1234567, 5]),
        (["1,234.5", "-12"], [1234.5, -12]),
        (["1.234,5", "12"], [1234.5, 12]),
        (["1.234.567", "5,25"], [1234567, 5.25]),
        (["1'234", "999.5"], [1234, 999.5]),
        (["1 234,5", "9"], [1234.5, 9]),
        (["12 %", "7.5%"], [12, 7.5]),
        (["$1,234.50", "$3"], [1234.5, 3]),
        (["5 €", "1,5 €"], [5, 1.5]),
        ([" 3 ", "4e2"], [3, 400]),
    ],
    ids=str,
)
def test_numbers_in_the_usual_ways_of_writing_them(save, written, numbers):
    assert valued(pa.chunked_array([written])).to_pylist() == numbers
    data = read(save(frame(income=written * 30)))
    assert data.features[1] == "income"
    assert data.x[:, 1].tolist() == pytest.approx(np.array(numbers * 30)[data.rows].tolist())


@pytest.mark.parametrize("written", [["07", "7"], ["x", "1"], ["$5", "5 €"], ["1.234", "12,5"], ["12", "3 apples"]])
def test_other_texts_stay_texts(written):
    assert valued(pa.chunked_array([written])).to_pylist() == written


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.feather", "t.csv.gz"])
def test_names_are_not_rounded_and_keep_their_zeros(save, name):
    for ids in (["01", "1"], ["00501", "10001"], ["18446744073709551616", "18446744073709551617"]):
        assert read(save(frame(hospital=ids * 30), name)).clients == tuple(ids)
        assert read(save(frame(sick=ids * 30), name)).classes == tuple(ids)
        data = read(save(frame(code=ids * 30), name), categories=["code"])
        assert data.features[1:] == tuple(f"code={one}" for one in ids)
    assert read(save(frame(hospital=["10", "9"] * 30), name)).clients == ("9", "10")


def test_text_with_leading_zeros_is_a_category(save):
    data = read(save(frame(code=["00501", "10001"] * 30), "t.parquet"))
    assert data.features == ("age", "code=00501", "code=10001")


def test_a_missing_first_block_does_not_change_names(save):
    """The names are read as they are written, also if the types follow from rows without any."""
    n = 200_000
    ids = [None] * (n - 4) + ["01", "1", "01", "1"]
    table = pd.DataFrame({"x": np.arange(n), "sick": np.arange(n) // 2 % 2, "hospital": ids})
    assert read(save(table)).clients == ("01", "1")


def test_quotes_line_breaks_and_separators_in_names(save, tmp_path):
    usual = read(save(frame()))
    (tmp_path / "sep.csv").write_text("sep=;\n" + frame().to_csv(index=False, sep=";"))
    (tmp_path / "dos.csv").write_bytes(frame().to_csv(index=False, lineterminator="\r\n").encode("utf-8-sig"))
    for path in (tmp_path / "sep.csv", tmp_path / "dos.csv", save(frame(), "q.csv", quoting=1)):
        assert read(path).fingerprint() == usual.fingerprint()
    odd = frame().rename(columns={"age": "a;b;c;d\n(years)"})
    assert read(save(odd, "odd.csv")).features == ("a;b;c;d\n(years)",)


def test_line_breaks_in_quotes_far_down_the_file(save):
    """A block of rows may end inside quotes."""
    n = 60_000
    notes = np.array(["plain", "two\nlines, and a comma"])[np.arange(n) % 7 // 6]
    table = pd.DataFrame({"x": np.arange(n), "note": notes, "sick": np.arange(n) % 2, "hospital": np.arange(n) % 3})
    data = read(save(table))
    assert len(data.y) + len(data.y_test) == n
    assert data.x[:, 2].sum() + data.x_test[:, 2].sum() == (notes != "plain").sum()


def test_packed_files_are_read_and_name_their_client(save, tmp_path):
    assert read(save(frame(), "t.csv.gz")).fingerprint() == read(save(frame())).fingerprint()
    place = tmp_path / "each"
    place.mkdir()
    for name in ("bern", "rome"):
        (place / f"{name}.csv.gz").write_bytes(gzip.compress(frame().to_csv(index=False).encode()))
    assert load({"kind": "table", "path": str(place), "label": "sick"}).clients == ("bern", "rome")


@pytest.mark.parametrize("name", ["t.parquet", "t.feather"])
def test_bytes_are_refused_only_if_they_are_used(save, name):
    path = save(frame(image=[b"\x89PNG"] * ROWS), name)
    with pytest.raises(ArnoError, match=r"^column image in .*: it holds bytes; leave it out: data\.skip=\[image\]$"):
        read(path)
    assert read(path, skip=["image"]).features == ("age",)


def test_categories_of_pandas_and_their_order(save):
    table = frame(code=[3, 1, 2] * 20, stage=pd.Categorical(["low", "high", None] * 20, ["low", "mid", "high"], True))
    data = read(save(table.astype({"code": "category", "sick": "category", "hospital": "category"}), "t.feather"))
    assert data.features == ("age", "code=1", "code=2", "code=3", "stage=low", "stage=high")
    assert data.classes == ("0", "1")
    marked = frame(stage=pd.Categorical(["?", "a"] * 30))
    assert read(save(marked, "t.feather")).features == ("age", "stage=a")
