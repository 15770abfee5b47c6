"""CIFAR-10 and CIFAR-100, read from the published binary archives or from Parquet files of the hub, without pickles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import ArnoError
from ...limits import read_bytes
from ..archives import read_tar
from ..arrays import from_arrays
from ..dataset import Dataset, datasets
from ..download import home, obtain
from ..images import Array, cached
from ..parquet import find_parquet, read_parquet

PUBLISHED = "https://www.cs.toronto.edu/~kriz/"
CLASSES10 = "airplane automobile bird cat deer dog frog horse ship truck"
CLASSES100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@datasets.register("cifar10", shape="3x32x32", samples="50000 + 10000")
def cifar10(*, root: str | None = None) -> Dataset:
    """Small colour pictures in 10 classes (Krizhevsky, 2009).

    Args:
        root: a folder with `cifar-10-binary.tar.gz`, its unpacked `.bin` files, or `train-*.parquet` and
            `test-*.parquet` of the hub; without it the archive is downloaded.
    """
    inner, md5 = "cifar-10-batches-bin", "c32a1d4ab5d03f1284b67883e8d87530"
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    arrays = _read("cifar10", root, "cifar-10-binary.tar.gz", md5, inner, train, "test_batch.bin", 1)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return from_arrays("cifar10", arrays, classes=tuple(CLASSES10.split()), mean=mean, std=std, val=0.2)


@datasets.register("cifar100", shape="3x32x32", samples="50000 + 10000")
def cifar100(*, root: str | None = None) -> Dataset:
    """Small colour pictures in 100 classes (Krizhevsky, 2009).

    Args:
        root: as for `cifar10`, with `cifar-100-binary.tar.gz`.
    """
    inner, md5 = "cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8"
    arrays = _read("cifar100", root, "cifar-100-binary.tar.gz", md5, inner, ["train.bin"], "test.bin", 2)
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return from_arrays("cifar100", arrays, classes=tuple(CLASSES100.split()), mean=mean, std=std, val=0.2)


def _read(
    name: str, root: str | None, archive: str, md5: str, inner: str, train: list[str], test: str, skip: int
) -> dict[str, Array]:
    """Images and labels from the files in the folder.

    skip: how many label bytes precede each image; the last one is used.
    """
    folder = home(name, root)
    parquet = find_parquet(folder)
    if parquet["train"] and parquet["test"]:
        return read_parquet(name, parquet["train"], parquet["test"])
    for place in (folder, folder / inner):
        if (place / test).is_file():
            members = {file: read_bytes(place / file) for file in [*train, test]}
            return _arrays(place, members, train, test, skip)
    path = obtain(folder, root, PUBLISHED + archive, md5)

    def build() -> dict[str, Array]:
        found = read_tar(path, [f"{inner}/{file}" for file in [*train, test]])
        return _arrays(path, {key.rpartition("/")[2]: value for key, value in found.items()}, train, test, skip)

    return cached(name, [path], None, build)


def _arrays(place: Path, members: dict[str, bytes], train: list[str], test: str, skip: int) -> dict[str, Array]:
    def records(file: str) -> Array:
        content, length = members[file], skip + 3072
        if not content or len(content) % length:
            rule = f"{len(content)} bytes are not a whole number of records of {length}"
            raise ArnoError(f"{file} in {place}", rule, "delete it and download it again")
        return np.frombuffer(content, dtype=np.uint8).reshape(-1, length)

    out: dict[str, Array] = {}
    for suffix, rows in (("", np.concatenate([records(f) for f in train])), ("_test", records(test))):
        out["x" + suffix] = np.ascontiguousarray(rows[:, skip:]).reshape(-1, 3, 32, 32)
        out["y" + suffix] = rows[:, skip - 1].astype(np.int64)
    return out
