"""Data of a Python program: `arno.run(data=arno.Data(x, y, client=ids))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ...errors import ArnoError
from ..arrays import from_arrays
from ..columns import coded, many
from ..dataset import Dataset, datasets, shortened
from ..images import Array
from ..samples import Rows, array, rows_of
from ..tables import Read, without_marks
from .local import samples_of
from .table import Roles, Table

#: The data that this process has made, by fingerprint.
_MADE: dict[str, Dataset] = {}
REMEDY = "make the same arno.Data(x, y, …) in this process first, or give it path='mine.parquet'"
#: Settings of a table that `Data` takes, and settings of every data source that it hands on.
TABLE, COMMON = ("missing", "categories", "numbers", "min_rows", "skip"), ("val", "client_val", "client_test", "limit")


def _names_clients(settings: Mapping[str, Any]) -> bool:
    made = _MADE.get(str(settings.get("fingerprint")))
    return made is not None and made.client is not None


@datasets.register("python", names_clients=_names_clients)
def python(*, fingerprint: str | None = None, numbers: bool | None = None) -> Dataset:
    """Data that a Python program gave: `arno.run(data=arno.Data(x, y, client=ids))`.

    Args:
        fingerprint: of the data; a run continues only where the same data were made again.
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
    """Data of a Python program as the `data` of a run; a mapping of the settings that name them.

    >>> data = Data(np.arange(40.0).reshape(20, 2), [0, 1] * 10, client=["a"] * 10 + ["b"] * 10)
    >>> data["kind"], data.dataset.clients, data.dataset.classes
    ('python', ('a', 'b'), ('0', '1'))

    x: a pandas DataFrame; numbers `[n, features]` or images `[n, C, H, W]` (NumPy, torch, lists); a Bunch of
        scikit-learn; a map-style data set of torch or a list with samples (x, y), (x, y, client) or dictionaries; a
        Hugging Face data set. All samples are read once and kept in memory.
    y: the target of each sample: integers, text or true/false are classes, floating-point values are numbers.
    label: in place of y, the name of the column (of a frame, a Hugging Face data set, a dictionary) to predict.
    client: the name of the client of each sample, or the name of the column with it.
    features: the columns to learn from; by default all others.
    x_test, y_test: samples for testing; without them the share `test` is split off inside each client.
    path: also write the table to this Parquet file. Runs and later processes then read it from there.
    settings: of a table `missing`, `categories`, `numbers`, `min_rows`, `skip`, as of `data=table`; of a run `val`,
        `client_val`, `client_test`, `limit`.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        label: str | None = None,
        client: Any = None,
        features: list[str] | None = None,
        x_test: Any = None,
        y_test: Any = None,
        test: float = 0.2,
        name: str = "data",
        path: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if odd := sorted(settings.keys() - {*TABLE, *COMMON}):
            raise ArnoError(f"arno.Data: {odd[0]}", "it is no setting", "see help(arno.Data)")
        y, label = (None, y) if isinstance(y, str) else (y, label)
        if (y_test is not None and x_test is None) or (x_test is not None and y_test is None and y is not None):
            raise ArnoError("arno.Data", "x_test and y_test belong together", "give both or neither")
        train = rows_of(x, y, label, client, features)
        tested = None if x_test is None else rows_of(x_test, y_test, label, None, features)
        common = {key: settings.pop(key) for key in COMMON if key in settings}
        if _is_table(train.x):
            self._made(_Frames(train, tested, features, name, settings), test, path)
        else:
            refuse_table_settings(settings, path)
            self._keep(_arrays(train, tested, name, test))
        self._settings |= common

    def _made(self, frames: _Frames, test: float, path: str | Path | None) -> None:
        if path is None:
            self._keep(frames.dataset(test))
        else:
            self._settings: dict[str, Any] = frames.written(path, test)

    def _keep(self, dataset: Dataset) -> None:
        self.dataset = dataset.check()
        self._settings = {"kind": "python", "fingerprint": dataset.fingerprint()}
        _MADE[dataset.fingerprint()] = dataset

    def __repr__(self) -> str:
        if self["kind"] != "python":
            return f"Data({self._settings})"
        data = self.dataset
        lines = data.notes or (f"{len(data.y) + len(data.y_test):,} samples of shape {list(data.shape)}",)
        return "\n".join([f"Data {data.name!r}, fingerprint {data.fingerprint()}", *lines])

    def __getitem__(self, key: str) -> Any:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


class _Frames:
    """Samples with one value per column, on the way to a data set or a file."""

    def __init__(
        self, train: Rows, tested: Rows | None, features: list[str] | None, name: str, settings: dict[str, Any]
    ) -> None:
        self.settings = settings
        label, client = _name(train.y, "y"), None if train.client is None else _name(train.client, "client")
        skip, categories = settings.get("skip") or [], settings.get("categories") or []
        self.roles = Roles(label, client, features, skip, categories)
        columns = {label: train.y} | ({} if client is None else {client: train.client})
        self.read = Read("arno.Data", _table(train, columns), [Path(name)], by_file=False)
        self.tested = None
        if tested is not None:
            self.tested = Read("arno.Data", _table(tested, {label: tested.y}), [Path(f"{name}-test")], by_file=False)

    def dataset(self, test: float) -> Dataset:
        """The data set, as `data=table` makes it."""
        roles = self.roles.of(self.read.table, by_file=False)
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
        found |= {"label": self.roles.label, "client": self.roles.client, "test": test, **self.settings}
        return found | ({} if self.roles.features is None else {"features": self.roles.features})


def refuse_table_settings(settings: Mapping[str, Any], path: object) -> None:
    """Refuse what only a table has."""
    odd = [*(key for key in settings if key != "numbers"), *(["path"] if path is not None else [])]
    if odd:
        rule = "it is a setting of tables, and these samples are arrays of several axes"
        raise ArnoError(f"arno.Data: {odd[0]}", rule, "leave it out")


def _is_table(x: Any) -> bool:
    """Whether every sample is a row of a table."""
    import pandas as pd

    return isinstance(x, pd.DataFrame) or np.ndim(x) < 3


def _arrays(train: Rows, tested: Rows | None, name: str, test: float) -> Dataset:
    """The data set of samples with several axes, such as images."""
    arrays = {"x": samples_of("arno.Data: x", train.x)}
    if len(train.y) != len(train.x):
        rule = f"x has {len(train.x)} rows, and every row needs one value"
        raise ArnoError(f"arno.Data: {len(train.y)} values of y", rule, "correct x or y")
    arrays["y"], names = _targets(train)
    known: dict[str, Any] = {"classes": names}
    if train.client is not None:
        arrays["client"], clients = _codes("client", train.client)
        known["clients"] = clients
        if len(arrays["client"]) != len(train.x) or (arrays["client"] < 0).any():
            raise ArnoError("arno.Data: client", "every sample needs the name of its client", "correct client")
    if tested is not None:
        arrays["x_test"], arrays["y_test"] = samples_of("arno.Data: x_test", tested.x), _same_classes(tested, names)
    return from_arrays(name, arrays, test=test, **known)


def _targets(rows: Rows) -> tuple[Array, tuple[str, ...]]:
    """Numbers and no names, or class numbers and names."""
    y = array(rows.y)
    if y.dtype.kind == "f":
        return y.astype(np.float32), ()
    if rows.names is not None:
        return y.astype(np.int64), tuple(rows.names)
    return _codes("y", rows.y)


def _same_classes(rows: Rows, names: tuple[str, ...]) -> Array:
    """The targets of test samples, with the class numbers of the training samples."""
    y, own = _targets(rows)
    if own == names:
        return y
    if lost := [name for name in own if name not in names]:
        rule = "the training samples have no such class"
        raise ArnoError(f"arno.Data: test samples of class {lost[0]}", rule, "correct y_test")
    return np.array([names.index(name) for name in own])[y]


def _codes(name: str, values: Any) -> tuple[Array, tuple[str, ...]]:
    codes, names = coded(_column(name, values))
    if (codes < 0).any():
        raise ArnoError(f"arno.Data: {name}", "a value is missing", "leave out samples without one")
    return codes, tuple(names)


def _as_numbers(made: Dataset) -> Dataset:
    """Classes whose names are numbers, as these numbers."""
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
    """The name of a column, or of a pandas Series; else the usual name."""
    import pandas as pd

    if isinstance(values, str):
        return values
    return str(values.name) if isinstance(values, pd.Series) and values.name is not None else usual


def _table(rows: Rows, columns: Mapping[str, Any]) -> pa.Table:
    """Features and further columns as one table; a column of x is given by its name."""
    import pandas as pd

    x, features = rows.x, dict[str, Any]()
    if isinstance(x, pd.DataFrame):
        features = {str(name): x[name] for name in x.columns}
    else:
        if x.ndim != 2 or x.dtype.kind not in "uifb":
            rule = f"a DataFrame or numbers [n, features] are needed, not {x.dtype} {list(x.shape)}"
            raise ArnoError("arno.Data: x", rule, "convert it, or use a DataFrame")
        features = {f"x{i}": x[:, i] for i in range(x.shape[1])}
    for name, values in columns.items():
        if isinstance(values, str):
            continue
        if name in features:
            rule = "it is the label or the client, and also a column of x"
            raise ArnoError(f"arno.Data: {name}", rule, f"leave it out: x.drop(columns={name!r})")
        if len(values) != len(x):
            rule = f"x has {len(x)} rows, and every row needs one value"
            raise ArnoError(f"arno.Data: {len(values)} values of {name}", rule, "correct x or the values")
        features[name] = _class_names(rows) if values is rows.y and rows.names is not None else values
    return pa.table({name: _column(name, values) for name, values in features.items()})


def _class_names(rows: Rows) -> list[str | None]:
    """The name of the class of each sample; None for a number below 0."""
    assert rows.names is not None
    return [rows.names[i] if i >= 0 else None for i in array(rows.y).tolist()]


def _column(name: str, values: Any) -> pa.ChunkedArray:
    import pandas as pd

    try:
        column = pa.array(values if isinstance(values, pd.Series) else array(values), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise ArnoError(
            f"arno.Data: {name}", f"its values cannot be used ({why})", "use one type in a column"
        ) from error
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return without_marks(Path("arno.Data"), name, chunked)


def _write(table: pa.Table, file: Path) -> None:
    import pyarrow.parquet as pq

    try:
        pq.write_table(table, file)
    except OSError as error:
        raise ArnoError(
            f"arno.Data: path = {file}", f"it cannot be written ({error.strerror})", "use another"
        ) from error
