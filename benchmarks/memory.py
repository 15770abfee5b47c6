"""A cohort of 2,000 clients, a million parameters: FedAvg's memory is that of the blocks in flight.

    python benchmarks/memory.py

Prints the peak memory of one round beyond what data and model took before it; bar: 1 GiB.
"""

from __future__ import annotations

import resource

import torch

from arno.core.federation import Federation, Local
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.models.linear import MLP
from arno.problems.supervised import Supervised

CLIENTS, SAMPLES, BAR = 2000, 20, 1024


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 255, (CLIENTS * SAMPLES, 1, 28, 28), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (len(x),), generator=g)
    partition = Partition(torch.arange(len(x)), torch.arange(CLIENTS + 1) * SAMPLES)
    problem = Supervised(x, y, partition, lambda: MLP(784, (1200, 50), 10, "relu"), transform=Transform())
    fed = Federation(problem, local=Local(batch_size=20, lr=0.01))
    before = peak()
    fed.round()
    used, d = peak() - before, fed.layout.d
    print(f"FedAvg, one round, cohort {CLIENTS:,}, d = {d:,}: {used:,.0f} MiB beyond the data (bar: {BAR:,} MiB)")
    whole = CLIENTS * d * 4 / 2**20
    print(f"all {CLIENTS:,} models at once would take {whole:,.0f} MiB: {whole / used:.1f} times that")


if __name__ == "__main__":
    main()
