"""A million clients with personal heads: memory grows with the clients that took part, not with all of them.

    python benchmarks/personal.py

A million clients with one sample each, FedPer on a perceptron with a head of 650 numbers, 100 clients in a round.
Prints how many heads are stored, their memory, and what the process needs beyond the data, after 1, 10 and 100 rounds.
"""

from __future__ import annotations

import resource

import torch

from arno.client_selection.uniform import Uniform
from arno.core.federation import Federation, Local
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.methods.kept_layers import Keep
from arno.models.linear import MLP
from arno.problems.supervised import Supervised

CLIENTS, COHORT, SAMPLES = 1_000_000, 100, 1000


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, 32, generator=g), torch.randint(0, 10, (SAMPLES,), generator=g)
    partition = Partition(torch.arange(CLIENTS) % SAMPLES, torch.arange(CLIENTS + 1))
    problem = Supervised(x, y, partition, lambda: MLP(32, (64,), 10, "relu"), transform=Transform((0.0,), (1.0,), 1.0))
    fed = Federation(problem, [Uniform(COHORT / CLIENTS), head := Keep("head")], local=Local(lr=0.01), rounds=100)
    before = peak()
    size = int(fed.layout.mask("head").sum())
    for t in range(1, 101):
        fed.round()
        if t in (1, 10, 100):
            stored = head.kept.tensors()["rows"]
            heads = f"{len(stored):,} heads of {size:,} numbers, {stored.numel() * 4 / 2**20:,.1f} MiB"
            print(f"round {t}: {heads}; process {peak() - before:,.1f} MiB beyond the data")
    print(f"all {CLIENTS:,} heads would take {CLIENTS * size * 4 / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
