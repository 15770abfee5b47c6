"""MNIST, Fashion-MNIST and EMNIST, published as gzipped IDX files."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import IO, Any, Literal

import numpy as np
import torch

from ...errors import ArnoError
from ...limits import elements, unpacked
from ..archives import open_zip, reading
from ..arrays import from_arrays
from ..dataset import Dataset, datasets
from ..download import home, obtain, verify

MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EMNIST, EMNIST_MD5 = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"
#: The classes of each split of EMNIST, in the order of the labels. A merged class has the name of its capital letter.
MERGED = digits + ascii_uppercase + "abdefghnqrt"
CHARACTERS = {
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": ascii_uppercase,
    "digits": digits,
    "mnist": digits,
}


@datasets.register("mnist", shape="1x28x28", samples="60000 + 10000")
def mnist(*, root: str | None = None) -> Dataset:
    """Handwritten digits (LeCun, Cortes and Burges, 1998).

    Args:
        root: a folder with the four IDX files, gzipped or not; without it they are downloaded.
    """
    return _load("mnist", root, MNIST, MNIST_MD5, tuple("0123456789"), 0.1307, 0.3081)


@datasets.register("fashion_mnist", shape="1x28x28", samples="60000 + 10000")
def fashion_mnist(*, root: str | None = None) -> Dataset:
    """Pictures of garments (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747).

    Args:
        root: a folder with the four IDX files, gzipped or not; without it they are downloaded.
    """
    return _load("fashion_mnist", root, FASHION, FASHION_MD5, GARMENTS, 0.2860, 0.3530)


@datasets.register("emnist", shape="1x28x28", samples="697932 + 116323")
def emnist(
    *,
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass",
    root: str | None = None,
) -> Dataset:
    """Handwritten digits and letters in six splits (Cohen et al., 2017, arXiv:1702.05373).

    The images in the files are transposed; here they are upright. The labels of `letters` start at 1 in the files, and
    at 0 here.

    Args:
        split: byclass (62 classes), bymerge and balanced (47: letters whose capital looks the same are one class),
            letters (26: capital and small letters together), digits or mnist (10).
        root: a folder with the IDX files `emnist-SPLIT-train-images-idx3-ubyte` and so on, gzipped or not, also in a
            folder `gzip` in it, or with the published `gzip.zip`; without it `gzip.zip` (536 MB) is downloaded.
    """
    folder = home("emnist", root)
    names = [f"emnist-{split}-{part}" for part in ("train-images", "train-labels", "test-images", "test-labels")]
    x, y, x_test, y_test = (_member(folder, root, f"{name}-idx{3 if 'images' in name else 1}-ubyte") for name in names)
    x, x_test = (np.ascontiguousarray(images.transpose(0, 2, 1))[:, None] for images in (x, x_test))
    if split == "letters":
        y, y_test = y - 1, y_test - 1  # a label 0 becomes 255 and is refused
    arrays = {"x": x, "y": y, "x_test": x_test, "y_test": y_test}
    return from_arrays(f"emnist-{split}", arrays, classes=tuple(CHARACTERS[split]), val=0.1)


def _member(folder: Path, root: str | None, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An IDX file of EMNIST: plain, gzipped, or a member of the published archive."""
    rank = 3 if "images" in name else 1
    for path in (where / f"{name}{end}" for where in (folder, folder / "gzip") for end in ("", ".gz")):
        if path.is_file():
            return read_idx(verify(path), rank)
    path, member = obtain(folder, root, EMNIST, EMNIST_MD5), f"gzip/{name}.gz"
    with open_zip(path) as archive:
        if member not in archive.namelist():
            raise ArnoError(str(path), f"it lacks {member}", "is this the published archive?")
        with archive.open(member) as packed, gzip.open(packed) as file:
            return _values(file, f"{member} in {path}", rank, archive.getinfo(member).file_size, zipped=True)


def _load(
    name: str, root: str | None, base: str, md5: dict[str, str], classes: tuple[str, ...], mean: float, std: float
) -> Dataset:
    folder = home(name, root)

    def read(file: str) -> torch.Tensor:
        plain = folder / file.removesuffix(".gz")
        path = plain if plain.is_file() else obtain(folder, root, base + file, md5[file])
        return torch.from_numpy(read_idx(path, rank=3 if "images" in file else 1))

    x, y, x_test, y_test = map(read, md5)
    return Dataset(
        name=name,
        x=x.unsqueeze(1),
        y=y.long(),
        x_test=x_test.unsqueeze(1),
        y_test=y_test.long(),
        classes=classes,
        mean=(mean,),
        std=(std,),
    )


def read_idx(path: Path, rank: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An IDX file of unsigned bytes: two zeros, the type (8), the rank, the sizes (big-endian), the values.

    rank: 1 for labels, 3 for images.
    """
    zipped = path.suffix == ".gz"
    with reading(path), gzip.open(path) if zipped else path.open("rb") as file:
        return _values(file, str(path), rank, path.stat().st_size, zipped)


def _values(
    file: io.BufferedIOBase | gzip.GzipFile | IO[bytes], what: str, rank: int, size: int, zipped: bool
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The values of an IDX file that takes `size` bytes as stored."""
    shape = _sizes(file, what, rank)
    announced = elements(shape, 1, what)
    content = file.read(unpacked(announced, size, what) if zipped else min(announced, size))
    more = bool(file.read(1))
    if len(content) < announced or more:
        rule = f"its header announces {announced} bytes and {'more' if more else len(content)} follow"
        raise ArnoError(what, rule, "delete it and download it again")
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)


def _sizes(file: io.BufferedIOBase | gzip.GzipFile | IO[bytes], what: str, rank: int) -> list[int]:
    """The sizes in the header of an IDX file."""
    header = file.read(4 + 4 * rank)
    if header[:4] != bytes([0, 0, 8, rank]) or len(header) < 4 + 4 * rank:
        rule = f"it is not an IDX file of unsigned bytes of rank {rank}"
        raise ArnoError(what, rule, "delete it and download it again")
    return [int(n) for n in np.frombuffer(header, dtype=">u4", offset=4)]
