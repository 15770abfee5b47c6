"""Feather files, mapped into memory: rows are converted directly from the pages of the file, without a copy."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


def mapped_batches(file: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a Feather file, and its rows in batches. Use a batch before the next one is requested.

    The memory of a batch is released before the next batch is read. Otherwise it would count as memory of the process
    until the end.
    """
    if not file.stat().st_size:
        raise pa.ArrowInvalid("the file is empty")
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.py_buffer(mapped))

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)
            if sys.platform != "win32":  # Windows has no such call
                mapped.madvise(mmap.MADV_DONTNEED)

    return reader.schema, batches()
