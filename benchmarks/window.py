"""FedRolex with half of the units: how much of the full model's time and upload a client spends.

    python benchmarks/window.py

`simple5layercnn` on images of CIFAR-10's shape (random pixels: time does not depend on them), one local epoch of 512
samples, batch 64. Prints the ratio of median times (bar: 0.5) and of uploaded numbers (bar: 0.30).
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from arno.core.federation import Federation, Local
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.methods.sub_models import Window
from arno.models.convolutional import simple5layercnn
from arno.problems.supervised import Supervised

REPEATS, SAMPLES = 7, 512


def main() -> None:
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 255, (SAMPLES, 3, 32, 32), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (SAMPLES,), generator=g)
    partition = Partition(torch.arange(SAMPLES), torch.tensor([0, SAMPLES]))
    problem = Supervised(x, y, partition, lambda: simple5layercnn((3, 32, 32), 10), transform=Transform())
    feds = {beta: Federation(problem, [Window(beta)], local=Local(batch_size=64, lr=0.01)) for beta in (1.0, 0.5)}
    times: dict[float, list[float]] = {beta: [] for beta in feds}
    sent = {}
    for _ in range(REPEATS + 1):
        for beta, fed in feds.items():
            began = perf_counter()
            record = fed.round()
            times[beta].append(perf_counter() - began)
            sent[beta] = record.clients["uploaded"][0]
    full, half = (median(times[beta][1:]) for beta in feds)
    print(f"one local epoch: β = 1 {full:.3f} s, β = 0.5 {half:.3f} s, ratio {half / full:.2f} (bar 0.50)")
    print(f"uploaded numbers: β = 1 {sent[1.0]:,}, β = 0.5 {sent[0.5]:,}, ratio {sent[0.5] / sent[1.0]:.2f} (bar 0.30)")


if __name__ == "__main__":
    main()
