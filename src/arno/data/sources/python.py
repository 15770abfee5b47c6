"""Data of a Python program: `arno.run(data=arno.Data(x, y, client=ids))`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from ...errors import ArnoError
from ...pictures.card import card
from ..arrays import from_arrays
from ..cell_values import valued
from ..columns import coded, in_order, many
from ..dataset import Dataset, as_labels, datasets, load, shortened
from ..images import Array
from ..labels import label_note, targets
from ..python_columns import Rows, array, rows_of
from ..tables import Read
from .local import samples_of
from .table import CLIENT_RULE, Roles, Table, fractional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The data sets that this process has made, by fingerprint.
_MADE: dict[str, Dataset] = {}
REMEDY = "make the same arno.Data(x, y, …) in this process first, or give it path='mine.parquet'"
#: Settings of a table that `Data` takes, and settings of every data source that `Data` passes to the run.
TABLE, COMMON = ("missing", "categories", "numbers", "min_rows", "skip"), ("val", "client_val", "client_test", "limit")


def _names_clients(settings: Mapping[str, Any]) -> bool:
    made = _MADE.get(str(settings.get("fingerprint")))
    return made is not None and made.client is not None


@datasets.register("python", names_clients=_names_clients)
def python(*, fingerprint: str | None = None, numbers: bool | None = None) -> Dataset:
    """Data that a Python program gave: `arno.run(data=arno.Data(x, y, client=ids))`.

    Args:
        fingerprint: of the data; a run can continue only in a process that has made the same data.
        numbers: true: the targets are numbers (regression); false: they are classes. By default as they were given.
    """
    if fingerprint is None:
        raise ArnoError("data=python", "these data are given in Python", "write arno.run(data=arno.Data(x, y))")
    if fingerprint not in _MADE:
        raise ArnoError(f"data.fingerprint = {fingerprint}", "these data are not in this process", REMEDY)
    made = _MADE[fingerprint]
    if numbers is None or numbers == (not made.classes):
        return made
    return _as_numbers(made) if numbers else _as_classes(made)


def is_given(fingerprint: str | None) -> bool:
    """Whether this process has made the data of a configuration."""
    return fingerprint in _MADE


class Data(Mapping[str, Any]):
    """Data of a Python program as the `data` of a run; a mapping of the settings that name these data.

    >>> data = Data(np.arange(40.0).reshape(20, 2), [0, 1] * 10, client=["a"] * 10 + ["b"] * 10)
    >>> data["kind"], data.dataset.clients, data.dataset.classes
    ('python', ('a', 'b'), ('0', '1'))

    x: a pandas DataFrame or a table of Arrow; numbers `[n, features]` or images `[n, C, H, W]` (NumPy, torch, lists); a
        Bunch of scikit-learn; a map-style data set of torch or a list with samples (x, y), (x, y, client) or
        dictionaries; a Hugging Face data set; a mapping from the name of each client to its frame, data set or
        pair (x, y); the path of a table. All samples are read once and kept in memory.
    y: the target of each sample: integers, text or true/false are classes, floating-point values are numbers. Several
        columns of 0 and 1 are labels of a multilabel task, several columns of numbers a regression.
    label: in place of y, the name (or a list of names) of the columns to predict.
    client: the name of the client of each sample, or the name of the column with it.
    features: the columns to learn from; by default all others.
    x_test, y_test, client_of_test: samples for testing and, if known, their clients; without them the share `test` is
        split off inside each client.
    path: also write the table to this Parquet file. Runs and later processes then read the file.
    settings: for a table `missing`, `categories`, `numbers`, `min_rows` and `skip`, with the meanings that they have
        for `data=table`; for all data `val`, `client_val`, `client_test` and `limit`.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        label: str | list[str] | None = None,
        client: Any = None,
        features: list[str] | None = None,
        x_test: Any = None,
        y_test: Any = None,
        client_of_test: Any = None,
        test: float = 0.2,
        name: str = "data",
        path: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self._own: Dataset | None = None
        if odd := sorted(settings.keys() - {*TABLE, *COMMON}):
            raise ArnoError(f"arno.Data: {odd[0]}", "it is no setting", "see help(arno.Data)")
        y, label = (None, y) if isinstance(y, str) else (y, label)
        common = {key: settings.pop(key) for key in COMMON if key in settings}
        features = [features] if isinstance(features, str) else features
        settings |= {key: [settings[key]] for key in ("categories", "skip") if isinstance(settings.get(key), str)}
        if isinstance(test, bool) or not isinstance(test, int | float):
            raise ArnoError(f"arno.Data: test = {test!r}", "it is a share of the rows, a number", "try test=0.2")
        if isinstance(x, str | Path):
            self._settings: dict[str, Any] = _file(
                x, y, x_test, {"label": label, "client": client, "features": features, "test": test}
            )
            self._settings |= settings | common
            return
        if (y_test is not None and x_test is None) or (x_test is not None and y_test is None and y is not None):
            raise ArnoError("arno.Data", "x_test and y_test belong together", "give both or neither")
        if client_of_test is not None and (x_test is None or client is None):
            lacks = "x_test" if x_test is None else "client"
            raise ArnoError("arno.Data: client_of_test", f"there is no {lacks}", f"give {lacks}= too, or leave it out")
        train = rows_of(x, y, label, client, features)
        tested = None if x_test is None else rows_of(x_test, y_test, label, client_of_test, features)
        if _is_table(train):
            self._made(_Frames(train, tested, features, name, settings), test, path)
        else:
            refuse_table_settings(settings, path)
            self._keep(_arrays(train, tested, name, test))
            self._settings |= settings
        self._settings |= common

    def _made(self, frames: _Frames, test: float, path: str | Path | None) -> None:
        if path is None:
            self._keep(frames.dataset(test))
        else:
            self._settings = frames.written(path, test)

    def _keep(self, dataset: Dataset) -> None:
        self._settings = {"kind": "python", "fingerprint": dataset.check().fingerprint()}
        self._own = dataset
        self._offer()

    def _offer(self) -> None:
        """Runs find the data set by its fingerprint. Data with the same numbers and other names have the same one."""
        if self._own is not None:
            _MADE[self._settings["fingerprint"]] = self._own

    @cached_property
    def dataset(self) -> Dataset:
        """The data set. If the data are in a file, it is read from the file."""
        self._offer()
        return load({key: value for key, value in self._settings.items() if key not in COMMON})

    def __repr__(self) -> str:
        data = self.dataset
        return "\n".join([f"Data {data.name!r}, fingerprint {data.fingerprint()}", *data.notes])

    def _repr_html_(self) -> str:
        """The HTML for notebooks: what was inferred, and how many samples each client holds."""
        data = self.dataset
        facts = {"training samples": len(data.y), "test samples": len(data.y_test), "fingerprint": data.fingerprint()}
        facts |= {name: value for name, _, value in (line.partition(": ") for line in data.notes)}
        return card(f"Data {data.name!r}", facts, figure=self.plot())

    def plot(self) -> Figure:
        """A picture: how many training samples of each class (or decile of the target) each client holds."""
        from ..partition.partition import by_owner
        from ..partition_picture import holdings

        data = self.dataset
        owner = np.zeros(len(data.y), dtype=np.int64) if data.client is None else as_labels(data.client)
        names = data.clients or ("all samples",)
        partition = by_owner(owner, len(names), tuple(names))
        label = "" if data.n_classes else "target (deciles)"
        return holdings(partition, data.strata(), data.stratum_names(), label=label)  # type: ignore[no-any-return]

    def __getitem__(self, key: str) -> Any:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        self._offer()
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


