"""Partitions: how the training data are divided among clients.

Every factory takes the stratum of each training sample (its label; for a regression the decile of its target), the
number of clients and the seed, and its own settings as keywords. Partitions are disjoint and complete (except
`replace` and `file`), and no client is empty.

`natural` and `file` divide the data as given, and validation samples are then taken inside each client
(`of="clients"`, `of="rows"`). The number of clients follows from them if the user does not set it.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.seeds import numpy_stream, stream
from ..errors import ArnoError
from ..limits import TEXT, place, read_text, regular, room
from ..registry import Registry
from .dataset import Ints, Labels, as_labels, rank_in_class

partitions = Registry("partition", "arno.data.partition")


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client has, in two arrays: a million clients need no million objects.

    Args:
        indices: the samples of all clients, one client after another (int64, or int32 to save memory).
        offsets: `[N + 1]`; client k has `indices[offsets[k]:offsets[k + 1]]`.
        names: of the clients, if they have any.

    >>> two = Partition(torch.tensor([4, 5, 6]), torch.tensor([0, 1, 3]))
    >>> len(two), two[1].tolist(), two.sizes.tolist()
    (2, [5, 6], [1, 2])
    """

    indices: Tensor
    offsets: Tensor
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        """The sample indices of one client, int64."""
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        first, last = self.offsets.numpy()[client : client + 2].tolist()
        return self.indices[first:last].long()

    @property
    def sizes(self) -> Tensor:
        """How many samples each client has, `[N]`."""
        return self.offsets.diff()

    def within(self, index: Tensor) -> Partition:
        """The same partition with other sample numbers: sample i becomes sample `index[i]`."""
        return changed(self, indices=index[self.indices])

    def among(self, kept: Tensor) -> Partition:
        """The same partition of the samples `kept` (ascending) alone: sample `kept[i]` becomes sample i.

        >>> two = Partition(torch.tensor([4, 0, 6]), torch.tensor([0, 1, 3]))
        >>> two.among(torch.tensor([4, 5, 6])).indices.tolist(), two.among(torch.tensor([4, 5, 6])).sizes.tolist()
        ([0, 2], [1, 1])
        """
        place = torch.full((1 + int(max(self.indices.max(), kept.max())),), -1, dtype=torch.int64)
        place[kept] = torch.arange(len(kept))
        moved = place[self.indices.long()]
        before = torch.cat([torch.zeros(1, dtype=torch.int64), (moved >= 0).cumsum(0)])
        return changed(self, indices=moved[moved >= 0], offsets=before[self.offsets.long()])

    def owners(self, samples: int) -> Tensor:
        """The client of each sample, −1 for samples of no client."""
        owner = torch.full((samples,), -1, dtype=torch.int64)
        owner[self.indices.long()] = torch.repeat_interleave(torch.arange(len(self)), self.sizes)
        return owner

    def lined_up(self, index: Tensor) -> tuple[Tensor, Partition]:
        """`index` sorted by client, and the partition of data in that order: a client's samples are then contiguous.

        If clients share a sample, both are returned unchanged.

        >>> index, lined = Partition(torch.tensor([2, 0, 1]), torch.tensor([0, 1, 3])).lined_up(torch.tensor([5, 6, 7]))
        >>> index.tolist(), lined.indices.tolist()
        ([7, 5, 6], [0, 1, 2])
        """
        if torch.bincount(self.indices, minlength=1).max() > 1:
            return index, self
        places = torch.arange(len(self.indices), dtype=self.indices.dtype)
        return index[self.indices], changed(self, indices=places)

    def label_counts(self, y: Labels, n_classes: int) -> Tensor:
        """How often each client has each class, `[N, n_classes]`."""
        labels = torch.from_numpy(as_labels(y))[self.indices]
        cells = torch.repeat_interleave(torch.arange(len(self)) * n_classes, self.sizes).add_(labels)
        return torch.bincount(cells, minlength=len(self) * n_classes).view(len(self), n_classes)

    def heterogeneity(self, y: Labels, n_classes: int) -> float:
        """Distance of clients from the pooled labels: the mean over clients of ½ Σ_c |p_k(c) − p(c)|, in [0, 1].

        >>> same = Partition(torch.arange(4), torch.tensor([0, 2, 4]))
        >>> same.heterogeneity(torch.tensor([0, 1, 0, 1]), 2), same.heterogeneity(torch.tensor([0, 0, 1, 1]), 2)
        (0.0, 0.5)
        """
        counts = self.label_counts(y, n_classes).double()
        pooled = counts.sum(0) / counts.sum()
        own = counts / counts.sum(1, keepdim=True).clamp(min=1)
        return float((own - pooled).abs().sum(1).mean() / 2)


