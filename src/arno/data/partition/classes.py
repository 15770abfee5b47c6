"""Label skew by classes: few classes per client, or samples sorted by label."""

from __future__ import annotations

import numpy as np

from ...core.seeds import numpy_stream
from ...errors import ArnoError
from ..dataset import Ints, Labels, rank_in_class
from . import partitions
from .partition import Partition, by_owner, checked


@partitions.register("shards")
def shards(y: Labels, clients: int, seed: int, *, shards: int = 2) -> Partition:
    """The data are sorted by label and cut into equal shards; each client gets `shards` of them at random.

    Args:
        shards: shards per client; a client has about that many classes.
    """
    labels = checked(y, clients)
    n, total = len(labels), clients * shards
    if shards < 1 or total > n:
        raise ArnoError(
            f"partition.shards = {shards} with clients = {clients}",
            f"{n} training samples can be cut into 1 to {n} shards",
            f"try partition.shards={max(1, n // clients)}" if shards > 0 else "try partition.shards=2",
        )
    random = numpy_stream(seed, "partition")
    shuffled = random.permutation(n)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    holder = random.permutation(total) % clients
    owner = np.empty(n, dtype=np.int64)
    owner[by_label] = holder[np.arange(n) * total // n]
    return by_owner(owner, clients)


@partitions.register("classes")
def classes(y: Labels, clients: int, seed: int, *, classes: int = 2) -> Partition:
    """Every client holds `classes` classes; a class is divided evenly among its holders.

    All classes have about the same number of holders, at least one and at most as many as the class has samples.

    Args:
        classes: classes per client.

    >>> y = np.tile(np.arange(10), 10)
    >>> (classes(y, 20, seed=0, classes=3).label_counts(y, 10) > 0).sum(1).unique().tolist()
    [3]
    """
    _, labels, counts = np.unique(checked(y, clients), return_inverse=True, return_counts=True)
    _refuse_classes(counts, clients, classes)
    random = numpy_stream(seed, "partition")
    holders = _holders(counts, clients, clients * classes, random)
    # Sample number r of a class goes to the holder with the number r modulo the number of holders.
    starts = np.cumsum([0, *(len(h) for h in holders)])
    rank = rank_in_class(labels, random)
    return by_owner(np.concatenate(holders)[starts[labels] + rank % np.diff(starts)[labels]], clients)


@partitions.register("power_law")
def power_law(y: Labels, clients: int, seed: int, *, classes: int = 2, sigma: float = 2.0, least: int = 1) -> Partition:
    """Few classes per client and very unequal sizes: a class is divided among its holders by log-normal shares.

    The generator of FedProx (Li et al., MLSys 2020) does so for MNIST: 1,000 clients, 2 classes each, at least 5
    samples of a class, σ = 2. The paper calls the sizes a power law.

    Args:
        classes: classes per client.
        sigma: the deviation of the logarithm of a share; 0 gives equal shares, and larger values less equal sizes.
        least: samples that a client has of each of its classes at least.
    """
    _, labels, counts = np.unique(checked(y, clients), return_inverse=True, return_counts=True)
    _refuse_classes(counts, clients, classes)
    if not 0 <= sigma <= 10:
        raise ArnoError(f"partition.sigma = {sigma}", "it must be from 0 to 10", "try partition.sigma=2")
    random = numpy_stream(seed, "partition")
    holders = _holders(counts, clients, clients * classes, random)
    most = min(count // len(own) for count, own in zip(counts, holders, strict=True))
    if not 0 < least <= most:
        rule = f"with {clients} clients and {classes} classes each it must be from 1 to {most}"
        raise ArnoError(f"partition.least = {least}", rule, f"try partition.least={most}, or fewer clients")
    owner = np.empty(len(labels), dtype=np.int64)
    rank = rank_in_class(labels, random)
    for label, (count, own) in enumerate(zip(counts, holders, strict=True)):
        share = np.cumsum(random.lognormal(0, sigma, len(own)))
        ends = np.round(share / share[-1] * (count - least * len(own))).astype(np.int64)
        here = labels == label
        owner[here] = np.repeat(own, least + np.diff(ends, prepend=0))[rank[here]]
    return by_owner(owner, clients)


@partitions.register("similar")
def similar(y: Labels, clients: int, seed: int, *, similarity: float = 0.1) -> Partition:
    """Equal sizes; a share of each client's samples is drawn at random, the others come from data sorted by label.

    Karimireddy et al., SCAFFOLD, ICML 2020: "s % similarity". Client k has the k-th piece of the sorted data; for a
    regression they are sorted by the decile of the target.

    Args:
        similarity: the share that is drawn at random; 1 is `iid`, 0 is sorted data.

    >>> similar(np.repeat([0, 1], 4), 2, seed=0, similarity=0).label_counts(np.repeat([0, 1], 4), 2).tolist()
    [[4, 0], [0, 4]]
    """
    labels = checked(y, clients)
    if not 0 <= similarity <= 1:
        rule = "it must be from 0 (sorted by label) to 1 (at random)"
        raise ArnoError(f"partition.similarity = {similarity}", rule, "try partition.similarity=0.1")
    n, random = len(labels), numpy_stream(seed, "partition")
    order = random.permutation(n)
    mixed, rest = np.split(order, [round(similarity * n)])
    rest = rest[np.argsort(labels[rest], kind="stable")]
    owner = np.empty(n, dtype=np.int64)
    owner[mixed] = np.arange(len(mixed)) % clients
    sizes = n // clients + (np.arange(clients) < n % clients)
    owner[rest] = np.repeat(np.arange(clients), sizes - np.bincount(owner[mixed], minlength=clients))
    return by_owner(owner, clients)


def _refuse_classes(counts: Ints, clients: int, classes: int) -> None:
    """Refuse a number of classes per client that does not fit the sizes of the classes."""
    setting = f"partition.classes = {classes} with clients = {clients}"
    if not 1 <= classes <= len(counts):
        raise ArnoError(setting, f"there are {len(counts)} classes", f"choose 1 to {len(counts)}")
    if clients * classes < len(counts):
        rule = f"some of the {len(counts)} classes would have no holder"
        raise ArnoError(setting, rule, f"try partition.classes={-(-len(counts) // clients)}")
    if clients * classes > np.minimum(counts, clients).sum():
        rule = f"{int(counts.sum())} training samples in {len(counts)} classes are too few"
        raise ArnoError(setting, rule, "use fewer clients or fewer classes per client")


def _holders(counts: Ints, clients: int, places: int, random: np.random.Generator) -> list[Ints]:
    """For each class, the clients that hold it: `places` pairs (client, class), the same number for every client."""
    room = np.minimum(counts, clients)
    level = next(v for v in range(clients, 0, -1) if np.minimum(room, v).sum() <= places)
    degree = np.minimum(room, level)
    more = random.permutation(np.flatnonzero(room > level))[: places - int(degree.sum())]
    degree[more] += 1
    need = np.full(clients, places // clients)
    holders = [np.empty(0, dtype=np.int64)] * len(counts)
    for label in random.permutation(len(counts)):  # clients that need most classes are first: this always succeeds
        holders[label] = np.argsort(random.random(clients) - need)[: degree[label]]
        need[holders[label]] -= 1
    return holders
