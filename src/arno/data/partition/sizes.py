"""Partitions that do not use labels: equal sizes, unequal sizes, drawn with replacement."""

from __future__ import annotations

import numpy as np
import torch

from ...core.seeds import numpy_stream, stream
from ...errors import ArnoError
from ..dataset import Labels
from . import partitions
from .partition import Partition, by_owner, checked


@partitions.register("iid")
def iid(y: Labels, clients: int, seed: int) -> Partition:
    """Samples assigned at random; sizes differ by at most one.

    >>> iid(torch.zeros(7), 3, seed=0).sizes.tolist()
    [3, 2, 2]
    """
    n = len(checked(y, clients))
    return by_owner(numpy_stream(seed, "partition").permutation(n) % clients, clients)


@partitions.register("quantity")
def quantity(y: Labels, clients: int, seed: int, *, exponent: float = 1.0) -> Partition:
    """Sizes by a power law, labels at random: the size of the r-th largest client is about ∝ r^−exponent.

    Args:
        exponent: 0 gives equal sizes; the larger, the more samples the largest clients have.
    """
    n = len(checked(y, clients))
    if not (exponent >= 0 and np.isfinite(exponent)):
        raise ArnoError(f"partition.exponent = {exponent}", "it must not be negative", "try partition.exponent=1")
    random = numpy_stream(seed, "partition")
    weight = np.arange(1, clients + 1) ** -float(exponent)
    ends = np.round(np.cumsum(weight) / weight.sum() * (n - clients)).astype(np.int64)
    sizes = random.permutation(1 + np.diff(ends, prepend=0))  # one sample each, the other samples by the power law
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
