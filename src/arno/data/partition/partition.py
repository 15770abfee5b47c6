"""The class `Partition`: which samples each client has. Also checks of what partition functions return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...errors import ArnoError
from ...pictures.card import card
from ..dataset import Ints, Labels, as_labels, sorted_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each client, in two arrays; so a million clients do not need a million objects.

    Args:
        indices: the samples of all clients, one client after another (int64, or int32 to save memory).
        offsets: `[N + 1]`; client k has `indices[offsets[k]:offsets[k + 1]]`.
        names: the names of the clients, if they have any.

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

    def _repr_html_(self) -> str:
        """The HTML for notebooks: the sizes of the clients."""
        sizes = self.sizes
        facts = {"clients": len(self), "samples": int(sizes.sum())}
        return card("Partition", facts | {"samples of a client": f"{sizes.min()} to {sizes.max()}"}, figure=self.plot())

    def plot(self, labels: Labels | None = None, classes: Sequence[str] | None = None) -> Figure:
        """A picture: how many samples each client has, and of which classes if their labels are given.

        labels: the class of each sample, a number from 0. classes: their names.
        """
        from ..partition_picture import holdings

        if labels is None:
            labels, classes = torch.zeros(int(self.indices.max()) + 1, dtype=torch.int64), ["samples"]
        known = as_labels(labels)
        return holdings(self, known, classes or list(map(str, range(int(known.max()) + 1))))  # type: ignore[no-any-return]

    def within(self, index: Tensor) -> Partition:
        """The same partition with other sample numbers: sample i becomes sample `index[i]`."""
        return replace(self, indices=index[self.indices])

    def among(self, kept: Tensor) -> Partition:
        """The same partition with the samples `kept` (ascending) only: sample `kept[i]` becomes sample i.

        >>> two = Partition(torch.tensor([4, 0, 6]), torch.tensor([0, 1, 3]))
        >>> two.among(torch.tensor([4, 5, 6])).indices.tolist(), two.among(torch.tensor([4, 5, 6])).sizes.tolist()
        ([0, 2], [1, 1])
        """
        place = torch.full((1 + int(max(self.indices.max(), kept.max())),), -1, dtype=torch.int64)
        place[kept] = torch.arange(len(kept))
        moved = place[self.indices.long()]
        before = torch.cat([torch.zeros(1, dtype=torch.int64), (moved >= 0).cumsum(0)])
        return replace(self, indices=moved[moved >= 0], offsets=before[self.offsets.long()])

    def owners(self, samples: int) -> Tensor:
        """The client of each sample, −1 for samples of no client."""
        owner = torch.full((samples,), -1, dtype=torch.int64)
        owner[self.indices.long()] = torch.repeat_interleave(torch.arange(len(self)), self.sizes)
        return owner

    def shares(self) -> bool:
        """Whether a sample belongs to several clients."""
        return bool(torch.bincount(self.indices, minlength=1).max() > 1)

    def lined_up(self, index: Tensor) -> tuple[Tensor, Partition]:
        """`index` sorted by client, and the partition of data in this order: the samples of a client are contiguous.

        If clients share a sample, both are returned unchanged.

        >>> index, lined = Partition(torch.tensor([2, 0, 1]), torch.tensor([0, 1, 3])).lined_up(torch.tensor([5, 6, 7]))
        >>> index.tolist(), lined.indices.tolist()
        ([7, 5, 6], [0, 1, 2])
        """
        if self.shares():
            return index, self
        places = torch.arange(len(self.indices), dtype=self.indices.dtype)
        return index[self.indices], replace(self, indices=places)

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


def by_owner(owner: Ints, clients: int, names: tuple[str, ...] | None = None) -> Partition:
    """The partition in which sample i belongs to client `owner[i]`."""
    sizes = np.bincount(owner, minlength=clients)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Partition(torch.from_numpy(sorted_by(owner)), torch.from_numpy(offsets), names)


def checked(y: Labels, clients: int) -> Ints:
    """The strata as an array. Refuses a number of clients that does not fit the number of samples."""
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


def as_partition(made: object, kind: str, samples: int, clients: int | None) -> Partition:
    """What a partition function returned, as a `Partition`: it may also be a list with the sample indices per client.

    kind: the name of the function, for errors. clients: how many clients the run has; None if the partition decides.

    >>> as_partition([[0, 2], [1]], "custom", 3, 2).sizes.tolist()
    [2, 1]
    """
    where = f"partition={kind}"
    if isinstance(made, list | tuple):
        return from_lists(where, made, samples, clients)
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


def from_lists(where: str, rows: Sequence[object], samples: int, clients: int | None) -> Partition:
    """The partition in which client k has the samples `rows[k]`; no sample may occur twice."""
    if clients is not None and len(rows) != clients:
        rule = f"it has lists for {len(rows)} clients, the run has {clients}"
        raise ArnoError(where, rule, f"set clients={len(rows)}")
    used, made = np.zeros(samples, dtype=bool), []
    for client, row in enumerate(rows):
        at = f"client {client} in {where}"
        index = None if isinstance(row, Sequence) and len(row) > samples else _indices(row)
        if index is None or not ((index >= 0) & (index < samples)).all():
            rule = f"its samples must be whole numbers from 0 to {samples - 1}, each once"
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
    """Sample indices (a list, an array or a tensor) as int64; None for any other object."""
    if isinstance(row, Sequence) and not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in row):
        return None
    try:
        index = np.asarray(row)
    except (ValueError, TypeError):
        return None
    if index.ndim != 1 or (len(index) and index.dtype.kind not in "iu"):
        return None
    return index.astype(np.int64)
