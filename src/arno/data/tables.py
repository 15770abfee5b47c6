"""Files of tables: the files that a setting names, and their rows with types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path

import pyarrow as pa

from ..errors import ArnoError
from ..limits import few_columns, files_in, inside, place, regular
from ..limits import shortened as shortened_text
from .cell_values import is_text, valued
from .columns import is_number
from .csv_files import read_csv
from .dataset import shortened
from .feather import mapped_batches
from .parquet import measured, plain_batches

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
#: If every file is a client: the name of the added column with the client of a row. No other column has this name.
FILE = "\0client"
#: What the user can do with files that are not tables, by suffix.
REMEDIES = {
    **dict.fromkeys((".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".tar"), "unpack it first"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as CSV"),
}
#: How many rows of a Parquet file are read at a time, and how many bytes of a column.
ROWS, BUFFER = 2**15, 2**17


def kind_of(file: Path) -> str | None:
    """How a file is read: csv, parquet or feather; None if its kind is not known.

    CSV files may be compressed with gzip.

    >>> kind_of(Path("a.CSV")), kind_of(Path("a.csv.gz")), kind_of(Path("a.parquet.gz")), kind_of(Path("a.gz"))
    ('csv', 'csv', None, None)
    """
    if file.suffix.lower() != ".gz":
        return SUFFIXES.get(file.suffix.lower())
    return "csv" if SUFFIXES.get(Path(file.stem).suffix.lower()) == "csv" else None


def stem(file: Path) -> str:
    """The name of a file without its suffixes."""
    return Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem


def several(path: object) -> bool:
    """Whether a path is a list, a folder or a pattern. A path with brackets is a file if this file exists."""
    return not isinstance(path, str) or place(path).is_dir() or (has_magic(path) and not place(path).exists())


@dataclass(frozen=True)
class Read:
    """The rows of one or several files.

    by_file: whether the column FILE says from which file a row is. lengths: the number of rows of each file. mixed: the
    columns that have text in one file and numbers in another; for each of them, a text that says where.
    """

    setting: str
    table: pa.Table
    files: list[Path]
    by_file: bool
    lengths: tuple[int, ...] = ()
    mixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """What was read, for errors. Data of a Python program come from no file."""
        return f"{self.setting} = {self.files[0]}" if self.lengths else self.setting


def read(setting: str, path: str | Sequence[str], by_file: bool, exact: Container[str]) -> Read:
    """All rows of the files. exact: columns whose numbers are names and are not rounded."""
    files = _files(setting, path)
    stems = [stem(file) for file in files]
    if by_file and len(set(stems)) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        rule = f"two files are called {twice}, and every file is a client"
        raise ArnoError(f"{setting} = {path}", rule, "rename one, or name a column: data.client=hospital")
    tables = [_load(setting, file, exact) for file in files]
    for file, table in zip(files, tables, strict=True):
        _refuse_columns(files[0], tables[0].column_names, file, table.column_names)
    tables = [table.select(tables[0].column_names) for table in tables]
    mixed, lengths = _mixed(files, tables), tuple(map(len, tables))
    if by_file:
        tables = [
            table.append_column(FILE, pa.repeat(name, len(table))) for name, table in zip(stems, tables, strict=True)
        ]
    return Read(setting, joined(tables), files, by_file, lengths, mixed)


def _mixed(files: list[Path], tables: list[pa.Table]) -> dict[str, str]:
    """The columns with text in one file and numbers in another; for each of them, a text that names both files."""
    found = {}
    for name in tables[0].column_names:
        columns = [(file, table[name]) for file, table in zip(files, tables, strict=True)]
        columns = [(file, column) for file, column in columns if column.null_count < len(column)]
        text = next((file for file, column in columns if is_text(column.type)), None)
        other = next((file for file, column in columns if is_number(column.type)), None)
        if text is not None and other is not None:
            found[name] = f"it has text in {text.name} and numbers in {other.name}"
    return found


def _files(setting: str, path: str | Sequence[str]) -> list[Path]:
    """The files that a setting names, sorted if it is a folder or a pattern."""
    if not isinstance(path, str):
        files = [place(one) for one in path]
    elif (there := place(path)).is_dir():
        files = files_in(there, there, lambda name: kind_of(Path(name)) is not None and name[0] != ".")
    elif several(path):
        files = [
            inside(file.parent, file) if file.is_symlink() else file for file in sorted(map(Path, glob(str(there))))
        ]
    else:
        files = [there]
    if not files:
        rule = f"it has no file of a known kind ({', '.join(SUFFIXES)})"
        raise ArnoError(f"{setting} = {path}", rule, "name a file")
    for file in files:
        if kind_of(regular(file, f"{setting} =")) is None:
            rule = f"its kind is unknown; known are {', '.join(SUFFIXES)}"
            raise ArnoError(
                f"{setting} = {file}", rule, REMEDIES.get(file.suffix.lower(), "rename or convert the file")
            )
    real = [file.resolve() for file in files]
    if len(set(real)) < len(real):
        twice = next(file for i, file in enumerate(real) if file in real[:i])
        raise ArnoError(f"{setting}: {twice}", "it is named twice, and its rows would count twice", "name it once")
    return files


def _load(setting: str, file: Path, exact: Container[str]) -> pa.Table:
    """The rows of a file, with types; they are read in batches."""
    kind = kind_of(file)
    try:
        if kind == "parquet":
            schema, batches = plain_batches(file, ROWS, buffer_size=BUFFER, pre_buffer=False)
            few_columns(f"{setting} = {file}", len(schema))
            loaded = _narrowed(schema, batches, exact)
        elif kind == "feather":
            schema, batches = mapped_batches(file)
            few_columns(f"{setting} = {file}", len(schema))
            loaded = _narrowed(schema, measured(batches, file), exact)
        else:
            loaded = read_csv(file, exact)
            loaded.validate(full=True)
        names = loaded.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(f"{setting} = {file}", str(kind), error) from error
    trimmed = [name.strip() for name in names]
    names = trimmed if len(set(trimmed)) == len(set(names)) else names
    names = [name or f"Unnamed: {i}" for i, name in enumerate(names)] if names.count("") > 1 else names
    loaded = loaded.rename_columns(names)
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise ArnoError(f"{setting} = {file}", f"two columns are called {twice!r}", "rename one of them")
    if not len(loaded):
        raise ArnoError(f"{setting} = {file}", "it has no rows", "is this the right file?")
    return pa.table([valued(loaded[name], name in exact) for name in names], names=names)


def _unreadable(what: str, kind: str, error: Exception) -> ArnoError:
    """The error for a file that Arrow cannot read."""
    why = " ".join(str(error).split()).rstrip(".")
    if "cannot infer number of columns" in why:
        return ArnoError(what, "it has no rows", "is this the right file?")
    remedy = "is the file damaged?"
    if "Expected" in why:
        remedy = "correct this line; a value that has the separator in it needs quotes"
    elif kind == "feather" and "Not an Arrow file" in why:
        why += "; streams and Feather version 1 are not read"
    why = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in why)
    return ArnoError(what, f"it cannot be read as {kind}: {shortened_text(why)}", remedy)


def _narrowed(schema: pa.Schema, batches: Iterable[pa.RecordBatch], exact: Container[str]) -> pa.Table:
    """A table of batches, each checked when it is read. Numbers become float32 at once, which saves memory.

    exact: columns whose numbers are names and are not rounded.
    """
    kinds = [
        pa.float32()
        if is_number(one.type) and not pa.types.is_decimal(one.type) and one.name.strip() not in exact
        else one.type
        for one in schema
    ]
    kept = pa.schema([pa.field(name, kind) for name, kind in zip(schema.names, kinds, strict=True)])
    out = []
    for batch in batches:
        batch.validate(full=True)  # a damaged file may point outside its own buffers
        columns = [
            # A column that is not cast is copied, because otherwise it would keep the memory of the whole batch.
            pa.concat_arrays([column, column[:0]]) if column.type == kind else column.cast(kind, safe=False)
            for column, kind in zip(batch.columns, kinds, strict=True)
        ]
        out.append(pa.record_batch(columns, schema=kept))
    pa.default_memory_pool().release_unused()
    return pa.Table.from_batches(out, kept)


def joined(tables: list[pa.Table]) -> pa.Table:
    """Tables with the same columns, one below the other. A column with text in one table is text in all tables."""
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
    there, here = set(known), set(names)  # sets, because to search a list of 32,768 names for each name takes long
    lacks, extra = [n for n in known if n not in here], [n for n in names if n not in there]
    if lacks or extra:
        said = [f"{word} {shortened(some)}" for word, some in (("lacks", lacks), ("has also", extra)) if some]
        raise ArnoError(
            f"{file}: it {' and '.join(said)}", f"{first.name} has other columns", "give all files the same"
        )
