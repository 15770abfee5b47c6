"""A partition in one file: neighbouring strata. Client k has the k-th piece of the samples, sorted by their stratum.

    arno data show partition=custom partition.target=examples/my_partition.py:factory partition.shuffled=0.1
    arno run partition=custom partition.target=examples/my_partition.py:factory

Arno calls the factory with the stratum of every training sample (its label; for a regression the decile of its target),
the number of clients, the seed and the settings. It returns the sample numbers of each client as lists, or a
`arno.data.Partition`. Use the streams of `arno.core.seeds` for random numbers.
"""

import torch
from torch import Tensor

from arno import ArnoError
from arno.core.seeds import stream


def factory(strata: Tensor, clients: int, seed: int, *, shuffled: float = 0.0) -> list[Tensor]:
    """shuffled: the share of the samples that go to random clients; 1 is an i.i.d. partition."""
    if not 0 <= shuffled <= 1:
        raise ArnoError(f"partition.shuffled = {shuffled}", "it must be from 0 to 1", "try partition.shuffled=0.1")
    random = stream(seed, "partition")
    order = torch.randperm(len(strata), generator=random)
    order = order[strata[order].argsort(stable=True)]
    moved = torch.rand(len(order), generator=random) < shuffled
    order[moved] = order[moved][torch.randperm(int(moved.sum()), generator=random)]
    return list(order.tensor_split(clients))
