"""Columns of a table as numbers: classes, clients, numeric features and categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ArnoError
from ..limits import room
from .dataset import Ints, shortened
from .images import Array

Bools = np.ndarray[Any, np.dtype[np.bool_]]

#: A label or a category has at most so many values; fewer if there are on average fewer than FEW rows per value.
VALUES, SOME, FEW = 10_000, 50, 10


@dataclass(frozen=True)
class Inputs:
    """The features of all rows.

    x, x_test: the training and test rows, `[n, inputs]` float32. names: of the inputs. mean, std: of each input over
    the training rows; 0 and 1 for inputs that are 0 or 1 for a category. notes: lines that say what was inferred.
    """

    x: Array
    x_test: Array
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...]


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are strings; a dictionary has the type of its values."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def coded(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """The values of a column as numbers 0, 1, … in their order, −1 where a value is missing, and the values as text.

    >>> codes, names = coded(pa.chunked_array([[10, 9, None, 9]]))
    >>> codes.tolist(), names
    ([1, 0, -1, 0], ['9', '10'])
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    whole = column.combine_chunks().dictionary_encode()
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    values = whole.dictionary
    order = pc.sort_indices(values).to_numpy()
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    codes = whole.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    return place[codes], [_name(value) for value in values.take(pa.array(order)).to_pylist()]


