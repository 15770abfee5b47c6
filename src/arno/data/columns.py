"""Columns of a table as numbers: classes, clients, numeric features and categories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ArnoError
from ..limits import room
from .cell_values import grouped, is_text
from .dataset import Ints, shortened
from .images import Array

#: A column holds one number only if its deviation is at most this share of its mean: it is rounding error.
CONSTANT = 1e-12

Bools = np.ndarray[Any, np.dtype[np.bool_]]

#: A function that says in words where a row is, for errors.
Place = Callable[[int], str]

#: A column of labels or categories has at most VALUES different values; and at most SOME, if there are on average fewer
#: than FEW rows per value.
VALUES, SOME, FEW = 10_000, 50, 10
#: The text about numbers that float32 rounds too much.
ROUNDED = "these numbers are rounded to 32 bits and hardly differ"
#: How many inputs are converted at a time.
PIECE = 2**20


@dataclass(frozen=True)
class Inputs:
    """The features of all rows.

    x, x_test: the training and test rows, `[n, inputs]` float32. names: the names of the inputs. mean, std: of each
    input over the training rows; 0 and 1 for inputs that are 0 or 1 for a category. categories: the number of
    categories of each column, 0 for a column of numbers. notes: lines that say what was inferred.
    """

    x: Array
    x_test: Array
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    categories: tuple[int, ...]
    notes: tuple[str, ...]


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def coded(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """The values of a column as numbers 0, 1, … in their order, −1 where a value is missing, and the values as text.

    >>> codes, names = coded(pa.chunked_array([[10, 9, None, 9]]))
    >>> codes.tolist(), names
    ([1, 0, -1, 0], ['9', '10'])
    """
    if pa.types.is_dictionary(column.type):
        if column.type.ordered:
            return _in_their_order(column)
        column = column.cast(column.type.value_type)
    whole = column.combine_chunks().dictionary_encode()
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    values = whole.dictionary
    order = pc.sort_indices(values).to_numpy()
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    codes = whole.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    return place[codes], [_name(value) for value in values.take(pa.array(order)).to_pylist()]


def _in_their_order(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """The same for categories that have an order; categories without rows are left out."""
    whole = column.unify_dictionaries().combine_chunks()
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    codes: Ints = whole.indices.cast(pa.int64()).fill_null(len(whole.dictionary)).to_numpy()
    place = np.full(len(whole.dictionary) + 1, -1, dtype=np.int64)
    used = np.unique(codes[codes < len(whole.dictionary)])
    place[used] = np.arange(len(used))
    return place[codes], [_name(whole.dictionary[int(i)].as_py()) for i in used]


def _name(value: object) -> str:
    """A value as text: whole floating-point numbers without a decimal point, true and false in small letters."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def classes(name: str, column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """The class of each row and the names of the classes; refuses a single class, and columns that look like an id."""
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


def in_order(row: int) -> str:
    """Where a row is, in a table that was not read from files."""
    return f"row {row + 1}"


def numbers(name: str, column: pa.ChunkedArray, setting: str, place: Place = in_order) -> Array:
    """A column as float32, NaN where a value is missing; text is refused. setting: the column's role, for errors."""
    if is_text(column.type):
        raise _text_error(name, column, setting, place)
    if not is_number(column.type) and not pa.types.is_boolean(column.type):
        raise _kind_error(name, column.type, setting)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    out, at = np.empty(len(column), dtype=np.float32), 0
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


def _text_error(name: str, column: pa.ChunkedArray, setting: str, place: Place) -> ArnoError:
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
    return ArnoError(f"{setting} {name}: {values[row].as_py()!r} in {place(row)}", rule, remedy)


