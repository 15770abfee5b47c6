"""Texts in a table as values: marks of missing values, numbers in the usual formats, and codes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

#: Signs that may stand before or after every number of a column.
SIGNS = ("%", "$", "€", "£", "¥")
#: How thousands are grouped: the pattern of all numbers; a pattern that at least one number must have, so that the
#: format is certain; the marks to remove; and the decimal mark.
GROUPED = (
    (r"^[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?$", r",\d{3}[,.]", ",", "."),
    (r"^[-+]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?$", r"\.\d{3}[.,]", r"\.", ","),
    (r"^[-+]?(\d{1,3}(['’   ]\d{3})+|\d+)(\.\d+)?$", r"\d['’   ]\d{3}", "['’   ]", "."),
    (r"^[-+]?(\d{1,3}(['’   ]\d{3})+|\d+)(,\d+)?$", r"\d['’   ]\d{3}", "['’   ]", ","),
)
DECIMAL_COMMA = r"^[-+]?\d+(,\d+)?([eE][-+]?\d+)?$"
#: A whole number with a leading zero: a code, such as a postal code.
CODE = r"^[-+]?0\d+$"


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are strings. For a dictionary, the type of its values counts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def marks() -> list[str]:
    """The texts that stand for a missing value."""
    from pyarrow import csv

    return [*csv.ConvertOptions().null_values, "?"]


def valued(column: pa.ChunkedArray, exact: bool = False) -> pa.ChunkedArray:
    """A column of text with missing values in place of marks; as numbers if all remaining values are numbers.

    exact: the values are names (of classes, clients, categories); they are not rounded, and 07 is not 7. Columns of
    other types are not changed. Whole numbers with a leading zero are codes and remain text.

    >>> valued(pa.chunked_array([["1,5", "?", " 2 "]])).to_pylist(), valued(pa.chunked_array([["07", "1"]])).to_pylist()
    ([1.5, None, 2.0], ['07', '1'])
    """
    if not is_text(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        known = pa.concat_arrays([chunk.dictionary for chunk in column.chunks])
        if not pc.any(pc.is_in(pc.utf8_trim_whitespace(known), value_set=pa.array(marks(), known.type))).as_py():
            return column
        column = column.cast(column.type.value_type)
    text = pc.utf8_trim_whitespace(column)
    text = pc.if_else(pc.is_in(text, value_set=pa.array(marks(), text.type)), pa.scalar(None, text.type), text)
    if text.null_count == len(text):
        return text
    if exact:
        return _as_written(text)
    try:
        text.slice(0, 1000).cast(pa.float64())  # for most columns of text, this raises the exception
        return text if _some(text, CODE) else text.cast(pa.float64())
    except pa.ArrowInvalid:
        return _spelled(text)


def _as_written(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Names as numbers, for their order, if each number has one spelling: whole numbers, or floating-point numbers."""
    if _some(text, CODE):
        return text
    try:
        return text.cast(pa.int64())
    except pa.ArrowInvalid:
        if _all(text.drop_null(), r"^[-+]?\d+$"):  # a number of more than 64 bits would be rounded
            return text
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        return text


def _spelled(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers with a sign (12 %, $5), with a decimal comma or with grouped thousands; any other text unchanged."""
    bare = pc.replace_substring_regex(text, "^\N{MINUS SIGN}", "-") if _some(text, "^\N{MINUS SIGN}") else text
    known = bare.drop_null()
    for sign in SIGNS:
        if all(pc.all(pc.match_substring(some, sign)).as_py() for some in (known[:1000], known)):
            bare = pc.utf8_trim_whitespace(pc.replace_substring(bare, sign, "", max_replacements=1))
            known = bare.drop_null()
    if bare is not text:
        try:
            return bare.cast(pa.float64())
        except pa.ArrowInvalid:
            pass
    if _all(known, DECIMAL_COMMA):
        return text if grouped(known) else pc.replace_substring(bare, ",", ".").cast(pa.float64())
    for pattern, certain, remove, decimal in GROUPED:
        if _all(known, pattern) and _some(known, certain):
            plain = pc.replace_substring_regex(bare, remove, "")
            return pc.replace_substring(plain, decimal, ".").cast(pa.float64())
    return text


def grouped(text: pa.ChunkedArray | pa.Array) -> bool:
    """Whether all texts are numbers, and a comma may be a decimal comma or may group thousands, as in 1,234."""
    return _all(text, r"^[-+]?\d{1,3}(,\d{3})?$") and bool(pc.any(pc.match_substring(text, ",")).as_py())


def _all(text: pa.ChunkedArray | pa.Array, pattern: str) -> bool:
    """Whether all texts match.

    The first values are tested first, because they decide most columns that do not match.
    """
    return all(pc.all(pc.match_substring_regex(some, pattern)).as_py() is not False for some in (text[:1000], text))


def _some(text: pa.ChunkedArray | pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(text, pattern)).as_py())
