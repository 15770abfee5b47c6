"""The columns to predict: classes, numbers, or several labels of 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ArnoError
from .cell_values import is_text
from .columns import ROUNDED, SOME, Place, classes, is_number, numbers, rounded
from .dataset import shortened
from .images import Array

#: Texts that mean 0 and 1 if there are several labels.
WORDS = {"no": 0, "n": 0, "false": 0, "f": 0, "yes": 1, "y": 1, "true": 1, "t": 1}


def targets(
    columns: Mapping[str, pa.ChunkedArray], as_numbers: bool | None, place: Place
) -> tuple[Array, tuple[str, ...]]:
    """The targets of all rows, and the names of the classes or labels; no names if the targets are numbers.

    One column: class numbers [n], or numbers [n]. Several columns: 0 and 1 [n, labels], or numbers [n, outputs].
    as_numbers: whether the targets are numbers; None: their types and values decide.
    """
    if len(columns) > 1:
        return _several(columns, as_numbers, place)
    ((name, column),) = columns.items()
    if as_numbers is None:
        as_numbers = is_number(column.type) and not pa.types.is_integer(column.type) and not _two_whole(column)
    if as_numbers:
        return _measured(name, column, place), ()
    if not (is_number(column.type) or is_text(column.type) or _is_coded(column.type)):
        raise ArnoError(f"data.label = {name}: values of type {column.type}", "this is no label", "convert it")
    return classes(name, column)


def _measured(name: str, column: pa.ChunkedArray, place: Place) -> Array:
    """A column of numbers to predict. Refuses a column with the same value in all rows."""
    y = numbers(name, column, "data.label =", place)
    if (y == y[0]).all():
        rule, remedy = f"all rows have the same value ({y[0]:g})", "choose another column"
        if abs(y[0]) >= 2**24:
            rule, remedy = f"{rule} in 32 bits", f"if they differ, subtract {y[0]:g} from them first"
        raise ArnoError(f"data.label = {name}", rule, remedy)
    return y


def _is_coded(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_dictionary(kind))


def _two_whole(column: pa.ChunkedArray) -> bool:
    """Whether floating-point labels have two different values, both whole.

    pandas writes integers in this way if some are missing.
    """
    some = column.slice(0, 1000).unique()
    if len(some) > 2 or not _whole(some):
        return False
    values = column.unique()
    return len(values) == 2 and _whole(values)


def _whole(values: pa.Array) -> bool:
    return bool(pc.all(pc.equal(values, pc.round(values))).as_py())


def _several(
    columns: Mapping[str, pa.ChunkedArray], as_numbers: bool | None, place: Place
) -> tuple[Array, tuple[str, ...]]:
    """Several columns: labels if all columns have only 0 and 1, numbers if one of them has floating-point values."""
    marks = {name: _zeros_and_ones(column) for name, column in columns.items()}
    odd = [name for name, mark in marks.items() if mark is None]
    if not odd and not as_numbers:
        return np.stack([mark for mark in marks.values() if mark is not None], axis=1), tuple(columns)
    fractions = any(pa.types.is_floating(one.type) or pa.types.is_decimal(one.type) for one in columns.values())
    if as_numbers is False or (as_numbers is None and not fractions):
        rule = f"of several labels each is 0 or 1, and {odd[0]} has other values"
        raise ArnoError(
            f"data.label = [{', '.join(columns)}]",
            rule,
            "choose one column for classes, or data.numbers=true for a regression with an output for each",
        )
    return np.stack([_measured(name, one, place) for name, one in columns.items()], axis=1), ()


def _zeros_and_ones(column: pa.ChunkedArray) -> Array | None:
    """The column as int64 if its values are 0 and 1, true and false, or yes and no; otherwise None."""
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    values = column.unique()
    if len(values) > 2:
        return None
    if is_text(column.type):
        lower = pc.utf8_lower(column)
        if not all(value in WORDS for value in lower.unique().to_pylist()):
            return None
        column = pc.is_in(lower, value_set=pa.array([w for w, one in WORDS.items() if one], lower.type))
    elif not pa.types.is_boolean(column.type) and not (
        is_number(column.type) and all(value in (0, 1) for value in values.to_pylist())
    ):
        return None
    found: Array = column.cast(pa.int64()).to_numpy()
    return found


def label_note(names: Sequence[str], y: Array, class_names: Sequence[str], as_numbers: bool | None) -> str:
    """A line that says what was inferred about the labels. as_numbers: what the user said; None if nothing."""
    other = "" if as_numbers is not None else f" (data.numbers={str(bool(class_names)).lower()} if this is wrong)"
    if len(names) > 1 and class_names:
        ones = [f"{name} {count:,}" for name, count in zip(names, y.sum(0).tolist(), strict=True)]
        return f"{len(names)} labels of 0 or 1, with ones: {shortened(ones, 12)}{other}"
    if class_names:
        other = other if all(map(_is_numeric, class_names)) else ""
        return f"label {names[0]}: {len(class_names)} classes: {shortened(class_names, 12)}{other}"
    if rounded(float(y.mean(dtype=np.float64)), float(y.std(dtype=np.float64))):
        return (
            f"label {shortened(names, 12)}: numbers, a regression; {ROUNDED}; subtract {y.mean():.4g} from them first"
        )
    if len(names) > 1:
        return f"{len(names)} labels {shortened(names, 12)}: numbers, a regression"
    few = np.unique(y)
    if other and len(few) <= SOME and (few == np.round(few)).all():
        other = f"; its {len(few)} values are whole numbers, data.numbers=false makes them classes"
    return f"label {names[0]}: numbers, a regression{other}"


def _is_numeric(name: str) -> bool:
    """Whether the name of a class is a number.

    >>> _is_numeric("-1.5"), _is_numeric("yes")
    (True, False)
    """
    return name.lstrip("-").replace(".", "", 1).isdecimal()
