"""A user's own data: arrays in an .npz file, or images in one folder per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ...errors import ArnoError
from ...limits import CLASSES, IMAGE, files_in, folders_in, place, read_bytes
from ..archives import read_npz
from ..arrays import from_arrays
from ..dataset import Dataset, datasets
from ..download import home
from ..images import Array, Blob, cached, decode, drop_grey

#: Suffixes of tables, which the source `table` reads.
TABLES = {".csv", ".tsv", ".tab", ".parquet", ".pq", ".feather", ".arrow"}
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}


@datasets.register("npz")
def npz(*, path: str | None = None, test: float = 0.2) -> Dataset:
    """Arrays x, y and, if there are any, x_test, y_test and classes (names) of a NumPy .npz file.

    x may be features `[n, f]`, grey images `[n, H, W]`, or images `[n, C, H, W]` or `[n, H, W, C]`. Images as uint8
    have values 0 to 255; other numbers are used without scaling. Integers in y are class numbers from 0, strings are
    class names, and floating-point values are numbers `[n]` or `[n, outputs]` for a regression. With the array
    `classes`, whole floating-point values are class numbers too. Integers `[n, labels]` of 0 and 1 are several labels.
    If y has integers and the shape of x, and x has whole numbers, y holds the next token at each position of a
    sequence.

    Args:
        path: the file.
        test: the share held out for testing if the file has no test data.
    """
    if path is None:
        raise ArnoError("data=npz", "the file is not named", "add data.path=my.npz")
    arrays = _load(path)
    wanted = ["x", "y"] + ["x_test", "y_test"] * ("x_test" in arrays or "y_test" in arrays)
    if missing := [key for key in wanted if key not in arrays]:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise ArnoError(f"data.path = {path}", f"it lacks {', '.join(missing)}; it has {found}", "add the arrays to it")
    names = arrays.get("classes")
    made = {key: samples_of(f"{key} in {path}", arrays[key]) for key in wanted if key[0] == "x"}
    targets = {key: _targets(path, key, arrays[key], names is not None) for key in wanted if key[0] == "y"}
    kinds = {key: y.dtype.kind for key, y in targets.items()}
    if len({*kinds.values()}) > 1:
        said = ", ".join(f"{key} {arrays[key].dtype}" for key in targets)
        raise ArnoError(f"data.path = {path}: {said}", "all targets are of one kind", "convert y_test to the type of y")
    if "f" in kinds.values():
        return from_arrays(Path(path).stem, made | targets, test=test)
    if "U" in kinds.values():
        names = np.unique(targets["y"]) if names is None else names
        order = {str(name): i for i, name in enumerate(names)}
        for key, y in targets.items():
            targets[key] = np.array([order.get(str(name), -1) for name in y], dtype=np.int64)
    if names is None:
        names = np.arange(_count(path, list(made.values()), list(targets.values())))
    return from_arrays(Path(path).stem, made | targets | {"classes": names}, test=test)


def _count(path: str, samples: Sequence[Array], targets: Sequence[Array]) -> int:
    """The number of classes (or of labels of 0 and 1, or of tokens), if they have no names."""
    if targets[0].ndim == 2 and all(y.min(initial=0) >= 0 and y.max(initial=0) <= 1 for y in targets):
        return int(targets[0].shape[1])
    numbers = [*targets, *samples] if targets[0].ndim == 2 else targets  # tokens are in both
    last = max(float(array.max(initial=0)) for array in numbers)
    if not last < CLASSES:
        rule = f"at most {CLASSES:,} classes are read"
        raise ArnoError(f"data.path = {path}: label {last:.0f}", rule, "number the classes from 0")
    return 1 + int(last)


def _load(path: str) -> dict[str, Array]:
    try:
        return read_npz(place(path))
    except ArnoError as error:
        table = Path(path).suffix.lower() in TABLES
        remedy = (
            f"use data=table data.path={path} data.label=COLUMN" if table else "write it with np.savez(path, x=…, y=…)"
        )
        raise ArnoError(f"data.path = {path}", str(error.args[1]), remedy) from error


def samples_of(what: str, x: Array) -> Array:
    """Features as float32 `[n, f]`, images as `[n, C, H, W]`, uint8 or float32. what: the name of x in errors."""
    if x.dtype.kind not in "uifb" or not 2 <= x.ndim <= 4:
        rule = f"numbers of shape [n, f], [n, H, W] or [n, C, H, W] are needed, not {x.dtype} {list(x.shape)}"
        raise ArnoError(what, rule, "reshape the array")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite and is refused later
        return x.astype(np.float32)


def _targets(path: str, key: str, y: Array, classes: bool) -> Array:
    """Class numbers as int64, class names as strings, numbers as float32. classes: whether class names are given."""
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim == 1 and y.dtype.kind == "U":
        return y
    if y.ndim in (1, 2) and y.dtype.kind in "uib":
        return y.astype(np.int64)
    if y.ndim in (1, 2) and y.dtype.kind == "f":
        if not classes:
            with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite and is refused later
                return y.astype(np.float32)
        if y.ndim == 1 and np.isfinite(y).all() and (y == np.round(y)).all():
            return y.astype(np.int64)
        raise ArnoError(f"{key} in {path}", "with class names every label is a whole number", "leave classes out")
    rule = f"an integer, a string or a floating-point number per sample is needed, not {y.dtype} {list(y.shape)}"
    raise ArnoError(f"{key} in {path}", rule, "use integers for labels, floating-point values for a regression")


@datasets.register("folder")
def folder(*, root: str | None = None, size: int | None = None, test: float = 0.2) -> Dataset:
    """Images sorted into one folder per class: `root/train/<class>/*` and `root/test/<class>/*`, or `root/<class>/*`.

    Args:
        root: the folder.
        size: resize images to `size` × `size` pixels; needed if their sizes differ.
        test: the share held out for testing if there is no folder `test`.
    """
    if root is None:
        raise ArnoError("data=folder", "the folder is not named", "add data.root=my/pictures")
    place = home("folder", root)
    split = (place / "train").is_dir()
    train = _find(place / "train" if split else place, place)
    tested = _find(place / "test", place) if split and (place / "test").is_dir() else {}
    if not train:
        raise ArnoError(f"data.root = {root}", "no folder in it has images", "put them into root/<class>/")
    if extra := sorted(set(tested) - set(train)):
        raise ArnoError(f"{place / 'test'}: {extra[0]}", "the training data have no such class", "rename or remove it")
    names = sorted(train)

    def build() -> dict[str, Array]:
        x, y = _decode(train, names, size)
        if not tested:
            return {"x": drop_grey(x, x[:0])[0], "y": y}
        x_test, y_test = _decode(tested, names, size)
        x, x_test = drop_grey(x, x_test)
        return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}

    files = [file for found in (train, tested) for some in found.values() for file in some]
    arrays = cached(place.resolve().name, files, size, build)
    return from_arrays(place.resolve().name, arrays, test=test, classes=tuple(names))


def _find(place: Path, root: Path) -> dict[str, list[Path]]:
    """The image files of each class.

    Folders without images are left out, and links to files outside of `root` are refused.
    """
    found = {
        sub.name: files_in(sub, root, lambda name: Path(name).suffix.lower() in IMAGES)
        for sub in folders_in(place, root)
    }
    return {name: files for name, files in found.items() if files}


def _decode(found: dict[str, list[Path]], names: list[str], size: int | None) -> tuple[Array, Array]:
    labelled = [(file, i) for i, name in enumerate(names) for file in found.get(name, [])]

    def blobs() -> Iterator[Blob]:
        return ((str(file), read_bytes(file, "the image", IMAGE)) for file, _ in labelled)

    return decode(blobs(), len(labelled), size), np.array([i for _, i in labelled], dtype=np.int64)
