"""A user's table: rows with features, a label and, in a column or by file, the client that each row belongs to."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ...core.seeds import numpy_stream
from ...errors import ArnoError
from ...limits import place, regular
from ..columns import Bools, classes, coded, inputs, is_number, is_text, numbers
from ..dataset import Dataset, Ints, held_inside, shortened, source, strata_of, stratified
from ..images import Array
from ..parquet import refuse_size

#: How a file is read, by its suffix.
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
}
#: The name of the added column with the client of a row, where every file is a client. No column has this name.
FILE = "\0client"
TRIES = "data.path=heart.csv data.label=target data.client=hospital"


def names_clients(settings: Mapping[str, Any]) -> bool:
    """Whether a table with these settings names its clients: by a column, or with one file per client."""
    path = settings.get("path")
    return settings.get("client") is not None or (path is not None and _several(path))


def _several(path: object) -> bool:
    """Whether a path is a list, a folder or a pattern; a file may have brackets in its name."""
    return not isinstance(path, str) or place(path).is_dir() or (has_magic(path) and not place(path).exists())


@source("table", names_clients=names_clients)
def table(
    *,
    path: str | list[str] | None = None,
    label: str | None = None,
    client: str | None = None,
    features: list[str] | None = None,
    skip: list[str] | None = None,
    categories: list[str] | None = None,
    missing: Literal["mean", "drop", "error"] = "mean",
    numbers: bool | None = None,
    test: float = 0.2,
    test_path: str | list[str] | None = None,
    min_rows: int | None = None,
) -> Dataset:
    """A table (CSV, TSV, Parquet, Feather) with a column for the label and, if there is one, for the client.

    Text and true/false become categories, an input of 0 or 1 for each. Numbers are scaled with the mean and deviation
    of the training rows. Labels that are integers, text or true/false are classes; floating-point labels are numbers
    (a regression). Empty cells, `?`, NA and NaN are missing values. What was inferred is printed and recorded.

    Args:
        path: a file, a list of files, a pattern (`data/*.csv`) or a folder. If there are several files and no
            data.client, every file is a client, with the name of the file.
        label: the column to predict.
        client: the column with the name of the client of each row.
        features: the columns to learn from; by default all others.
        skip: columns that are no features.
        categories: columns of numbers that are categories, as codes of a diagnosis.
        missing: mean (missing numbers become the mean of the column), drop (leave out the row) or error.
        numbers: true: the label is a number (regression); false: its values are classes.
        test: the share of the rows for testing, in proportion inside each client; the same for every seed.
        test_path: a table with the test rows, in place of `test`.
        min_rows: leave out clients with fewer rows. By default a client with a single row is an error.
    """
    if path is None or label is None:
        lacks = "the file is not named" if path is None else "the column to predict is not named"
        raise ArnoError("data=table", lacks, f"write data=table {TRIES}")
    roles = Roles(label, client, features, skip or [], categories or [])
    exact = (label, client, *(categories or ()))
    read = _read("data.path", path, client is None and _several(path), exact)
    roles = roles.of(read.table, read.by_file)
    tested = None if test_path is None else _read("data.test_path", test_path, False, exact)
    if tested is not None:
        _refuse_other_columns(read, tested, roles)
    made = Table(read, tested, roles, missing)
    del read, tested  # what `made` does not use is freed
    return made.clean(min_rows).dataset(numbers, test)


@dataclass(frozen=True)
class Roles:
    """What the columns are for."""

    label: str
    client: str | None
    features: list[str] | None
    skip: list[str]
    categories: list[str]

    def of(self, table: pa.Table, by_file: bool) -> Roles:
        """The same for the columns of a table, with all features named; refuses names that are no columns."""
        known = [name for name in table.column_names if name != FILE]
        for setting, names in (
            ("data.label", [self.label]),
            ("data.client", [] if self.client is None else [self.client]),
            ("data.features", self.features or []),
            ("data.skip", self.skip),
            ("data.categories", self.categories),
        ):
            for name in names:
                if name not in known:
                    near = get_close_matches(name, known, n=1, cutoff=0.4)
                    remedy = f"did you mean {near[0]}?" if near else "check the first line of the file"
                    raise ArnoError(f"{setting} = {name}", f"the columns are {shortened(known, 20)}", remedy)
        if self.client == self.label:
            raise ArnoError(f"data.client = {self.client}", "it is the label", "choose another column for one of them")
        if self.label in (self.features or ()):
            raise ArnoError(f"data.features: {self.label}", "it is the label", "remove it from data.features")
        others = [name for name in known if name not in (self.label, self.client, *self.skip)]
        client = FILE if by_file else self.client
        features = others if self.features is None else list(dict.fromkeys(self.features))
        return Roles(self.label, client, features, [], self.categories)


@dataclass(frozen=True)
class Read:
    """The rows of one or several files. by_file: whether the column FILE says from which file a row is."""

    setting: str
    table: pa.Table
    files: list[Path]
    by_file: bool


def _read(setting: str, path: str | Sequence[str], by_file: bool, exact: Container[str]) -> Read:
    """All rows of the files. exact: columns whose numbers are names and are not rounded."""
    files = _files(setting, path)
    stems = [file.stem for file in files]
    if by_file and len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        rule = f"two files are called {twice}, and every file is a client"
        raise ArnoError(f"{setting} = {path}", rule, "rename one, or name a column: data.client=hospital")
    tables = [_load(setting, file, exact) for file in files]
    for file, table in zip(files, tables, strict=True):
        _refuse_columns(files[0], tables[0].column_names, file, table.column_names)
    tables = [table.select(tables[0].column_names) for table in tables]
    if by_file:
        tables = [
            table.append_column(FILE, pa.repeat(stem, len(table))) for stem, table in zip(stems, tables, strict=True)
        ]
    return Read(setting, _joined(tables), files, by_file)


def _files(setting: str, path: str | Sequence[str]) -> list[Path]:
    """The files that a setting names, sorted if it is a folder or a pattern."""
    if not isinstance(path, str):
        files = [place(one) for one in path]
    elif (there := place(path)).is_dir():
        files = sorted(file for file in there.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != ".")
    elif _several(path):
        files = sorted(map(Path, glob(str(there))))
    else:
        files = [there]
    if not files:
        rule = f"it has no file of a known kind ({', '.join(SUFFIXES)})"
        raise ArnoError(f"{setting} = {path}", rule, "name a file")
    for file in files:
        if regular(file, f"{setting} =").suffix.lower() not in SUFFIXES:
            rule = f"its kind is unknown; known are {', '.join(SUFFIXES)}"
            raise ArnoError(f"{setting} = {file}", rule, "rename or convert the file")
    return files


def _load(setting: str, file: Path, exact: Container[str]) -> pa.Table:
    """The rows of a file, typed; Parquet and Feather files are mapped into memory."""
    kind = SUFFIXES[file.suffix.lower()]
    try:
        if kind == "parquet":
            import pyarrow.parquet as pq

            opened = pq.ParquetFile(file, memory_map=True)  # `read_table` would import pandas
            refuse_size(file, opened.metadata)
            loaded = opened.read()
        elif kind == "feather":
            from pyarrow import feather

            loaded = feather.read_table(file, memory_map=True)
        else:
            loaded = _load_csv(file, exact)
        loaded.validate(full=True)  # a damaged file may point outside its own buffers
        names = loaded.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise ArnoError(f"{setting} = {file}", f"it cannot be read as {kind}: {why}", "is the file damaged?") from error
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ArnoError(f"{setting} = {file}", f"two columns are called {twice!r}", "rename one of them")
    if not len(loaded):
        raise ArnoError(f"{setting} = {file}", "it has no rows", "is this the right file?")
    return pa.table([without_marks(file, name, loaded[name]) for name in names], names=names)


def _load_csv(file: Path, exact: Container[str]) -> pa.Table:
    """A CSV file; the first line has the names, separated by commas, semicolons or tabs.

    The types follow from the first block of rows, and numbers are read as float32, block after block, which takes a
    fraction of the memory. If a later row does not fit the types, the whole file is read to find the types.
    """
    from pyarrow import csv

    with file.open("rb") as opened:
        first = opened.readline(2**20)
    separator = max((",", ";", "\t"), key=lambda mark: first.count(mark.encode()))
    convert = csv.ConvertOptions(null_values=marks(), strings_can_be_null=True)
    parse = csv.ParseOptions(delimiter=separator)
    try:
        with csv.open_csv(str(file), parse_options=parse, convert_options=convert) as first_block:
            schema = first_block.schema
        if len(set(schema.names)) == len(schema.names):
            kinds = {one.name: pa.float32() for one in schema if is_number(one.type) and one.name not in exact}
            convert.column_types = {one.name: one.type for one in schema} | kinds
        with csv.open_csv(str(file), parse_options=parse, convert_options=convert) as blocks:
            return blocks.read_all()
    except pa.ArrowInvalid:
        convert.column_types = {}
        return csv.read_csv(str(file), parse_options=parse, convert_options=convert)


def marks() -> list[str]:
    """The texts that stand for a missing value."""
    from pyarrow import csv

    return [*csv.ConvertOptions().null_values, "?"]


def without_marks(file: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text with missing values in place of marks; as numbers if only numbers are left."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        raise ArnoError(f"column {name} in {file}", "it is no UTF-8 text", "save the file as UTF-8")
    if not is_text(column.type) or pa.types.is_dictionary(column.type):
        return column
    text = pc.utf8_trim_whitespace(column)
    text = pc.if_else(pc.is_in(text, value_set=pa.array(marks(), text.type)), pa.scalar(None, text.type), text)
    if text.null_count == len(text):
        return text
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        return text


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Tables with the same columns below each other; a column with text in one file is text in all."""
    if len(tables) == 1:
        return tables[0]
    for name in tables[0].column_names:
        kinds = [table[name].type for table in tables]
        if len({*kinds}) > 1 and (any(map(is_text, kinds)) or any(map(pa.types.is_boolean, kinds))):
            at = tables[0].column_names.index(name)
            tables = [table.set_column(at, name, table[name].cast(pa.string())) for table in tables]
    return pa.concat_tables(tables, promote_options="permissive")


