"""A user's table: rows with features, a label and, by a column or by the file, the client that each row belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ...core.seeds import numpy_stream
from ...errors import ArnoError
from ..cell_values import is_text, valued
from ..columns import Bools, coded, inputs
from ..dataset import Dataset, Ints, datasets, held_inside, shortened, strata_of, stratified
from ..images import Array
from ..labels import label_note, targets
from ..tables import FILE, Read, joined, kind_of, several, stem
from ..tables import read as read_files

CLIENT_RULE = "a client has a name or a whole number"
TRIES = "data.path=heart.csv data.label=target data.client=hospital"


def names_clients(settings: Mapping[str, Any]) -> bool:
    """Whether a table with these settings names its clients: by a column, or with one file per client."""
    path = texts(settings.get("path"))
    return settings.get("client") is not None or (path is not None and several(path))


def texts(value: Any) -> Any:
    """A name, or names, as text: YAML reads the column 2 and the folder 2021 as numbers."""
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return None if value is None else str(value)


@datasets.register("table", names_clients=names_clients)
def table(
    *,
    path: str | list[str] | None = None,
    label: str | list[str] | None = None,
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
    (a regression), unless there are only two whole ones, such as 0.0 and 1.0. Several columns of 0 and 1 are a
    multilabel task, several columns of numbers a regression with an output for each. Empty cells, `?`, NA and NaN are
    missing values. What was inferred is printed and recorded.

    Args:
        path: a file, a list of files, a pattern (`data/*.csv`) or a folder. If there are several files and no
            data.client, every file is a client, with the name of the file.
        label: the column to predict, or a list of columns.
        client: the column with the name of the client of each row.
        features: the columns to learn from; by default all others.
        skip: columns that are no features.
        categories: columns of numbers that are categories, such as codes of a diagnosis.
        missing: mean (missing numbers become the mean of the column), drop (leave out the row) or error.
        numbers: true: the label is a number (regression); false: its values are classes.
        test: the share of the rows for testing, in proportion inside each client; the same for every seed.
        test_path: a table with the test rows, in place of `test`.
        min_rows: leave out clients with fewer rows. By default a client with a single row is an error.
    """
    path, test_path, label = texts(path), texts(test_path), texts(label)
    labels = [label] if isinstance(label, str) else list(label or ())
    if path is None or not labels:
        lacks = "the file is not named" if path is None else "the column to predict is not named"
        raise ArnoError("data=table", lacks, f"write data=table {TRIES}")
    roles = Roles(labels, client, features, skip or [], categories or [])
    exact = (*labels, client, *(categories or ()))
    read = read_files("data.path", path, client is None and several(path), exact)
    roles = roles.of(read.table, read.by_file)
    tested = None if test_path is None else read_files("data.test_path", test_path, False, exact)
    if tested is not None:
        _refuse_tests(read, tested, roles)
    made = Table(read, tested, roles, missing)
    del read, tested  # frees the memory that `made` does not use
    return made.clean(min_rows).dataset(numbers, test)


