"""The rows of the clients: one Parquet file per checkpoint (a "piece"), and `clients.parquet` at the end of a run.

The name of a piece contains the checksum of the file.
"""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import ArnoError
from ..limits import Unreadable, inside, readable
from . import disk
from .damage import Damaged, checksum, damaged, file_checksum

#: The name of a piece: the round of its checkpoint, and its checksum, which pieces of release 0.1 do not have.
PIECE = re.compile(r"clients-(\d+)(?:-([0-9a-f]{8}))?\.parquet")
#: Columns of whole numbers, and columns of numbers, some of which may be missing.
IDS = ("round", "client")
NUMBERS = ("count", "weight", "steps", "lr", "loss", "downloaded", "uploaded", "seconds", "samples", "tested")

#: How many rows are read at a time.
ROWS = 2**16


def pieces(checkpoints: Path) -> list[Path]:
    """The pieces, oldest first."""
    found = [path for path in checkpoints.glob("clients-*.parquet") if PIECE.fullmatch(path.name)]
    return sorted(found, key=lambda path: (number(path), path.name))


def number(piece: Path) -> int:
    """The round after which a piece was written.

    >>> number(Path("clients-00000010-1a2b3c4d.parquet"))
    10
    """
    found = PIECE.fullmatch(piece.name)
    assert found is not None
    return int(found[1])


def table(columns: dict[str, list[Any]]) -> Any:
    """A table with these columns."""
    import pyarrow as pa

    return pa.table({name: _column(values) for name, values in columns.items()})


def write_piece(rows: Any, checkpoints: Path, t: int) -> None:
    """Write a piece with the rows up to round `t`. The next checkpoint flushes the name of this file to the disk."""
    data = _encoded(rows, checkpoints)
    _write(checkpoints / f"clients-{t:08d}-{checksum(data)}.parquet", data, sync=True)


def write_parquet(rows: Any, path: Path) -> None:
    """Write a table completely or not at all."""
    _write(path, _encoded(rows, path))


def load(path: Path) -> Any:
    """The table in a file; an error if the file is damaged."""
    import pyarrow as pa

    from ..data.parquet import plain_batches

    named = PIECE.fullmatch(path.name)
    folder = path.parent.parent if named else path.parent
    try:
        schema, batches = plain_batches(readable(inside(folder, path)), ROWS)  # it refuses implausible sizes
        if named and named[2] not in (None, file_checksum(path, folder)):
            raise damaged(path, "is damaged: its checksum does not match", folder)
        found = pa.Table.from_batches(list(batches), schema)
        if odd := _odd_column(found):
            raise damaged(path, f"its column {odd} does not hold numbers", folder)
        return found
    except (Damaged, Unreadable):
        raise
    except ArnoError as error:
        raise damaged(path, error.args[1], folder) from error
    except UnicodeEncodeError as error:  # the reader of Parquet takes no such path
        raise ArnoError(f"{path}", "its path has bytes that are no text", "rename the folder") from error
    except MemoryError as error:
        rule = "needs more memory than there is"
        raise ArnoError(f"{path}", rule, "end other programs, or raise the limit, then repeat the command") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, f"cannot be read ({str(error).splitlines()[0][:200]})", folder) from error


def _odd_column(rows: Any) -> str:
    """The first column that does not hold what a run records in it; empty if there is none.

    A table without rows has no types: all clients were dropped.
    """
    from pyarrow import types

    if rows.num_rows == 0:
        return ""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        whole = types.is_integer(column.type)
        number = whole or types.is_floating(column.type) or types.is_null(column.type)
        if (name in IDS and (not whole or column.null_count)) or (name in NUMBERS and not number):
            return str(name)
    return ""


def rounds(piece: Path) -> dict[int, int]:
    """The rounds in a piece, and how many rows each has."""
    found = load(piece)
    if "round" not in found.column_names:
        raise damaged(piece, "has no column round", piece.parent.parent)
    return counted(found)


def counted(rows: Any) -> dict[int, int]:
    """The rounds in a table, and how many rows each has."""
    import numpy as np

    values, counts = np.unique(rows.column("round").to_numpy(), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _encoded(rows: Any, path: Path) -> bytes:
    import pyarrow.parquet as pq

    file = BytesIO()
    try:
        pq.write_table(rows, file)
    except OSError as error:
        raise _unwritten(path, error) from error
    return file.getvalue()


def _write(path: Path, data: bytes, sync: bool = False) -> None:
    try:
        disk.write(path, data, sync)
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> ArnoError:
    return ArnoError(f"cannot write {path}", str(error.strerror or error), "free some space, then arno resume")


def _column(values: list[Any]) -> Any:
    """A column of a table. Numbers avoid Arrow's own conversion: it imports pandas, which takes longer than saving."""
    import numpy as np
    import pyarrow as pa

    plain = values and isinstance(values[0], int | float)  # lists may differ in length
    array = np.asarray(values) if plain else None
    if array is None or array.dtype.kind not in "if":
        return pa.array(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(array)])