def by_owner(owner: Ints, clients: int) -> Partition:
    """The partition in which sample i belongs to client `owner[i]`."""
    sizes = np.bincount(owner, minlength=clients)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Partition(torch.from_numpy(np.argsort(owner, kind="stable")), torch.from_numpy(offsets))


def _checked(y: Labels, clients: int) -> Ints:
    labels = as_labels(y)
    if clients < 1:
        raise ArnoError(f"clients = {clients}", "there must be at least one", "try clients=10")
    if clients > len(labels):
        raise ArnoError(
            f"clients = {clients}",
            f"there are {len(labels)} training samples, and each client needs one",
            "use fewer clients, or partition=replace",
        )
    return labels


@partitions.register("iid")
def iid(y: Labels, clients: int, seed: int) -> Partition:
    """Samples assigned at random; sizes differ by at most one.

    >>> iid(torch.zeros(7), 3, seed=0).sizes.tolist()
    [3, 2, 2]
    """
    n = len(_checked(y, clients))
    return by_owner(numpy_stream(seed, "partition").permutation(n) % clients, clients)


@partitions.register("dirichlet")
def dirichlet(
    y: Labels,
    clients: int,
    seed: int,
    *,
    alpha: float = 0.5,
    equal: bool = False,
    min_size: int = 1,
    tries: int = 2000,
) -> Partition:
    """Label skew: class c is divided among the clients in proportions p_c ~ Dirichlet(α, …, α).

    If some client has fewer than `min_size` samples, the proportions of one class after another are drawn again;
    a draw is kept unless more samples are missing than before.

    Args:
        alpha: the smaller, the fewer classes a client has; large values approach `iid`.
        equal: give all clients the same number of samples; each then draws its own class proportions
            ~ Dirichlet(α, …, α), weighted by class size, and takes samples that remain in these classes.
        min_size: the smallest number of samples of a client.
        tries: how many draws may be repeated before this is an error.
    """
    labels = _checked(y, clients)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ArnoError(f"partition.alpha = {alpha}", "it must be a positive number", "try partition.alpha=0.5")
    if min_size < 1:
        rule = "a client needs at least one sample"
        raise ArnoError(f"partition.min_size = {min_size}", rule, "try partition.min_size=1")
    if min_size * clients > len(labels):
        raise ArnoError(
            f"partition.min_size = {min_size} with clients = {clients}",
            f"this needs {min_size * clients} training samples and there are {len(labels)}",
            f"use fewer clients or partition.min_size={len(labels) // clients}",
        )
    random = numpy_stream(seed, "partition")
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if equal:
        table = _equal_table(counts, clients, alpha, random)
    else:
        table = _skewed_table(counts, clients, alpha, min_size, tries, random)
    # Sample number r of class c goes to the client whose share of the class contains r.
    ends = np.cumsum(table, axis=1) + (np.cumsum(counts) - counts)[:, None]
    place = rank_in_class(labels, random) + (np.cumsum(counts) - counts)[labels]
    return by_owner(np.searchsorted(ends.ravel(), place, side="right") % clients, clients)