@dataclass(frozen=True)
class Roles:
    """The roles of the columns. categories: columns of numbers that are categories."""

    labels: list[str]
    client: str | None
    features: list[str] | None
    skip: list[str]
    categories: list[str]

    @property
    def said(self) -> str:
        """The names of the labels."""
        return shortened(self.labels)

    def of(self, table: pa.Table, by_file: bool) -> Roles:
        """The roles for the columns of a table, with the names of all features; refuses names that are not columns."""
        known = [name for name in table.column_names if name != FILE]
        for setting, names in (
            ("data.label", self.labels),
            ("data.client", [] if self.client is None else [self.client]),
            ("data.features", self.features or []),
            ("data.skip", self.skip),
            ("data.categories", self.categories),
        ):
            for name in names:
                if name not in known:
                    near = get_close_matches(name, known, n=1, cutoff=0.4)
                    remedy = f"did you mean {near[0]}?" if near else "the first line of the file names the columns"
                    if len(known) == 1:
                        remedy = "separate the columns with commas, semicolons, tabs or |"
                    raise ArnoError(f"{setting} = {name}", f"the columns are {shortened(known, 20)}", remedy)
        if self.client in self.labels:
            raise ArnoError(f"data.client = {self.client}", "it is the label", "choose another column for one of them")
        if twice := next((name for name in self.labels if self.labels.count(name) > 1), None):
            raise ArnoError(f"data.label: {twice}", "it is named twice", "name it once")
        for setting, chosen in (("data.features", self.features or []), ("data.skip", self.skip)):
            for name in self.labels:
                if name in chosen:
                    raise ArnoError(f"{setting}: {name}", "it is the label", f"remove it from {setting}")
        if both := [name for name in self.skip if name in (self.features or [])]:
            raise ArnoError(f"data.skip: {both[0]}", "it is in data.features too", "name it in one of them")
        others = [n for n in known if n not in (*self.labels, self.client, *self.skip) and not nameless(n)]
        client = FILE if by_file else self.client
        features = others if self.features is None else list(dict.fromkeys(self.features))
        return Roles(self.labels, client, features, [], self.categories)


def _refuse_tests(read: Read, tested: Read, roles: Roles) -> None:
    """Refuse a test table that is also the training table, or that has not all columns that are used."""
    if twice := {one.resolve() for one in read.files} & {one.resolve() for one in tested.files}:
        rule = "its rows are also training rows (data.path)"
        raise ArnoError(f"data.test_path = {min(twice)}", rule, "name another file, or leave data.test_path out")
    needed = [*roles.labels, *(roles.features or [])]
    if lacks := [name for name in needed if name not in tested.table.column_names]:
        rule = f"it lacks the column{'s' * (len(lacks) > 1)} {shortened(lacks)} of {read.files[0].name}"
        raise ArnoError(f"data.test_path = {tested.files[0]}", rule, "give both tables the same columns")


def nameless(column: str) -> bool:
    """Whether a column has no name, or the name that pandas gives to a column with the numbers of the rows."""
    return re.fullmatch(r"|Unnamed: \d+|__index_level_\d+__", column) is not None


def _refuse_bytes(table: pa.Table, files: Sequence[Path], features: Sequence[str]) -> None:
    """Refuse columns of bytes. Columns of CSV files become bytes if a text is not UTF-8."""
    for one in table.schema:
        if pa.types.is_binary(one.type) or pa.types.is_large_binary(one.type):
            rule, remedy = "it is no UTF-8 text", "save the file as UTF-8"
            if kind_of(files[0]) != "csv":
                rule = "it holds bytes"
                remedy = f"leave it out: data.skip=[{one.name}]" if one.name in features else "convert it to text"
            raise ArnoError(f"column {one.name} in {files[0]}", rule, remedy)


def fractional(names: Sequence[str]) -> bool:
    """Whether a number among the names of clients has a fraction.

    >>> fractional(["1", "2"]), fractional(["1.5", "2"])
    (False, True)
    """
    return not all(name.lstrip("-").isdecimal() for name in names)