def _name(value: object) -> str:
    """A value as text; whole floating-point numbers without a point, true and false in small letters."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def classes(name: str, column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """The class of each row and the names of the classes; refuses a single class and columns that look like an id."""
    y, names = coded(column)
    where = f"data.label = {name}"
    if len(names) == 1:
        raise ArnoError(where, f"all rows have the same value ({names[0]})", "choose another column")
    if many(len(names), len(y)):
        rule = f"{len(names):,} different values in {len(y):,} rows are no classes; it looks like an identifier"
        remedy = "data.numbers=true for a regression" if is_number(column.type) else "check the column"
        raise ArnoError(where, rule, f"choose another column, or {remedy}")
    return y, tuple(names)


def many(values: int, rows: int) -> bool:
    """Whether a column has too many different values for classes or categories."""
    return values > VALUES or (values > SOME and values * FEW > rows)


def numbers(name: str, column: pa.ChunkedArray, setting: str) -> Array:
    """A column as float32, NaN where a value is missing; text is refused. setting: the column's role, for errors."""
    if is_text(column.type):
        raise _text_error(name, column, setting)
    if not is_number(column.type) and not pa.types.is_boolean(column.type):
        raise _kind_error(name, column.type, setting)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    out = np.empty(len(column), dtype=np.float32)
    at = 0
    for chunk in column.chunks:
        with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite and is refused later
            out[at : at + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        at += len(chunk)
    return out


def _kind_error(name: str, kind: pa.DataType, setting: str) -> ArnoError:
    remedy = f"convert it, or leave it out: data.skip=[{name}]" if setting == "column" else "choose another column"
    return ArnoError(f"{setting} {name}: values of type {kind}", "numbers, text or true and false are needed", remedy)


def _numeric_text(values: pa.Array) -> Bools:
    """Which strings are numbers."""
    pattern = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
    matches: Bools = pc.match_substring_regex(values, pattern).fill_null(False).to_numpy(zero_copy_only=False)
    return matches


def _text_error(name: str, column: pa.ChunkedArray, setting: str) -> ArnoError:
    """The error for text among numbers: it names the first row with text."""
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    values = column.combine_chunks()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    odd = np.flatnonzero(~_numeric_text(values) & values.is_valid().to_numpy(zero_copy_only=False))
    row = int(odd[0]) if len(odd) else 0
    remedy = "correct these values, or leave them empty"
    if setting == "column":
        remedy += f"; if they are categories: data.categories=[{name}]"
    rule = f"it is a column of numbers, and {len(odd):,} of {len(column):,} values are text"
    return ArnoError(f"{setting} {name}: {values[row].as_py()!r} in row {row + 1}", rule, remedy)


def _as_categories(name: str, column: pa.ChunkedArray, forced: bool) -> bool:
    """Whether a column has categories; refuses text in a column of numbers."""
    if forced or pa.types.is_boolean(column.type):
        return True
    if not is_text(column.type):
        return False
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    values = column.combine_chunks()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    numeric, known = int(_numeric_text(values).sum()), len(values) - values.null_count
    if 2 * numeric >= known > 0:
        raise _text_error(name, column, "column")
    return True


def _one_hot(name: str, column: pa.ChunkedArray, training: Bools) -> tuple[Array, list[str], int]:
    """An input per category of the training rows; and how many other rows have a category that these do not have."""
    codes, values = coded(column)
    if many(len(values), len(codes)):
        rule = f"{len(values):,} different texts in {len(codes):,} rows are no categories"
        raise ArnoError(f"column {name}", rule, f"leave it out: data.skip=[{name}]")
    seen = np.unique(codes[training & (codes >= 0)])
    room(4 * len(codes) * len(seen), f"column {name} with {len(seen)} categories")
    unknown = int((~np.isin(codes, seen) & (codes >= 0)).sum())
    return (codes[:, None] == seen).astype(np.float32), [f"{name}={values[i]}" for i in seen], unknown


def inputs(columns: dict[str, pa.ChunkedArray], categories: Sequence[str], training: Bools) -> Inputs:
    """The features of all rows; means, deviations and categories are those of the training rows.

    columns: the features by name. The mapping is empty afterwards, so that a column is freed once it is converted.
    A missing number is replaced with the mean of its column. A missing category has 0 in all inputs of its column.
    """
    parts, names, mean, std, notes = list[Array](), list[str](), list[float](), list[float](), list[str]()
    plain, filled, empty = list[str](), dict[str, int](), list[str]()
    for name in list(columns):
        column = columns.pop(name)
        if _as_categories(name, column, name in categories):
            part, own, unknown = _one_hot(name, column, training)
            parts.append(part)
            names += own
            mean, std = [*mean, *[0.0] * len(own)], [*std, *[1.0] * len(own)]
            notes.append(f"categories of {name}: {shortened([one.partition('=')[2] for one in own], 12)}")
            notes += [f"{name}: {unknown:,} test rows have a category that no training row has"] * (unknown > 0)
            filled |= {name: column.null_count} if column.null_count else {}
            continue
        if pa.types.is_null(column.type):
            empty.append(name)
            continue
        x = numbers(name, column, "column")
        missing = np.isnan(x)
        known = x[training & ~missing].astype(np.float64)
        if not len(known):
            empty.append(name)
            continue
        middle, spread = float(known.mean()), float(known.std())
        filled |= {name: int(missing.sum())} if missing.any() else {}
        x[missing] = middle
        parts.append(x[:, None])
        plain.append(name)
        names.append(name)
        mean, std = [*mean, middle], [*std, spread if spread > 1e-12 else 1.0]
    return Inputs(*_joined(parts, training), tuple(names), tuple(mean), tuple(std), _notes(plain, notes, filled, empty))


def _joined(parts: list[Array], training: Bools) -> tuple[Array, Array]:
    """Columns side by side: training rows and test rows. The list is empty afterwards."""
    width, rows = sum(part.shape[1] for part in parts), len(training)
    if not width:
        raise ArnoError("data=table", "no column is left as a feature", "name them with data.features=[…]")
    room(4 * rows * width, f"a table of {rows:,} rows and {width:,} inputs")
    pa.default_memory_pool().release_unused()  # the memory of the columns that were converted
    both = [(np.flatnonzero(some), np.empty((some.sum(), width), dtype=np.float32)) for some in (training, ~training)]
    at = 0
    while parts:
        part = parts.pop(0)
        for some, out in both:
            out[:, at : at + part.shape[1]] = part[some]
        at += part.shape[1]
    return both[0][1], both[1][1]


def _notes(plain: list[str], notes: list[str], filled: dict[str, int], empty: list[str]) -> tuple[str, ...]:
    """What was inferred about the features, in lines."""
    lines = [f"numbers: {shortened(plain, 20)}"] * bool(plain) + notes
    if filled:
        said = shortened([f"{name} {count:,}" for name, count in filled.items()], 20)
        lines.append(f"missing values, replaced with the mean of the training rows (a category: with none): {said}")
    if empty:
        lines.append(f"left out, no values: {shortened(empty, 20)}")
    return tuple(lines)