def _refuse_columns(first: Path, known: list[str], file: Path, names: list[str]) -> None:
    """Refuse a file whose columns are not those of the first file."""
    lacks, extra = [n for n in known if n not in names], [n for n in names if n not in known]
    if lacks or extra:
        said = [f"{word} {shortened(some)}" for word, some in (("lacks", lacks), ("has also", extra)) if some]
        raise ArnoError(
            f"{file}: it {' and '.join(said)}", f"{first.name} has other columns", "give all files the same"
        )


def _refuse_other_columns(read: Read, tested: Read, roles: Roles) -> None:
    """Refuse a test table that lacks a column that is used."""
    needed = [roles.label, *(roles.features or [])]
    if lacks := [name for name in needed if name not in tested.table.column_names]:
        rule = f"it lacks the column{'s' * (len(lacks) > 1)} {shortened(lacks)} of {read.files[0].name}"
        raise ArnoError(f"data.test_path = {tested.files[0]}", rule, "give both tables the same columns")


class Table:
    """Rows on the way to a data set: training rows first, then the rows of `data.test_path`."""

    def __init__(self, read: Read, tested: Read | None, roles: Roles, missing: str) -> None:
        self.roles, self.missing, self.files = roles, missing, read.files
        self.features = roles.features or []
        used = [roles.label, *self.features]
        client = [] if roles.client is None or roles.client in used else [roles.client]
        tables = [read.table.select([*used, *client])]
        if tested is not None:
            extra = tested.table.select(used)
            for name in client:
                extra = extra.append_column(name, pa.nulls(len(extra), read.table[name].type))
            tables.append(extra)
        self.table = _joined(tables)
        self.given = len(read.table)
        self.rows: Ints = np.arange(len(self.table))
        self.notes = [f"rows: {self.given:,} of {shortened([file.name for file in read.files])}"]
        self.tested = tested is not None

    @property
    def training(self) -> Bools:
        """Which rows are no rows of `data.test_path`."""
        return self.rows < self.given

    def clean(self, min_rows: int | None) -> Table:
        """Leave out rows without label or client, rows with missing values if asked, and clients with few rows."""
        self._keep(~self._missing(self.roles.label), f"no {self.roles.label}")
        if self.roles.client is not None:
            self._keep(~self._missing(self.roles.client) | ~self.training, f"no {self.roles.client}")
        if self.missing != "mean":
            lacking = {name: self._missing(name) for name in self.features}
            any_missing = np.logical_or.reduce(list(lacking.values()))
            if self.missing == "error" and any_missing.any():
                name = next(name for name, gaps in lacking.items() if gaps.any())
                rule = f"it has {int(lacking[name].sum()):,} missing values"
                raise ArnoError(f"column {name}", rule, "use data.missing=mean or data.missing=drop")
            self._keep(~any_missing, "missing values (data.missing=drop)")
        if not self.training.any():
            raise ArnoError(f"data.path = {self.files[0]}", "no rows are left", "look at data.missing and data.label")
        if self.roles.client is not None:
            self._refuse_small(min_rows)
        return self

    def _missing(self, name: str) -> Bools:
        gaps: Bools = pc.is_null(self.table[name], nan_is_null=True).to_numpy(zero_copy_only=False)
        return gaps

    def _keep(self, kept: Bools, why: str) -> None:
        """Leave out rows and write down why."""
        if kept.all():
            return
        self.notes.append(f"left out: {int((~kept).sum()):,} rows, {why}")
        self.table, self.rows = self.table.filter(pa.array(kept)), self.rows[kept]

    def _refuse_small(self, min_rows: int | None) -> None:
        """Leave out clients with fewer than `min_rows` rows; refuse clients with a single row."""
        codes, names = coded(self.table[str(self.roles.client)])
        sizes = np.bincount(codes[codes >= 0], minlength=len(names))
        few = np.flatnonzero(sizes < (2 if min_rows is None else min_rows))
        if not len(few):
            return
        if min_rows is None:
            others = f" (and {len(few) - 1:,} others)" if len(few) > 1 else ""
            rule = "it has a single row" + ("" if self.tested else ", and none would be left for testing")
            remedy = "data.min_rows=2 leaves such clients out, data.min_rows=1 keeps them"
            raise ArnoError(f"client {names[few[0]]!r}{others}", rule, remedy)
        if len(few) == len(names):
            rule = f"the largest client has {int(sizes.max()):,} rows"
            raise ArnoError(f"data.min_rows = {min_rows}", rule, "use a smaller number")
        self._keep(~np.isin(codes, few), f"of {len(few):,} clients with fewer than {min_rows} rows")

    def dataset(self, as_numbers: bool | None, test: float) -> Dataset:
        """The data set, with test rows split off if there are none."""
        y, class_names = self._targets(as_numbers)
        owner, clients = self._clients()
        held = ~self.training if self.tested else self._held_out(y, owner, test)
        if class_names and self.tested and len(lost := np.setdiff1d(y[held], y[~held])):
            rule = "the training rows have no such class"
            raise ArnoError(
                f"test rows with {self.roles.label} = {class_names[lost[0]]}", rule, "correct data.test_path"
            )
        if self.roles.client in self.features and self.tested:
            rule = "data.test_path has no clients"
            raise ArnoError(f"data.features: {self.roles.client}", rule, "remove it from data.features")
        columns = {name: self.table[name] for name in self.features}
        self.table = self.table.select([])  # `inputs` frees the columns one after another
        made = inputs(columns, self.roles.categories, ~held)
        notes = [*self.notes, self._label_note(class_names, as_numbers), *made.notes]
        kept = np.flatnonzero(~held)
        if clients:
            counts = np.bincount(owner, minlength=len(clients)) if not self.tested else np.bincount(owner[kept])
            said = shortened([f"{name} {count:,}" for name, count in zip(clients, counts, strict=True)], 20)
            notes.append(f"clients: {len(clients):,}, with rows: {said}")
        notes.append(f"to train and validate {len(kept):,}, to test {int(held.sum()):,} rows")
        targets = torch.from_numpy(y)
        return Dataset(
            self.files[0].stem if len(self.files) == 1 else self.files[0].resolve().parent.name,
            torch.from_numpy(made.x),
            targets[kept],
            torch.from_numpy(made.x_test),
            targets[held],
            class_names,
            made.mean,
            made.std,
            scale=1.0,
            client=torch.from_numpy(owner[kept]) if clients else None,
            clients=clients,
            rows=torch.from_numpy(self.rows[kept]),
            given=self.given,
            features=made.names,
            notes=tuple(notes),
        )

    def _targets(self, as_numbers: bool | None) -> tuple[Array, tuple[str, ...]]:
        """Class numbers and names, or numbers and no names."""
        column, name = self.table[self.roles.label], self.roles.label
        if as_numbers is None:
            as_numbers = is_number(column.type) and not pa.types.is_integer(column.type)
        if as_numbers:
            return numbers(name, column, "data.label ="), ()
        if not (is_number(column.type) or is_text(column.type) or pa.types.is_boolean(column.type)):
            raise ArnoError(f"data.label = {name}: values of type {column.type}", "this is no label", "convert it")
        return classes(name, column)

    def _label_note(self, names: tuple[str, ...], as_numbers: bool | None) -> str:
        other = "" if as_numbers is not None else f" (data.numbers={str(bool(names)).lower()} if this is wrong)"
        if not names:
            return f"label {self.roles.label}: numbers, a regression{other}"
        return f"label {self.roles.label}: {len(names)} classes: {shortened(names, 12)}{other}"

    def _clients(self) -> tuple[Ints, tuple[str, ...]]:
        """The client of each row (−1 for rows of `data.test_path`) and the names."""
        if self.roles.client is None:
            return np.zeros(len(self.table), dtype=np.int64), ()
        owner, names = coded(self.table[self.roles.client])
        return owner, tuple(names)

    def _held_out(self, y: Array, owner: Ints, test: float) -> Bools:
        """The test rows: in proportion inside each client, the same for every seed."""
        if not 0 < test < 1 or len(y) < 2:
            rule = f"it must be a share of the {len(y)} rows, above 0 and below 1"
            raise ArnoError(f"data.test = {test}", rule, "try data.test=0.2, or name test rows with data.test_path")
        strata, random = strata_of(torch.from_numpy(y)), numpy_stream(0, "test")
        count = min(max(1, round(test * len(y))), len(y) - 1)
        if self.roles.client is not None:
            return held_inside(owner, strata, count, random)
        held = np.zeros(len(y), dtype=bool)
        held[stratified(strata, count, random)] = True
        return held