class Table:
    """Rows that become a data set: training rows first, then the rows of `data.test_path`."""

    def __init__(self, read: Read, tested: Read | None, roles: Roles, missing: str) -> None:
        if missing not in ("mean", "drop", "error"):
            raise ArnoError(f"missing = {missing!r}", "it must be mean, drop or error", "try missing='mean'")
        self.roles, self.missing, self.files, self.what = roles, missing, read.files, read.what
        self.features = roles.features or []
        used = [*roles.labels, *self.features]
        for name in (name for name in used if name in read.mixed and name not in roles.categories):
            remedy = "write the same kind of values in all files"
            remedy += "" if name in roles.labels else f"; if they are categories: data.categories=[{name}]"
            raise ArnoError(f"column {name}", read.mixed[name], remedy)
        self.parts = [one for some in (read, tested) if some for one in zip(some.files, some.lengths, strict=False)]
        client = [] if roles.client is None or roles.client in used else [roles.client]
        tables = [read.table.select([*used, *client])]
        if tested is not None:
            extra = tested.table.select(used)
            for name in client:
                extra = extra.append_column(name, pa.nulls(len(extra), read.table[name].type))
            tables.append(extra)
        self.table = joined(tables)
        _refuse_bytes(self.table, read.files, self.features)
        self.given = len(read.table)
        self.rows: Ints = np.arange(len(self.table))
        self.read_rows = len(self.rows)
        self.notes = [f"rows: {self.given:,} of {shortened([file.name for file in read.files])}"]
        self.tested = tested is not None
        named = tested is not None and roles.client in tested.table.column_names
        self.test_clients = tested.table[roles.client] if tested is not None and named else None
        lost = [f"column {i + 1}" for i, name in enumerate(read.table.column_names) if nameless(name)]
        if lost and not any(map(nameless, self.features)):
            self.notes.append(f"left out, no name: {shortened(lost)}")

    def place(self, row: int) -> str:
        """The place of a row in its file, in words; rows that were left out count."""
        row = int(self.rows[row])
        for file, length in self.parts if len(self.parts) > 1 else ():
            if row < length:
                return f"row {row + 1} of {file.name}"
            row -= length
        return f"row {row + 1}"

    @property
    def training(self) -> Bools:
        """Which rows do not come from `data.test_path`."""
        return self.rows < self.given

    def clean(self, min_rows: int | None) -> Table:
        """Leave out rows without label or client, rows with missing values (if asked), and clients with few rows."""
        self._keep(~self._missing(*self.roles.labels), f"no {' or '.join(self.roles.labels)}")
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
        if (left := int(self.training.sum())) < 2:
            rule = "a single row is left" if left else "no rows are left"
            raise ArnoError(self.what, rule, "give more rows" if left else "look at data.missing and data.label")
        if self.roles.client is not None:
            self._refuse_small(min_rows)
        return self

    def _missing(self, *names: str) -> Bools:
        gaps = [pc.is_null(self.table[name], nan_is_null=True).to_numpy(zero_copy_only=False) for name in names]
        either: Bools = np.logical_or.reduce(gaps)
        return either

    def _keep(self, kept: Bools, why: str) -> None:
        """Keep some rows, and note why the others were left out."""
        if kept.all():
            return
        self.notes.append(f"left out: {int((~kept).sum()):,} rows, {why}")
        before = self._client_names()
        self.table, self.rows = self.table.filter(pa.array(kept)), self.rows[kept]
        if lost := sorted(before - self._client_names()):
            self.notes.append(f"left out: clients without other rows: {shortened(lost)}")

    def _client_names(self) -> set[str]:
        """The names of the clients with rows."""
        return (
            set()
            if self.roles.client is None
            else {*coded(pa.chunked_array([self.table[self.roles.client].unique()]))[1]}
        )

    def _refuse_small(self, min_rows: int | None) -> None:
        """Leave out clients with fewer than `min_rows` rows; refuse clients with a single row."""
        if min_rows is not None and min_rows < 1:
            raise ArnoError(f"data.min_rows = {min_rows}", "it must be at least 1", "try data.min_rows=2")
        column = self.table[str(self.roles.client)]
        codes, names = coded(column)
        if pa.types.is_floating(column.type) and fractional(names):
            rule = f"its values are numbers with fractions, and {CLIENT_RULE}"
            raise ArnoError(f"data.client = {self.roles.client}", rule, "choose another column")
        sizes = np.bincount(codes[codes >= 0], minlength=len(names))
        if min_rows is None and sizes.max(initial=0) == 1:
            rule = f"each of the {len(names):,} rows has another client; it looks like an identifier"
            raise ArnoError(f"data.client = {self.roles.client}", rule, "choose another column")
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
        """The data set. If there are no test rows, a share of the rows is split off."""
        y, class_names = self._targets(as_numbers)
        owner, clients = self._clients()
        held = ~self.training if self.tested else self._held_out(y, owner, test)
        if class_names and self.tested and y.ndim == 1 and len(lost := np.setdiff1d(y[held], y[~held])):
            rule = "the training rows have no such class"
            raise ArnoError(
                f"test rows with {self.roles.said} = {class_names[lost[0]]}", rule, "correct data.test_path"
            )
        if self.roles.client in self.features and self.tested:
            rule = "data.test_path has no clients"
            raise ArnoError(f"data.features: {self.roles.client}", rule, "remove it from data.features")
        columns = {name: self._feature(name) for name in self.features}
        self.table = self.table.select([])  # `inputs` frees the columns one after another
        made = inputs(columns, self.roles.categories, ~held, self.place)
        notes = [*self.notes, label_note(self.roles.labels, y, class_names, as_numbers), *made.notes]
        kept = np.flatnonzero(~held)
        if clients:
            counts = np.bincount(owner, minlength=len(clients)) if not self.tested else np.bincount(owner[kept])
            said = shortened([f"{name} {count:,}" for name, count in zip(clients, counts, strict=True)], 20)
            notes.append(f"clients: {len(clients):,}, with rows: {said}")
        notes.append(f"to train and validate {len(kept):,}, to test {int(held.sum()):,} rows")
        wanted, client_test = torch.from_numpy(y), self._clients_of_tests(owner, clients, held)
        if client_test is not None and (others := int((client_test < 0).sum())):
            notes.append(f"{others:,} test rows are of no client that has training rows; no client is scored on them")
        return Dataset(
            stem(self.files[0]) if len(self.files) == 1 else self.files[0].resolve().parent.name,
            torch.from_numpy(made.x),
            wanted[kept],
            torch.from_numpy(made.x_test),
            wanted[held],
            class_names,
            made.mean,
            made.std,
            scale=1.0,
            client=torch.from_numpy(owner[kept]) if clients else None,
            client_test=client_test,
            clients=clients,
            rows=torch.from_numpy(self.rows[kept]),
            given=self.given,
            features=made.names,
            categories=made.categories,
            notes=tuple(" ".join(line.split()) for line in notes),  # a name may have a line break in it
        )

    def _feature(self, name: str) -> pa.ChunkedArray:
        """A column. If text occurs only in rows that were left out, the column is converted to numbers."""
        column = self.table[name]
        if len(self.rows) == self.read_rows or name in self.roles.categories or not is_text(column.type):
            return column
        return valued(column)

    def _targets(self, as_numbers: bool | None) -> tuple[Array, tuple[str, ...]]:
        """Class numbers and names, or numbers and no names."""
        columns = {name: self.table[name] for name in self.roles.labels}
        return targets(columns, as_numbers, self.place)

    def _clients(self) -> tuple[Ints, tuple[str, ...]]:
        """The client of each row (−1 for rows of `data.test_path`), and the names of the clients."""
        if self.roles.client is None:
            return np.zeros(len(self.table), dtype=np.int64), ()
        owner, names = coded(self.table[self.roles.client])
        return owner, tuple(names)

    def _clients_of_tests(self, owner: Ints, clients: tuple[str, ...], held: Bools) -> torch.Tensor | None:
        """The client of each test row, −1 if it has no training rows; None if the test rows name no clients."""
        if not clients or (self.tested and self.test_clients is None):
            return None
        if not self.tested:
            return torch.from_numpy(owner[held])
        codes, names = coded(self.test_clients)
        numbers = {name: k for k, name in enumerate(clients)}
        known = np.array([*(numbers.get(name, -1) for name in names), -1])
        return torch.from_numpy(known[codes][self.rows[held] - self.given])

    def _held_out(self, y: Array, owner: Ints, test: float) -> Bools:
        """Which rows are test rows: in proportion inside each client, the same for every seed."""
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