class _Frames:
    """Samples with one value per column, which become a data set or a file."""

    def __init__(
        self, train: Rows, tested: Rows | None, features: list[str] | None, name: str, settings: dict[str, Any]
    ) -> None:
        self.settings = settings
        client = None if train.client is None else _name(train.client, "client")
        skip, categories = settings.get("skip") or [], settings.get("categories") or []
        self.roles = Roles(list(train.y), client, features, skip, categories)
        exact = {*train.y, client, *categories}
        columns = train.y | ({} if client is None else {client: train.client})
        self.read = Read("arno.Data", _table(train, columns, exact), [Path(name)], by_file=False)
        self.tested = None
        if tested is not None:
            if len(tested.y) == len(train.y):  # an array has no names for its targets
                tested = replace(tested, y=dict(zip(train.y, tested.y.values(), strict=True)))
            columns = tested.y | ({} if client is None or tested.client is None else {client: tested.client})
            self.tested = Read("arno.Data", _table(tested, columns, exact), [Path(f"{name}-test")], by_file=False)

    def dataset(self, test: float) -> Dataset:
        """The data set, as `data=table` makes it."""
        roles = self.roles.of(self.read.table, by_file=False)
        known = self.read.table.column_names if self.tested is None else self.tested.table.column_names
        if lacks := [name for name in (*roles.labels, *(roles.features or [])) if name not in known]:
            rule = f"it lacks the column{'s' * (len(lacks) > 1)} {shortened(lacks)} of x"
            raise ArnoError("arno.Data: x_test", rule, "give both the same columns")
        made = Table(self.read, self.tested, roles, self.settings.get("missing", "mean"))
        return made.clean(self.settings.get("min_rows")).dataset(self.settings.get("numbers"), test)

    def written(self, path: str | Path, test: float) -> dict[str, Any]:
        """Write the table to Parquet files; returns the settings of `data=table` that read them."""
        files = {"path": Path(path).with_suffix(".parquet")}
        if self.tested is not None:
            files["test_path"] = files["path"].with_name(f"{files['path'].stem}-test.parquet")
        for one, file in zip((self.read, self.tested), files.values(), strict=False):
            assert one is not None
            _write(one.table, file)
        found: dict[str, Any] = {"kind": "table", **{key: str(file.resolve()) for key, file in files.items()}}
        labels = self.roles.labels
        found |= {
            "label": labels[0] if len(labels) == 1 else labels,
            "client": self.roles.client,
            "test": test,
            **self.settings,
        }
        return found | ({} if self.roles.features is None else {"features": self.roles.features})


