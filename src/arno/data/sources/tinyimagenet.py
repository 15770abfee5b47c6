"""Tiny ImageNet, read from its zip archive or from the unpacked folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...errors import ArnoError
from ...limits import IMAGE, read_bytes, tree
from ..archives import open_zip
from ..arrays import from_arrays
from ..dataset import Dataset, datasets
from ..download import home, obtain
from ..images import Array, Blob, cached, decode

URL, MD5 = "https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
INNER = "tiny-imagenet-200"


@datasets.register("tinyimagenet", shape="3x64x64", samples="100000 + 10000")
def tinyimagenet(*, root: str | None = None) -> Dataset:
    """200 classes of ImageNet at 64 × 64 pixels (Le and Yang, 2015); the published validation part is the test data.

    Args:
        root: a folder with `tiny-imagenet-200.zip` or the unpacked `tiny-imagenet-200`; without it the archive is
            downloaded.
    """
    folder = home("tinyimagenet", root)
    path = folder / INNER if (folder / INNER).is_dir() else obtain(folder, root, URL, MD5)
    arrays = cached("tinyimagenet", [path], None, lambda: _read(path))
    return from_arrays("tinyimagenet", arrays, mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821))


def _read(path: Path) -> dict[str, Array]:
    """Images and labels from the zip archive or from the folder."""
    with ExitStack() as stack:
        read: Callable[[str], bytes]
        if path.is_dir():
            found = tree(path, path, lambda name: name.endswith((".JPEG", ".txt")))
            names = [f"{INNER}/{file.relative_to(path).as_posix()}" for file in found]
            read = lambda name: read_bytes(path.parent / name, "the file", IMAGE)  # noqa: E731
        else:
            archive = stack.enter_context(open_zip(path))
            names = archive.namelist()
            read = archive.read
        return _collect(path, sorted(names), read)


def _collect(path: Path, names: list[str], read: Callable[[str], bytes]) -> dict[str, Array]:
    listing, words = f"{INNER}/val/val_annotations.txt", f"{INNER}/words.txt"
    train = [n for n in names if n.startswith(f"{INNER}/train/") and n.endswith(".JPEG")]
    if not train or listing not in names:
        raise ArnoError(str(path), f"no {INNER}/train/…/*.JPEG or no {listing}", "is this the published archive?")
    ids = sorted({name.split("/")[2] for name in train})
    number = {wnid: i for i, wnid in enumerate(ids)}
    rows = [line.split("\t")[:2] for line in read(listing).decode("utf-8", "replace").splitlines() if line.strip()]
    if bad := [row for row in rows if len(row) < 2 or row[1] not in number]:
        rule = f"a line names no class of the training data: {bad[0]}"
        raise ArnoError(f"{listing} in {path}", rule, "is this the published archive?")
    test = [f"{INNER}/val/images/{image}" for image, _ in rows]
    if missing := set(test) - set(names):
        rule = f"{len(missing)} listed validation images are missing, such as {min(missing)}"
        raise ArnoError(str(path), rule, "is this the published archive?")
    lines = read(words).decode("utf-8", "replace").splitlines() if words in names else []
    said = dict(line.split("\t", 1) for line in lines if "\t" in line)

    def blobs(chosen: list[str]) -> Iterator[Blob]:
        return ((f"{path}: {name}", read(name)) for name in chosen)

    return {
        "x": decode(blobs(train), len(train)),
        "y": np.array([number[name.split("/")[2]] for name in train]),
        "x_test": decode(blobs(test), len(test)),
        "y_test": np.array([number[wnid] for _, wnid in rows]),
        "classes": np.array([said.get(wnid, wnid).split(",")[0] for wnid in ids], dtype=np.str_),
    }
