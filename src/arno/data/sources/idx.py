"""MNIST and Fashion-MNIST, published as gzipped IDX files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ...errors import ArnoError
from ...limits import elements, unpacked
from ..archives import reading
from ..dataset import Dataset, source
from ..download import home, obtain

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


@source("mnist", shape="1x28x28", samples="60000 + 10000")
def mnist(*, root: str | None = None) -> Dataset:
    """Handwritten digits (LeCun, Cortes and Burges, 1998).

    Args:
        root: a folder with the four IDX files, gzipped or not; without it they are downloaded.
    """
    return _load("mnist", root, MNIST, MNIST_MD5, tuple("0123456789"), 0.1307, 0.3081)


@source("fashion_mnist", shape="1x28x28", samples="60000 + 10000")
def fashion_mnist(*, root: str | None = None) -> Dataset:
    """Pictures of garments (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747).

    Args:
        root: a folder with the four IDX files, gzipped or not; without it they are downloaded.
    """
    return _load("fashion_mnist", root, FASHION, FASHION_MD5, GARMENTS, 0.2860, 0.3530)


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
    with reading(path):
        zipped, size = path.suffix == ".gz", path.stat().st_size
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape = _sizes(file, path, rank)
            announced = elements(shape, 1, str(path))
            content = file.read(unpacked(announced, size, str(path)) if zipped else min(announced, size))
            more = bool(file.read(1))
    if len(content) < announced or more:
        rule = f"its header announces {announced} bytes and {'more' if more else len(content)} follow"
        raise ArnoError(str(path), rule, "delete it and download it again")
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)


def _sizes(file: IO[bytes] | gzip.GzipFile, path: Path, rank: int) -> list[int]:
    """The sizes in the header of an IDX file."""
    header = file.read(4 + 4 * rank)
    if header[:4] != bytes([0, 0, 8, rank]) or len(header) < 4 + 4 * rank:
        rule = f"it is not an IDX file of unsigned bytes of rank {rank}"
        raise ArnoError(str(path), rule, "delete it and download it again")
    return [int(n) for n in np.frombuffer(header, dtype=">u4", offset=4)]