def refuse_table_settings(settings: Mapping[str, Any], path: object) -> None:
    """Refuse settings that only tables have."""
    odd = [*(key for key in settings if key != "numbers"), *(["path"] if path is not None else [])]
    if odd:
        rule = "it is a setting of tables, and these samples are arrays of several axes"
        raise ArnoError(f"arno.Data: {odd[0]}", rule, "leave it out")


def _file(path: str | Path, y: Any, x_test: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `data=table` for the path of a table, and for the path of a table with the test rows."""
    if y is not None or not (x_test is None or isinstance(x_test, str | Path)):
        rule = "x is the path of a table, and its columns have the targets"
        raise ArnoError(f"arno.Data: {path}", rule, "write arno.Data('heart.csv', label='target', client='hospital')")
    found: dict[str, Any] = {"kind": "table", "path": str(Path(path).expanduser().resolve())}
    if x_test is not None:
        found["test_path"] = str(Path(x_test).expanduser().resolve())
    return found | {key: value for key, value in settings.items() if value is not None}


def _is_table(rows: Rows) -> bool:
    """Whether every sample is a row of a table, and not a sequence with a token to predict at each position."""
    import pandas as pd

    if isinstance(rows.x, pd.DataFrame):
        return True
    return np.ndim(rows.x) < 3 and not _are_tokens(rows)


def _are_tokens(rows: Rows) -> bool:
    """Whether samples are whole numbers `[n, length]`, and so are the targets, with other values than 0 and 1."""
    several = len(rows.y) > 1 and np.shape(rows.x) == (len(rows.x), len(rows.y))
    if not several or rows.x.dtype.kind not in "ui":
        return False
    y = _stacked(rows)
    return bool(y.dtype.kind in "ui" and y.max(initial=0) > 1)


def _stacked(rows: Rows) -> Array:
    """The targets as one array: `[n]`, or `[n, columns]` for several columns."""
    columns = [array(values) for values in rows.y.values()]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _arrays(train: Rows, tested: Rows | None, name: str, test: float) -> Dataset:
    """The data set of samples with several axes, such as images, and of sequences of tokens."""
    arrays = {"x": samples_of("arno.Data: x", train.x)}
    for values in train.y.values():
        if np.ndim(values) == 0:
            raise ArnoError(f"arno.Data: y = {values!r}", "it is a single value", "give one value per sample of x")
        if len(values) != len(train.x):
            rule = f"x has {len(train.x)} rows, and every row needs one value"
            raise ArnoError(f"arno.Data: {len(values)} values of y", rule, "correct x or y")
    arrays["y"], names = _targets(train)
    known: dict[str, Any] = {"classes": names}
    if train.client is not None:
        arrays["client"], known["clients"] = _clients(train)
        if tested is None and len(known["clients"]) == len(train.x):
            rule = f"each of the {len(train.x):,} samples has another client, and none would be left for testing"
            raise ArnoError("arno.Data: client", rule, "give samples of one client the same name")
    if tested is not None:
        arrays["x_test"], arrays["y_test"] = samples_of("arno.Data: x_test", tested.x), _same_classes(tested, names)
        if arrays["x_test"].dtype != arrays["x"].dtype:
            rule = f"x is {train.x.dtype}, and 255 in an image of uint8 is 1 in another one"
            raise ArnoError(f"arno.Data: x_test is {tested.x.dtype}", rule, "give both the same type")
        if tested.client is not None and train.client is not None:
            whose, own = _clients(tested)
            known["client_test"] = torch.from_numpy(_places(own, known["clients"])[whose])
    made = from_arrays(name, arrays, test=test, **known)
    return replace(made, notes=_notes(train, made))


def _notes(train: Rows, made: Dataset) -> tuple[str, ...]:
    """What was inferred, in lines."""
    shape = " × ".join(map(str, made.shape))
    kind = "uint8, 0 to 255" if made.x.dtype == torch.uint8 else "numbers"
    lines = [f"samples: {len(train.x):,} of shape {shape}, {kind}"]
    if _are_tokens(train):
        lines.append(f"targets: one of {made.n_classes:,} tokens at each position")
    else:
        lines.append(label_note(list(train.y), _targets(train)[0], made.classes, None))
    if made.clients:
        counts = np.bincount(_clients(train)[0], minlength=len(made.clients))
        said = [f"{name} {count:,}" for name, count in zip(made.clients, counts, strict=True)]
        lines.append(f"clients: {len(made.clients):,}, with samples: {shortened(said, 20)}")
    return (*lines, f"to train and validate {len(made.y):,}, to test {len(made.y_test):,} samples")


def _clients(rows: Rows) -> tuple[Array, tuple[str, ...]]:
    """The number of the client of each sample, and the names of the clients."""
    if isinstance(rows.client, str):
        rule = f"samples of shape {list(rows.x.shape[1:])} have no columns"
        raise ArnoError(f"arno.Data: client = {rows.client}", rule, "give the client of each sample: client=ids")
    codes, names = _codes("client", rows.client)
    if array(rows.client).dtype.kind == "f" and fractional(names):
        raise ArnoError("arno.Data: client", f"its values are numbers with fractions, and {CLIENT_RULE}", "give names")
    if len(codes) != len(rows.x):
        rule = f"x has {len(rows.x)} rows, and every row needs one value"
        raise ArnoError(f"arno.Data: {len(codes)} values of client", rule, "give the client of each sample")
    return codes, names


def _places(own: Sequence[str], names: Sequence[str]) -> Array:
    """The index in `names` of each name in `own`; −1 if it is not there."""
    return np.array([names.index(name) if name in names else -1 for name in own], dtype=np.int64)


def _targets(rows: Rows) -> tuple[Array, tuple[str, ...]]:
    """Numbers without names; or class numbers (for several labels, 0 and 1) with the names of the classes."""
    y = _stacked(rows)
    if _are_tokens(rows):
        return y.astype(np.int64), tuple(map(str, range(1 + int(max(y.max(), rows.x.max())))))
    if rows.names is not None:
        return y.astype(np.int64), tuple(rows.names)
    return targets(_known(rows), None, in_order)


def _known(rows: Rows) -> dict[str, pa.ChunkedArray]:
    """The columns of the targets; refuses missing values."""
    columns = {name: _column(name, values, exact=True) for name, values in rows.y.items()}
    for name, column in columns.items():
        if column.null_count:
            raise ArnoError(f"arno.Data: {name}", "a value is missing", "leave out samples without one")
    return columns


def _same_classes(rows: Rows, names: tuple[str, ...]) -> Array:
    """The targets of test samples, with the class numbers of the training samples."""
    if rows.names is not None or _are_tokens(rows):
        return _targets(rows)[0]
    if len(rows.y) > 1 or not names:
        return targets(_known(rows), not names, in_order)[0]
    y, own = coded(next(iter(_known(rows).values())))
    if lost := [name for name in own if name not in names]:
        rule = "the training samples have no such class"
        raise ArnoError(f"arno.Data: test samples of class {lost[0]}", rule, "correct y_test")
    return _places(own, names)[y]


def _codes(name: str, values: Any) -> tuple[Array, tuple[str, ...]]:
    codes, names = coded(_column(name, values, exact=True))
    if (codes < 0).any():
        raise ArnoError(f"arno.Data: {name}", "a value is missing", "leave out samples without one")
    return codes, tuple(names)


def _as_numbers(made: Dataset) -> Dataset:
    """Classes whose names are numbers, as these numbers; several labels as 0 and 1."""
    if made.y.dim() > 1:
        return replace(made, y=made.y.float(), y_test=made.y_test.float(), classes=())
    try:
        values = torch.tensor([float(name) for name in made.classes])
    except ValueError:
        rule = f"the targets are the classes {shortened(made.classes)}"
        raise ArnoError("data.numbers = true", rule, "give floating-point targets for a regression") from None
    return replace(made, y=values[made.y], y_test=values[made.y_test], classes=())


def _as_classes(made: Dataset) -> Dataset:
    """Numbers with few different values, as classes."""
    if made.y.dim() > 1:
        raise ArnoError("data.numbers = false", "a sample has several targets", "use task=regression")
    values = torch.cat([made.y, made.y_test]).unique()
    if many(len(values), len(made.y)):
        rule = f"the targets have {len(values):,} different values in {len(made.y):,} samples"
        raise ArnoError("data.numbers = false", rule, "use task=regression")
    names = tuple(f"{value:.0f}" if value == round(value) else f"{value:g}" for value in values.tolist())
    y, y_test = (torch.searchsorted(values, y) for y in (made.y, made.y_test))
    return replace(made, y=y, y_test=y_test, classes=names)


def _name(values: Any, usual: str) -> str:
    """The name of a column or of a pandas Series; otherwise the usual name."""
    import pandas as pd

    if isinstance(values, str):
        return values
    return str(values.name) if isinstance(values, pd.Series) and values.name is not None else usual


def _table(rows: Rows, columns: Mapping[str, Any], exact: Container[str | None]) -> pa.Table:
    """Features and further columns as one table.

    A further column that is a column of x is given by its name or by None.
    """
    import pandas as pd

    x, features = rows.x, dict[str, Any]()
    if isinstance(x, pd.DataFrame):
        features = {name: x[name] for name in x.columns}
    else:
        if x.ndim != 2 or x.dtype.kind not in "uifb":
            rule = f"a DataFrame or numbers [n, features] are needed, not {x.dtype} {list(x.shape)}"
            single = x.ndim == 1 and x.dtype.kind in "uifb"
            raise ArnoError("arno.Data: x", rule, "write x[:, None]" if single else "convert it, or use a DataFrame")
        x = x.astype(np.uint8) if x.dtype.kind == "b" else x
        features = {f"x{i}": x[:, i] for i in range(x.shape[1])}
    for name, values in columns.items():
        if values is None or isinstance(values, str):
            continue
        if name in features:
            rule = "it is the label or the client, and also a column of x"
            raise ArnoError(f"arno.Data: {name}", rule, f"leave it out: x.drop(columns={name!r})")
        if np.ndim(values) == 0:
            raise ArnoError(f"arno.Data: {name} = {values!r}", "it is a single value", "give one value per row of x")
        if len(values) != len(x):
            rule = f"x has {len(x)} rows, and every row needs one value"
            raise ArnoError(f"arno.Data: {len(values)} values of {name}", rule, "correct x or the values")
        features[name] = _class_names(rows, values) if name in rows.y and rows.names is not None else values
    return pa.table({name: _column(name, values, name in exact) for name, values in features.items()})


def _class_names(rows: Rows, values: Any) -> list[str | None]:
    """The name of the class of each sample; None for a number below 0."""
    assert rows.names is not None
    return [rows.names[i] if i >= 0 else None for i in array(values).tolist()]


def _column(name: str, values: Any, exact: bool = False) -> pa.ChunkedArray:
    """Values of any kind as a column of Arrow; refuses values with several axes. exact: the values are names."""
    import pandas as pd

    if not isinstance(values, pd.Series):
        values = array(values)
        values = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.ndim != 1:
            rule = f"one value per sample is needed, not an array of shape {list(values.shape)}"
            raise ArnoError(f"arno.Data: {name}", rule, "give one value per sample")
    try:
        column = pa.array(_plain(values), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise ArnoError(
            f"arno.Data: {name}", f"its values cannot be used ({why})", "use one type in a column"
        ) from error
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return valued(chunked, exact)


def _plain(values: Any) -> Any:
    """Values that Arrow can read: sparse columns become dense; intervals, and numbers mixed with text, become text."""
    import pandas as pd

    series = values if isinstance(values, pd.Series) else pd.Series(values)
    if isinstance(series.dtype, pd.SparseDtype):
        return series.to_numpy()
    if isinstance(series.dtype, pd.CategoricalDtype) and isinstance(series.cat.categories, pd.IntervalIndex):
        return series.cat.rename_categories([str(one) for one in series.cat.categories])
    if pd.api.types.infer_dtype(series, skipna=True) in ("mixed", "mixed-integer"):
        known = series[series.notna()]
        if known.map(lambda value: isinstance(value, str | int | float | np.number | np.bool_)).all():
            return series.map(lambda value: value if pd.isna(value) else str(value))
    return values


def _write(table: pa.Table, file: Path) -> None:
    import pyarrow.parquet as pq

    try:
        pq.write_table(table, file)
    except OSError as error:
        raise ArnoError(
            f"arno.Data: path = {file}", f"it cannot be written ({error.strerror})", "use another"
        ) from error
