"""Images and labels from Parquet files in the layout of the hub: one column of encoded images, one of labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .. import machine
from ..errors import ArnoError
from ..limits import CHARACTERS, CLASSES, FLOOR, IMAGE, RATIO, inside, parse_json, regular, room, unpacked
from .images import Array, Blob, cached, decode, drop_grey

IMAGE_NAMES = ("img", "image", "picture", "pixel_values")
LABEL_NAMES = ("label", "fine_label", "labels", "class", "target")
#: How many bytes a value takes in memory, by its type in the file.
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 8}
#: The values of a file may take this many bytes in memory, or RATIO times the bytes of the file if this is more.
VALUES = 2**30


def find_parquet(folder: Path) -> dict[str, list[Path]]:
    """The files `train-*.parquet` and `test-*.parquet` of a folder; links must stay in it."""
    found = {split: sorted(folder.glob(f"{split}-*.parquet")) for split in ("train", "test")}
    return {split: [regular(inside(folder, path)) for path in files] for split, files in found.items()}


def read_parquet(
    name: str,
    train: list[Path],
    test: list[Path],
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    size: int | None = None,
) -> dict[str, Array]:
    """Arrays x, y, x_test, y_test and classes (names). The first call decodes the images; later calls read the cache.

    Args:
        name: the name of the data set, for the cache.
        train, test: the files; without test files, x_test and y_test are left out.
        image_column, label_column: found by name and type if they are not given.
        size: images are resized to `size` × `size`; without it all must have the same size.
    """

    def build() -> dict[str, Array]:
        image, label, names = _columns(train[0], image_column, label_column)
        x, y = _read(train, image, label, size)
        x_test, y_test = _read(test, image, label, size) if test else (x[:0], y[:0])
        if y.dtype.kind != "i":
            found, y = np.unique(y, return_inverse=True)
            if not np.isin(y_test, found).all():
                rule = "a label occurs only in the test data"
                raise ArnoError(f"column {label} of {test[0]}", rule, "remove these samples")
            y_test, names = np.searchsorted(found, y_test), [str(v) for v in found]
        x, x_test = drop_grey(x, x_test)
        last = int(max(y.max(initial=0), y_test.max(initial=0)))
        if last >= CLASSES:
            rule = f"at most {CLASSES:,} classes are read"
            raise ArnoError(f"column {label} of {train[0]}: label {last}", rule, "number the classes from 0")
        classes = names or [str(i) for i in range(last + 1)]
        rest = {"x_test": x_test, "y_test": y_test} if test else {}
        return {"x": x, "y": y, "classes": np.array(classes, dtype=np.str_), **rest}

    return cached(name, [*train, *test], (image_column, label_column, size), build)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise ArnoError(
            str(path), f"damaged or not a Parquet file: {reason}", "delete it and download it again"
        ) from error


def _columns(path: Path, image: str | None, label: str | None) -> tuple[str, str, list[str]]:
    """The names of the image column, of the label column, and of the classes if the file has them."""
    import pyarrow
    from pyarrow import parquet

    with _reading(path):
        schema = parquet.read_schema(path)

    def is_image(kind: Any) -> bool:
        if pyarrow.types.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))

    def is_label(kind: Any) -> bool:
        return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_string(kind))

    def pick(asked: str | None, what: str, usual: tuple[str, ...], fits: Any) -> str:
        fitting = [f.name for f in schema if fits(f.type)]
        known = [n for n in (usual if asked is None else [asked]) if n in fitting]
        if known or (asked is None and len(fitting) == 1):
            return (known or fitting)[0]
        rule = f"the column of the {what} is not known; there are {', '.join(schema.names)}"
        raise ArnoError(f"{path}: column {asked or 'not named'}", rule, f"set data.{what}_column")

    image = pick(image, "image", IMAGE_NAMES, is_image)
    label = pick(label, "label", LABEL_NAMES, is_label)
    about: Any = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"), f"{path}: its key huggingface")
    for key in ("info", "features", label, "names"):
        about = about.get(key) if isinstance(about, dict) else None
    return image, label, [str(n) for n in about] if isinstance(about, list) else []


def open_parquet(path: Path, **options: Any) -> Any:
    """A Parquet file whose sizes are plausible.

    Columns of repeated texts remain dictionaries, which take less memory.
    """
    from pyarrow import parquet

    about = parquet.read_metadata(path)
    packed = path.stat().st_size
    groups = (about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    unpacked(sum(groups), packed, str(path))
    room(sum(WIDTHS.get(one.physical_type, 16) * one.num_values for one in _chunks(about)), str(path), _most(packed))
    texts = {one.path_in_schema for one in _chunks(about) if one.physical_type == "BYTE_ARRAY"}
    odd = {one.path_in_schema for one in _chunks(about) if any(kind.startswith("DELTA") for kind in one.encodings)}
    coded = sorted(name for name in texts - odd if "." not in name)
    return parquet.ParquetFile(path, read_dictionary=coded, **options)


def plain_batches(path: Path, rows: int, **options: Any) -> tuple[Any, Iterator[Any]]:
    """The schema of a Parquet file, and its rows without dictionaries. rows: the most rows of a batch.

    See `measured` for the files that are refused.
    """
    import pyarrow
    from pyarrow import parquet

    file, schema = open_parquet(path, **options), parquet.read_schema(path)
    batches = measured(file.iter_batches(batch_size=_rows_at_once(file.metadata, rows)), path)
    return schema, (
        pyarrow.record_batch(
            [
                column.cast(kind) if pyarrow.types.is_dictionary(column.type) and column.type != kind else column
                for column, kind in zip(batch.columns, schema.types, strict=True)
            ],
            schema.names,
        )
        for batch in batches
    )


def measured(batches: Iterable[Any], path: Path) -> Iterator[Any]:
    """Batches of rows; refuses a file whose values without dictionaries take implausibly many bytes."""
    import pyarrow
    from pyarrow import compute

    size = 0
    for batch in batches:
        for column in batch.columns:
            if not pyarrow.types.is_dictionary(column.type):
                size += column.nbytes
            elif pyarrow.types.is_binary(column.type.value_type) or pyarrow.types.is_string(column.type.value_type):
                lengths = compute.binary_length(column.dictionary).cast("int64").take(column.indices)
                size += compute.sum(lengths).as_py() or 0
        room(size, str(path), _most(path.stat().st_size))
        yield batch


def _rows_at_once(about: Any, most: int) -> int:
    """How many rows are read at a time; fewer if a few bytes of the file may stand for long values in many rows."""
    longest = max([1, *(_longest(one) for one in _chunks(about) if one.physical_type == "BYTE_ARRAY")])
    return max(1, min(most, FLOOR // longest))


def _longest(chunk: Any) -> int:
    """The most bytes of a value that a chunk of texts may repeat."""
    whole = int(chunk.total_uncompressed_size)
    if "DELTA_BYTE_ARRAY" in chunk.encodings:
        return whole
    if not chunk.has_dictionary_page or "." not in chunk.path_in_schema:  # memory holds each value of a dictionary once
        return 1
    pages = chunk.total_compressed_size - (chunk.data_page_offset - chunk.dictionary_page_offset)
    return whole - min(whole, max(0, int(pages)))


def _chunks(about: Any) -> Iterator[Any]:
    """The chunks of all columns, from the metadata of a file."""
    for i in range(about.num_row_groups):
        group = about.row_group(i)
        yield from (group.column(j) for j in range(group.num_columns))


def _most(packed: int) -> int:
    """The most bytes that the values of a file may take in memory; equal values take almost no space in a file."""
    return min(max(VALUES, RATIO * packed), machine.memory())


def _read(files: list[Path], image: str, label: str, size: int | None) -> tuple[Array, Array]:
    """Decoded images and labels (as stored) of some files."""
    from pyarrow import parquet

    labels: list[Array] = []

    def blobs() -> Iterator[Blob]:
        for path in files:
            with _reading(path), open_parquet(path) as file:
                row, some = 0, _rows_at_once(file.metadata, 2048)
                for batch in file.iter_batches(batch_size=some, columns=[image, label]):
                    column = batch.column(label)
                    if column.null_count:
                        raise ArnoError(f"{path}: column {label}", "a sample has no label", "remove such rows")
                    labels.append(_labels(path, column))
                    for scalar in batch.column(image):  # one image at a time: the batch stores equal images once
                        value = scalar.as_py()
                        content = value.get("bytes") if isinstance(value, dict) else value
                        if content is None:
                            raise ArnoError(f"{path}: row {row}", "it has no image bytes", "remove such rows")
                        room(len(content), f"{path}: row {row}", IMAGE)
                        yield f"{path}: row {row}", content
                        row += 1

    count = 0
    for path in files:
        with _reading(path):
            count += parquet.read_metadata(path).num_rows
    x = decode(blobs(), count, size)
    y = np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)
    return x, y.astype(np.int64) if y.dtype.kind in "iu" else y.astype(np.str_)


def _labels(path: Path, column: Any) -> Array:
    """The labels as they are stored; refuses long texts."""
    import pyarrow
    from pyarrow import compute

    if pyarrow.types.is_dictionary(column.type):
        room(compute.max(compute.binary_length(column.dictionary)).as_py() or 0, f"{path}: a label", CHARACTERS)
        column = column.cast(column.type.value_type)
    labels: Array = column.to_numpy(zero_copy_only=False)
    return labels