def _as_categories(name: str, column: pa.ChunkedArray, forced: bool, place: Place) -> bool:
    """Whether a column has categories; refuses text in a column of numbers."""
    if forced or pa.types.is_boolean(column.type) or pa.types.is_dictionary(column.type):
        return True
    if not is_text(column.type):
        return False
    values = column.combine_chunks()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if grouped(values):
        one = next((value for value in values.to_pylist() if value and "," in value), "")
        rule = "the comma may be a decimal comma or may group thousands"
        remedy = f"write {one.replace(',', '.')} or {one.replace(',', '')}; data.skip=[{name}] leaves the column out"
        raise ArnoError(f"column {name}: {one}", rule, remedy)
    numeric, known = int(_numeric_text(values).sum()), len(values) - values.null_count
    if 2 * numeric >= known > numeric:  # if all are numbers, they are codes with leading zeros
        raise _text_error(name, column, "column", place)
    return True


@dataclass(frozen=True)
class Categories:
    """A column with categories. codes: the category of each row; −1 if it is missing, or if no training row has it."""

    codes: Array
    values: tuple[str, ...]
    unknown: int
    missing: int

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray, training: Bools) -> Categories:
        """The categories of the training rows. Other categories of other rows count as unknown."""
        codes, values = coded(column)
        if many(len(values), len(codes)):
            one, remedy = values[len(values) // 2], f"leave it out: data.skip=[{name}]"
            rule = f"{len(values):,} different values in {len(codes):,} rows, such as {one!r}, are no categories"
            if one[:1].isdigit():
                remedy = f"if they are numbers, write them without letters; else {remedy}"
            raise ArnoError(f"column {name}", rule, remedy)
        seen = np.unique(codes[training & (codes >= 0)])
        place = np.full(len(values) + 1, -1, dtype=np.int32)  # the last number is for missing values
        place[seen] = np.arange(len(seen))
        unknown = int(((place[codes] < 0) & (codes >= 0)).sum())
        return cls(place[codes], tuple(values[i] for i in seen), unknown, column.null_count)


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: mean and deviation over the training rows, and how many rows have no value.

    rounded: whether the numbers differ so little that they are hardly different in 32 bits.
    """

    mean: float
    std: float
    missing: int
    rounded: bool = False

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray, training: Ints, place: Place) -> Numbers | None:
        """The column; None if no training row has a value. training: the indices of the training rows."""
        if pa.types.is_null(column.type):
            return None
        x = numbers(name, column, "column", place)
        if len(bad := np.flatnonzero(np.isinf(x))):
            rule = "a number must be finite and fit into 32 bits"
            raise ArnoError(f"column {name}: {place(int(bad[0]))}", rule, "correct these values, or leave them empty")
        missing, known = int(np.isnan(x).sum()), x.take(training)
        if missing:
            known = known[~np.isnan(known)]
            if not len(known):
                return None
        known = known.astype(np.float64)
        middle, spread = float(known.mean()), float(known.std())
        return cls(middle, spread if spread > CONSTANT * abs(middle) else 1.0, missing, rounded(middle, spread))


def rounded(mean: float, std: float) -> bool:
    """Whether numbers with this mean and deviation lose much precision in float32.

    Large numbers that are all equal in float32 may differ before rounding.

    >>> rounded(1.7e9, 300.0), rounded(1.7e9, 3e7), rounded(2000.0, 10.0), rounded(3.3, 0.0)
    (True, False, False, False)
    """
    step = float(np.spacing(np.float32(abs(mean))))
    return std < 100 * step and (std > step / 1000 or abs(mean) >= 2**24)


def inputs(
    columns: dict[str, pa.ChunkedArray], categories: Sequence[str], training: Bools, place: Place = in_order
) -> Inputs:
    """The features of all rows. Means, deviations and categories are those of the training rows.

    columns: the features by name. The mapping is empty afterwards, so that the memory of the rows is freed.
    A missing number is replaced with the mean of its column. A missing category has 0 in all inputs of its column.
    """
    found, empty, rows = dict[str, Categories | Numbers](), list[str](), np.flatnonzero(training)
    for name in list(columns):
        if _as_categories(name, columns[name], name in categories, place):
            found[name] = Categories.of(name, columns.pop(name), training)
        elif (of := Numbers.of(name, columns[name], rows, place)) is not None:
            found[name] = of
        else:
            empty.append(name)
            del columns[name]
    x, x_test = _filled(columns, found, training)
    names, mean, std, counts = list[str](), list[float](), list[float](), list[int]()
    for name, one in found.items():
        if isinstance(one, Numbers):
            names, mean, std, counts = [*names, name], [*mean, one.mean], [*std, one.std], [*counts, 0]
        elif k := len(one.values):
            names += [f"{name}={value}" for value in one.values]
            mean, std, counts = [*mean, *[0.0] * k], [*std, *[1.0] * k], [*counts, k]
    return Inputs(x, x_test, tuple(names), tuple(mean), tuple(std), tuple(counts), _notes(found, empty))


def _filled(
    columns: dict[str, pa.ChunkedArray], found: dict[str, Categories | Numbers], training: Bools
) -> tuple[Array, Array]:
    """The inputs of training and test rows.

    Rows are converted and freed in pieces, so that memory holds them only once.
    """
    width = sum(1 if isinstance(of, Numbers) else len(of.values) for of in found.values())
    if not width:
        raise ArnoError("data=table", "no column is left as a feature", "name them with data.features=[…]")
    room(4 * len(training) * width, f"a table of {len(training):,} rows and {width:,} inputs")
    both = [np.empty((int(some.sum()), width), dtype=np.float32) for some in (training, ~training)]
    plain = {name: place for place, name in enumerate(columns)}
    whole = pa.table([*columns.values(), pa.nulls(len(training))], names=[*map(str, range(len(plain) + 1))])
    columns.clear()
    pieces, at, done = whole.to_batches(max_chunksize=max(1, PIECE // width))[::-1], 0, [0, 0]
    del whole
    while pieces:
        piece = pieces.pop()
        block, place = np.empty((piece.num_rows, width), dtype=np.float32), 0
        for name, of in found.items():
            if isinstance(of, Numbers):
                x = numbers(name, pa.chunked_array([piece.column(plain[name])]), "column")
                block[:, place] = np.where(np.isnan(x), np.float32(of.mean), x) if of.missing else x
                place += 1
            else:
                codes = of.codes[at : at + len(block), None]
                block[:, place : place + len(of.values)] = codes == np.arange(len(of.values))
                place += len(of.values)
        trains = training[at : at + len(block)]
        for i, some in enumerate((trains, ~trains)):
            count = int(some.sum())
            both[i][done[i] : done[i] + count] = block[some]
            done[i] += count
        at += len(block)
        del piece
        if 8 * at // len(training) > 8 * (at - len(block)) // len(training):
            pa.default_memory_pool().release_unused()  # frees the memory of the converted rows
    return both[0], both[1]


def _notes(found: dict[str, Categories | Numbers], empty: list[str]) -> tuple[str, ...]:
    """What was inferred about the features, in lines."""
    plain = [name for name, of in found.items() if isinstance(of, Numbers)]
    lines = [f"numbers: {shortened(plain, 20)}"] * bool(plain)
    for name, of in found.items():
        if isinstance(of, Numbers) and of.rounded:
            lines.append(f"{name}: {ROUNDED}; subtract {of.mean:.4g} from them first, or leave them out")
        if isinstance(of, Categories):
            lines.append(f"categories of {name}: {shortened(of.values, 12)}")
            lines += [f"{name}: {of.unknown:,} test rows have a category that no training row has"] * (of.unknown > 0)
    if filled := [f"{name} {of.missing:,}" for name, of in found.items() if of.missing]:
        said = shortened(filled, 20)
        lines.append(f"missing values, replaced with the mean of the training rows (a category: with none): {said}")
    if empty:
        lines.append(f"left out, no values: {shortened(empty, 20)}")
    return tuple(lines)
