"""Data of a Python program: `arno.run(data=arno.Data(x, y, client=ids))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ...errors import ArnoError
from ..dataset import Dataset, source
from .table import Read, Roles, Table, without_marks

#: The data that this process has made, by fingerprint.
_MADE: dict[str, Dataset] = {}
REMEDY = "make the same arno.Data(x, y, …) in this process first, or give it path='mine.parquet'"


def _names_clients(settings: Mapping[str, Any]) -> bool:
    made = _MADE.get(str(settings.get("fingerprint")))
    return made is not None and made.client is not None


@source("python", names_clients=_names_clients)
def python(*, fingerprint: str | None = None) -> Dataset:
    """Data that a Python program gave: `arno.run(data=arno.Data(x, y, client=ids))`.

    Args:
        fingerprint: of the data; a run continues only where the same data were made again.
    """
    if fingerprint is None:
        raise ArnoError("data=python", "these data are given in Python", "write arno.run(data=arno.Data(x, y))")
    if fingerprint not in _MADE:
        raise ArnoError(f"data.fingerprint = {fingerprint}", "these data are not in this process", REMEDY)
    return _MADE[fingerprint]


class Data(Mapping[str, Any]):
    """A table of a Python program as the `data` of a run; a mapping of the settings that name it.

    >>> data = Data(np.arange(40.0).reshape(20, 2), [0, 1] * 10, client=["a"] * 10 + ["b"] * 10)
    >>> data["kind"], data.dataset.clients, data.dataset.classes
    ('python', ('a', 'b'), ('0', '1'))

    x: a pandas DataFrame, or numbers `[n, features]` (NumPy, torch, lists).
    y: the label of each row: integers, text or true/false are classes, floating-point values are numbers.
    client: the name of the client of each row.
    x_test, y_test: rows for testing; without them the share `test` is split off inside each client.
    path: also write the table to this Parquet file. `arno.compare` and later processes then read it from there.
    settings: `missing`, `categories`, `numbers`, `min_rows` as of `data=table`.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        client: Any = None,
        x_test: Any = None,
        y_test: Any = None,
        test: float = 0.2,
        name: str = "data",
        path: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if (x_test is None) != (y_test is None):
            raise ArnoError("arno.Data", "x_test and y_test belong together", "give both or neither")
        if odd := sorted(settings.keys() - {"missing", "categories", "numbers", "min_rows"}):
            raise ArnoError(f"arno.Data: {odd[0]}", "it is no setting", "see help(arno.Data)")
        roles = Roles(_name(y, "y"), None if client is None else _name(client, "client"), None, [], [])
        columns = {roles.label: y} | ({} if roles.client is None else {roles.client: client})
        read = Read("arno.Data", _table(x, columns), [Path(name)], by_file=False)
        tested = None
        if x_test is not None:
            tested = Read("arno.Data", _table(x_test, {roles.label: y_test}), [Path(f"{name}-test")], by_file=False)
        if path is None:
            roles = Roles(roles.label, roles.client, None, [], settings.get("categories") or [])
            made = Table(read, tested, roles.of(read.table, by_file=False), settings.get("missing", "mean"))
            self.dataset = made.clean(settings.get("min_rows")).dataset(settings.get("numbers"), test).check()
            self._settings: dict[str, Any] = {"kind": "python", "fingerprint": self.dataset.fingerprint()}
            _MADE[self.dataset.fingerprint()] = self.dataset
            return
        files = {"path": Path(path).with_suffix(".parquet")}
        if tested is not None:
            files["test_path"] = files["path"].with_name(f"{files['path'].stem}-test.parquet")
        for one, file in zip((read, tested), files.values(), strict=False):
            assert one is not None
            _write(one.table, file)
        self._settings = {"kind": "table", **{key: str(file.resolve()) for key, file in files.items()}}
        self._settings |= {"label": roles.label, "client": roles.client, "test": test, **settings}

    def __getitem__(self, key: str) -> Any:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


def _name(values: Any, usual: str) -> str:
    """The name of a pandas Series, or the usual name."""
    import pandas as pd

    return str(values.name) if isinstance(values, pd.Series) and values.name is not None else usual


def _table(x: Any, columns: Mapping[str, Any]) -> pa.Table:
    """Features and further columns as one table."""
    import pandas as pd

    features: dict[str, Any]
    if isinstance(x, pd.DataFrame):
        features = {str(name): x[name] for name in x.columns}
    else:
        numbers = _array(x)
        if numbers.ndim != 2 or numbers.dtype.kind not in "uifb":
            rule = f"a DataFrame or numbers [n, features] are needed, not {numbers.dtype} {list(numbers.shape)}"
            raise ArnoError("arno.Data: x", rule, "use data=npz for images")
        features = {f"x{i}": numbers[:, i] for i in range(numbers.shape[1])}
    for name, values in columns.items():
        if name in features:
            rule = "it is the label or the client, and also a column of x"
            raise ArnoError(f"arno.Data: {name}", rule, f"leave it out: x.drop(columns={name!r})")
        if len(values) != len(x):
            rule = f"x has {len(x)} rows, and every row needs one value"
            raise ArnoError(f"arno.Data: {len(values)} values of {name}", rule, "correct x or the values")
        features[name] = values
    return pa.table({name: _column(name, values) for name, values in features.items()})


def _column(name: str, values: Any) -> pa.ChunkedArray:
    import pandas as pd

    try:
        array = pa.array(values if isinstance(values, pd.Series) else _array(values), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise ArnoError(
            f"arno.Data: {name}", f"its values cannot be used ({why})", "use one type in a column"
        ) from error
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    return without_marks(Path("arno.Data"), name, chunked)


def _array(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Values (a tensor, an array, a list) as an array."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _write(table: pa.Table, file: Path) -> None:
    import pyarrow.parquet as pq

    try:
        pq.write_table(table, file)
    except OSError as error:
        raise ArnoError(
            f"arno.Data: path = {file}", f"it cannot be written ({error.strerror})", "use another"
        ) from error