def _skewed_table(
    counts: Ints, clients: int, alpha: float, min_size: int, tries: int, random: np.random.Generator
) -> Ints:
    """How many samples of each class (row) each client (column) gets; rows sum to `counts`."""

    def row(count: int) -> Ints:
        ends = np.floor(np.cumsum(random.dirichlet(np.full(clients, alpha))) * count + 1e-9).astype(np.int64)
        ends[-1] = count
        return random.permutation(np.diff(ends, prepend=0))

    def shortage(sizes: Ints) -> int:
        return int(np.maximum(min_size - sizes, 0).sum())

    table = np.stack([row(count) for count in counts])
    sizes = table.sum(0)
    short = shortage(sizes)
    for attempt in range(tries):
        if not short:
            return table
        label = attempt % len(counts)
        drawn = row(counts[label])
        changed = sizes - table[label] + drawn
        if (now := shortage(changed)) <= short:
            table[label], sizes, short = drawn, changed, now
    if short:
        raise ArnoError(
            f"partition.alpha = {alpha} with clients = {clients}, partition.min_size = {min_size}",
            f"{tries} draws left some client with {sizes.min()} of {int(counts.sum())} samples",
            "try partition.equal=true, fewer clients or a larger alpha" + " or a smaller min_size" * (min_size > 1),
        )
    return table


