"""Feather files, mapped into memory: rows are converted from the pages of the file, without a copy before."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


def mapped_batches(file: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a Feather file and its rows, batch after batch. A batch is valid until the next one is asked for.

    The pages of a batch are given back before the next batch is read: they would count as memory until the end.
    """
    if not file.stat().st_size:
        raise pa.ArrowInvalid("the file is empty")
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.py_buffer(mapped))

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)
            mapped.madvise(mmap.MADV_DONTNEED)

    return reader.schema, batches()
