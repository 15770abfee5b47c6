"""A step of training in bfloat16 beside the usual kernel, on one core: times, turn and turn about, and their ratio.

python benchmarks/bfloat16.py
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from arno.kernels.choose_kernel import choose, for_training
from arno.models import models
from arno.tasks.classification import Classification

#: Network, its settings, the shape of an image, samples in a batch.
CASES = [
    ("resnet18", {"width": 64}, (3, 32, 32), 20),
    ("resnet18", {"width": 16}, (3, 32, 32), 50),
    ("resnet18", {"width": 16}, (1, 28, 28), 20),
    ("simple5layercnn", {}, (3, 32, 32), 64),
    ("lenet5", {}, (3, 32, 32), 50),
]
REPEATS, STEPS = 7, 4


def main() -> None:
    """Print one line per case."""
    torch.set_num_threads(1)
    task = Classification(10)
    for name, settings, shape, batch in CASES:
        last = choose(models.get(name)(shape, 10, **settings), shape, None).channels_last
        kernels = [
            for_training(models.get(name)(shape, 10, **settings), shape, task, last, bfloat16=low)
            for low in (False, True)
        ]
        x, y = torch.randn(batch, *shape), torch.arange(batch) % 10
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        times: list[list[float]] = [[], []]
        for _ in range(REPEATS):
            for kernel, mine in zip(kernels, times, strict=True):
                arranged = kernel.arranged(x)
                began = perf_counter()
                for _ in range(STEPS):
                    kernel.gradient(arranged, y)
                mine.append(1e3 * (perf_counter() - began) / STEPS)
        usual, low = (median(mine[1:]) for mine in times)
        what = " ".join((name, *(f"{key}={value}" for key, value in settings.items())))
        print(f"{what}, {batch} × {shape}: {kernels[0].name} {usual:.1f} ms, bfloat16 {low:.1f} ms: {usual / low:.2f}×")


if __name__ == "__main__":
    main()