def _equal_table(counts: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """The same for clients of equal size: in random order each takes remaining samples of the classes it has drawn."""
    total, left = int(counts.sum()), counts.copy()
    wishes = random.dirichlet(np.full(len(counts), alpha), size=clients) * counts
    table = np.zeros((len(counts), clients), dtype=np.int64)
    for turn, client in enumerate(random.permutation(clients)):
        need = total // clients + (turn < total % clients)
        while need:
            wish = wishes[client] * (left > 0)
            if not wish.sum() > 0:
                wish = left
            got = np.minimum(random.multinomial(need, wish / wish.sum()), left)
            table[:, client] += got
            left -= got
            need -= int(got.sum())
    return table


@partitions.register("shards")
def shards(y: Labels, clients: int, seed: int, *, shards: int = 2) -> Partition:
    """The data are sorted by label and cut into equal shards; each client gets `shards` of them at random.

    Args:
        shards: shards per client; a client has about that many classes.
    """
    labels = _checked(y, clients)
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

    >>> split = classes(torch.arange(10).repeat(10), 20, seed=0, classes=3)
    >>> (split.label_counts(torch.arange(10).repeat(10), 10) > 0).sum(1).unique().tolist()
    [3]
    """
    _, labels, counts = np.unique(_checked(y, clients), return_inverse=True, return_counts=True)
    setting = f"partition.classes = {classes} with clients = {clients}"
    if not 1 <= classes <= len(counts):
        raise ArnoError(setting, f"there are {len(counts)} classes", f"choose 1 to {len(counts)}")
    if clients * classes < len(counts):
        rule = f"some of the {len(counts)} classes would have no holder"
        raise ArnoError(setting, rule, f"try partition.classes={-(-len(counts) // clients)}")
    if clients * classes > np.minimum(counts, clients).sum():
        rule = f"{len(labels)} training samples in {len(counts)} classes are too few"
        raise ArnoError(setting, rule, "use fewer clients or fewer classes per client")
    random = numpy_stream(seed, "partition")
    holders = _holders(counts, clients, clients * classes, random)
    # Sample number r of a class goes to holder r modulo the number of holders.
    starts = np.cumsum([0, *(len(h) for h in holders)])
    rank = rank_in_class(labels, random)
    return by_owner(np.concatenate(holders)[starts[labels] + rank % np.diff(starts)[labels]], clients)


def _holders(counts: Ints, clients: int, places: int, random: np.random.Generator) -> list[Ints]:
    """For each class the clients that hold it: `places` (client, class) pairs, the same number for every client."""
    room = np.minimum(counts, clients)
    level = next(v for v in range(clients, 0, -1) if np.minimum(room, v).sum() <= places)
    degree = np.minimum(room, level)
    more = random.permutation(np.flatnonzero(room > level))[: places - int(degree.sum())]
    degree[more] += 1
    need = np.full(clients, places // clients)
    holders = [np.empty(0, dtype=np.int64)] * len(counts)
    for label in random.permutation(len(counts)):  # clients that lack most classes first: this always succeeds
        holders[label] = np.argsort(random.random(clients) - need)[: degree[label]]
        need[holders[label]] -= 1
    return holders


@partitions.register("quantity")
def quantity(y: Labels, clients: int, seed: int, *, exponent: float = 1.0) -> Partition:
    """Sizes by a power law, labels at random: the size of the r-th largest client is about ∝ r^−exponent.

    Args:
        exponent: 0 gives equal sizes; the larger, the more samples the largest clients have.
    """
    n = len(_checked(y, clients))
    if not (exponent >= 0 and np.isfinite(exponent)):
        raise ArnoError(f"partition.exponent = {exponent}", "it must not be negative", "try partition.exponent=1")
    random = numpy_stream(seed, "partition")
    weight = np.arange(1, clients + 1) ** -float(exponent)
    ends = np.round(np.cumsum(weight) / weight.sum() * (n - clients)).astype(np.int64)
    sizes = random.permutation(1 + np.diff(ends, prepend=0))  # one each, the rest by the power law
    return by_owner(random.permutation(np.repeat(np.arange(clients), sizes)), clients)


@partitions.register("replace")
def replace(y: Labels, clients: int, seed: int, *, size: int = 20) -> Partition:
    """Every client draws `size` samples with replacement, so there may be more clients than samples.

    Args:
        size: samples per client.
    """
    if clients < 1 or size < 1 or not len(y):
        rule = "both must be positive, and there must be data"
        raise ArnoError(f"clients = {clients}, partition.size = {size}", rule, "try partition.size=20")
    kind = torch.int32 if len(y) < 2**31 else torch.int64
    drawn = torch.randint(len(y), (clients * size,), generator=stream(seed, "partition"), dtype=kind)
    return Partition(drawn, torch.arange(clients + 1) * size)


@partitions.register("natural", of="clients")
def natural(y: Labels, clients: int | None, seed: int) -> Partition:
    """Every client has the samples that the data say; the default if the data name their clients.

    y: the number of the client of each sample.

    >>> natural(torch.tensor([1, 0, 1]), None, seed=0).sizes.tolist()
    [1, 2]
    """
    owner = as_labels(y)
    return by_owner(owner, int(owner.max(initial=-1)) + 1)


@partitions.register("file", of="rows")
def file(
    y: Labels, clients: int | None, seed: int, *, path: str | None = None, after_validation: bool = False
) -> Partition:
    """A partition from a file: the numbers of the samples of each client, in the data as given.

    The file is JSON, `[[0, 2], [1, 3]]` or `{"bern": [0, 2], "rome": [1, 3]}`, or a Python dictionary
    `{0: [0, 2], 1: [1, 3]}` as the split files of FedRCL; it may be compressed (.gz). Samples are numbered from 0 in
    the order of the data, before test or validation samples are split off. Validation samples are taken inside each
    client.

    Args:
        path: the file; no number may occur twice, samples may be left out.
        after_validation: the numbers address the training samples that remain after the validation split, as in
            release 0.1.
    """
    if path is None:
        raise ArnoError("partition=file", "the file is not named", "add partition.path=clients.json")
    where = f"partition.path = {path}"
    rows, names = _lists(where, _parsed(where, place(path)))
    return changed(_from_lists(where, rows, len(y), clients), names=names)


def _parsed(where: str, path: Path) -> object:
    """The JSON value or the Python literal in a text file."""
    regular(path, "partition.path =")
    remedy = 'write [[0, 2], [1, 3]] or {"a": [0, 2], "b": [1, 3]}'
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                content = file.read(TEXT + 1)
            room(len(content), where, TEXT)
            text = content.decode("utf-8")
        else:
            text = read_text(path, "partition.path =")
        return ast.literal_eval(text) if re.match(r"\s*\{\s*\d+\s*:", text) else json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArnoError(where, f"it cannot be read as JSON: {why}", remedy) from error


def _lists(where: str, read: object) -> tuple[list[list[object]], tuple[str, ...] | None]:
    """The list of samples per client, and the names of the clients if they are more than 0, 1, 2, … ."""
    names: tuple[str, ...] | None = None
    rows = read
    if isinstance(read, Mapping):
        numbers = sorted(int(key) for key in read if str(key).isdecimal())
        if numbers == list(range(len(read))):
            by_number = {int(key): row for key, row in read.items()}
            rows = [by_number[k] for k in numbers]
        else:
            rows, names = list(read.values()), tuple(map(str, read))
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)):
        raise ArnoError(where, "it must hold a list of sample numbers per client", "write [[0, 2], [1, 3]]")
    return rows, names


def as_partition(made: object, kind: str, samples: int, clients: int | None) -> Partition:
    """What a partition function returned, as a `Partition`: it may also be a list with the sample indices per client.

    kind: the name of the function, for errors. clients: how many clients the run has; None if the partition decides.

    >>> as_partition([[0, 2], [1]], "custom", 3, 2).sizes.tolist()
    [2, 1]
    """
    where = f"partition={kind}"
    if isinstance(made, list | tuple):
        return _from_lists(where, made, samples, clients)
    if not isinstance(made, Partition):
        rule = "it must return a Partition, or a list of sample indices per client"
        raise ArnoError(f"{where} returned an object of type {type(made).__name__}", rule, "return [[0, 2], [1, 3], …]")
    if len(made.indices) != int(made.offsets[-1]):
        rule = f"its offsets end at {int(made.offsets[-1])}"
        raise ArnoError(f"{where}: {len(made.indices)} indices", rule, "correct offsets or indices")
    if clients is not None and len(made) != clients:
        raise ArnoError(f"{where} for {len(made)} clients", f"the run has {clients}", "use its argument `clients`")
    if int(made.sizes.min()) < 1:
        rule = "every client needs at least one sample"
        raise ArnoError(f"{where}: client {int(made.sizes.argmin())} has none", rule, "give it one")
    low, high = int(made.indices.min()), int(made.indices.max())
    if low < 0 or high >= samples:
        rule = f"indices must be 0 to {samples - 1}"
        raise ArnoError(f"{where}: index {low if low < 0 else high}", rule, "number the training samples from 0")
    return made


def _from_lists(where: str, rows: Sequence[object], samples: int, clients: int | None) -> Partition:
    """The partition in which client k has the samples `rows[k]`; no sample may occur twice."""
    if clients is not None and len(rows) != clients:
        rule = f"it has lists for {len(rows)} clients, the run has {clients}"
        raise ArnoError(where, rule, f"set clients={len(rows)}")
    used, made = np.zeros(samples, dtype=bool), []
    for client, row in enumerate(rows):
        at = f"client {client} in {where}"
        index = _indices(row)
        if index is None or not ((index >= 0) & (index < samples)).all():
            rule = f"its samples must be whole numbers from 0 to {samples - 1}"
            raise ArnoError(at, rule, "number the samples from 0")
        if not len(index):
            raise ArnoError(at, "it has no samples", "every client needs at least one")
        if len(np.unique(index)) < len(index) or used[index].any():
            rule = "it has a sample twice or shares one with an earlier client"
            raise ArnoError(at, rule, "list every sample once; partition=replace shares samples")
        used[index] = True
        made.append(index)
    offsets = torch.tensor([0, *(len(index) for index in made)]).cumsum(0)
    return Partition(torch.from_numpy(np.concatenate(made)), offsets)


def _indices(row: object) -> Ints | None:
    """Sample indices (a list, an array or a tensor) as int64; None if they are something else."""
    if isinstance(row, Sequence) and not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in row):
        return None
    try:
        index = np.asarray(row)
    except (ValueError, TypeError):
        return None
    if index.ndim != 1 or (len(index) and index.dtype.kind not in "iu"):
        return None
    return index.astype(np.int64)
