"""CSV files, plain or compressed with gzip: separator, types, and rows that are read block after block."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Container
from pathlib import Path

import pyarrow as pa

from ..errors import ArnoError
from ..limits import Capped, few_columns
from .cell_values import marks

#: How many bytes at the start of a file show its separator and its type.
START = 2**20
SEPARATORS = (",", ";", "\t", "|")
#: In some files, the first line only names the separator.
SEPARATOR_LINE = rb"^(?:\xef\xbb\xbf)?\"?sep=(.)\"?\r?\n"
#: The first bytes of files that are not text, the kind of such a file, and what the user can do with it.
NO_TEXT = (
    (b"\xff\xfe\0\0", "UTF-32 text", "save the file as UTF-8"),
    (b"\xff\xfe", "UTF-16 text", "save the file as UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "save the file as UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text", "save the file as UTF-8"),
    (b"\x1f\x8b", "packed with gzip", "give it a name that ends with .csv.gz"),
    (b"PK\x03\x04", "a ZIP archive or a workbook of Excel", "unpack it, or save it as CSV"),
    (b"PAR1", "a Parquet file", "give it a name that ends with .parquet"),
    (b"ARROW1", "a Feather file", "give it a name that ends with .feather"),
)


def read_csv(file: Path, exact: Container[str]) -> pa.Table:
    """The rows of a file. The first line has the names, separated by commas, semicolons, tabs or vertical bars.

    The types follow from the first block of rows, and numbers are read as float32, block after block, which takes only
    a fraction of the memory. If a later row does not fit the types, the whole file is read to find the types.

    exact: columns whose values are names. Numbers in these columns are read as text, as they are written.
    """
    from pyarrow import csv

    start = _start(file)
    convert = csv.ConvertOptions(null_values=marks(), strings_can_be_null=True)
    named = re.match(SEPARATOR_LINE, start)
    mark = named[1].decode() if named else separator(start)
    few_columns(f"{file}", columns(start[named.end() if named else 0 :], mark.encode()))
    parse = csv.ParseOptions(delimiter=mark, newlines_in_values=b'"' in start)
    options = {"parse_options": parse, "read_options": csv.ReadOptions(skip_rows=1 if named else 0)}
    names = {}
    try:
        with csv.open_csv(str(file), convert_options=convert, **options) as first_block:
            schema = first_block.schema
        names = {one.name: pa.string() for one in schema if one.name.strip() in exact and _may_be_number(one.type)}
        if len(set(schema.names)) == len(schema.names):
            kinds = {one.name: pa.float32() if _is_number(one.type) else one.type for one in schema}
            convert.column_types = kinds | names
        with csv.open_csv(str(file), convert_options=convert, **options) as blocks:
            return blocks.read_all()
    except UnicodeDecodeError as error:
        raise ArnoError(f"the first line of {file}", "it is no UTF-8 text", "save the file as UTF-8") from error
    except pa.ArrowInvalid as error:
        _refuse_title(file, start, error)
        convert.column_types, parse.newlines_in_values = names, True
        return csv.read_csv(str(file), convert_options=convert, **options)


def columns(start: bytes, mark: bytes) -> int:
    """How many columns the first line of a file names; a quote counts only at the beginning of a value.

    >>> columns(b'a,"b,c' + b"\\n" + b'",d"e,f"' + b"\\r" + b"1,2,3,4", b",")
    4
    """
    begin = rb"(^|%s|[\r\n])" % re.escape(mark)
    plain = re.sub(begin + rb'(?:"[^"]*")+', rb"\1", start.removeprefix(b"\xef\xbb\xbf").lstrip())
    return 1 + re.split(rb"[\r\n]", plain, maxsplit=1)[0].count(mark)


def _start(file: Path) -> bytes:
    """The first bytes of a file.

    Refuses files that are not text, and packed files that unpack to implausibly many bytes.
    """
    try:
        if file.suffix.lower() == ".gz":
            with gzip.open(file) as opened:
                content = Capped(opened, file.stat().st_size, str(file))
                start = content.read(START)
                while content.read(START):
                    pass
        else:
            with file.open("rb") as plain:
                start = plain.read(START)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArnoError(f"{file}", f"it cannot be unpacked ({error})", "is the file damaged?") from error
    for mark, kind, remedy in NO_TEXT:
        if start.startswith(mark):
            raise ArnoError(f"{file}", f"it is {kind}", remedy)
    if b"\0" in start:
        raise ArnoError(f"{file}", "it holds null characters and is no UTF-8 text", "save the file as CSV in UTF-8")
    if not start.strip():
        raise ArnoError(f"{file}", "it is empty", "is this the right file?")
    return start


def separator(start: bytes) -> str:
    r"""The separator that is most frequent in the first line, outside of quotes.

    >>> separator(b'"a;b;c",d\n'), separator(b"\na;b\n1,5;2\n"), separator(b"a\n")
    (',', ';', ',')
    """
    lines = _lines(start)
    return max(SEPARATORS, key=lambda mark: lines[0].count(mark.encode()) if lines else 0)


def _lines(start: bytes) -> list[bytes]:
    """The lines that are not empty, without the text in quotes."""
    return [line for line in re.sub(rb'"[^"]*"', b'""', start[: 2**16]).splitlines() if line.strip()]


def _refuse_title(file: Path, start: bytes, error: pa.ArrowInvalid) -> None:
    """Refuse a file whose first line is a title or a comment: it has one column, and one of the next lines has more."""
    first, *others = (max(line.count(mark.encode()) for mark in SEPARATORS) for line in _lines(start)[:20])
    if first == 0 < max(others, default=0):
        rule = "its first line has one column, and later lines have more"
        remedy = "the first line must name the columns; remove the lines above the names"
        raise ArnoError(f"{file}", rule, remedy) from error


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _may_be_number(kind: pa.DataType) -> bool:
    """Whether the values are numbers, or all values so far are missing."""
    return _is_number(kind) or bool(pa.types.is_null(kind))
