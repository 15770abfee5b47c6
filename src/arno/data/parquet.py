"""Images and labels from Parquet files in the layout of the hub: one column of encoded images, one of labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArnoError
from ..limits import CLASSES, IMAGE, inside, parse_json, regular, room, unpacked
from .images import Array, Blob, cached, decode, drop_grey

IMAGE_NAMES = ("img", "image", "picture", "pixel_values")
LABEL_NAMES = ("label", "fine_label", "labels", "class", "target")


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
    """Arrays x, y, x_test, y_test and classes (names); decoded the first time, later read from the cache.

    Args:
        name: of the data set, for the cache.
        train, test: the files; without test files, x_test and y_test are left out.
        image_column, label_column: found by name and type if not given.
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


def refuse_size(path: Path, about: Any) -> None:
    """Refuse a Parquet file whose metadata `about` announce implausibly many bytes."""
    groups = (about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    unpacked(sum(groups), path.stat().st_size, str(path))


def _read(files: list[Path], image: str, label: str, size: int | None) -> tuple[Array, Array]:
    """Decoded images and labels (as stored) of some files."""
    from pyarrow import parquet

    labels: list[Array] = []

    def blobs() -> Iterator[Blob]:
        for path in files:
            with _reading(path), parquet.ParquetFile(path) as file:
                row = 0
                for batch in file.iter_batches(batch_size=2048, columns=[image, label]):
                    column = batch.column(label)
                    if column.null_count:
                        raise ArnoError(f"{path}: column {label}", "a sample has no label", "remove such rows")
                    labels.append(column.to_numpy(zero_copy_only=False))
                    for value in batch.column(image).to_pylist():
                        content = value.get("bytes") if isinstance(value, dict) else value
                        if content is None:
                            raise ArnoError(f"{path}: row {row}", "it has no image bytes", "remove such rows")
                        room(len(content), f"{path}: row {row}", IMAGE)
                        yield f"{path}: row {row}", content
                        row += 1

    count = 0
    for path in files:
        with _reading(path):
            about = parquet.read_metadata(path)
            count += about.num_rows
            refuse_size(path, about)
    x = decode(blobs(), count, size)
    y = np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)
    return x, y.astype(np.int64) if y.dtype.kind in "iu" else y.astype(np.str_)
