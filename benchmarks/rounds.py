"""Arno's engines against the serial one, on the same clients, batches and start.

    python benchmarks/rounds.py [W1 W2 W3 W4] [--repeats 7]

| | model | clients | a round |
| --- | --- | --- | --- |
| W1 | LeNet-5, 28×28×1 | 100, Dirichlet(0.3) | 10 clients, B = 32, E = 1 |
| W2 | softmax regression, 784 | 1,000 × 60 samples | 100 clients, B = 20, E = 1 |
| W3 | five-layer CNN, 32×32×3 | 10, Dirichlet(0.5), 2,000 images | all, B = 64, E = 1 |
| W4 | MLP 784-128-10 | 1,000 × 60 samples | 100 clients, B = 20, E = 1 |

Pixels are random: time does not depend on them. Repeats are interleaved; the table shows medians, the ratio to the
serial engine, and the largest difference between the models after the first round, relative to how far they moved: a
large one is a sign of different work. `speed/run.py` measures Arno beside a hand-written loop and other libraries.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from arno.client_selection.uniform import Uniform
from arno.core.federation import Federation, Local
from arno.data import partitions
from arno.data.dataset import Transform
from arno.engines import engines
from arno.models import models
from arno.problems.supervised import Supervised
from arno.tasks.classification import Classification


@dataclass(frozen=True)
class Workload:
    model: str
    shape: tuple[int, ...]
    samples: int
    partition: dict[str, object]
    clients: int
    participation: float
    batch_size: int
    engines: tuple[str, ...]


WORKLOADS = {
    "W1": Workload(
        "lenet5", (1, 28, 28), 60_000, {"kind": "dirichlet", "alpha": 0.3}, 100, 0.1, 32, ("serial", "processes")
    ),
    "W2": Workload("softmax", (1, 28, 28), 60_000, {"kind": "iid"}, 1000, 0.1, 20, ("serial", "processes", "batched")),
    "W3": Workload(
        "simple5layercnn", (3, 32, 32), 2_000, {"kind": "dirichlet", "alpha": 0.5}, 10, 1.0, 64, ("serial", "processes")
    ),
    "W4": Workload("mlp", (1, 28, 28), 60_000, {"kind": "iid"}, 1000, 0.1, 20, ("serial", "processes", "batched")),
}
LR = 0.01


def problem(load: Workload) -> Supervised:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 255, (load.samples, *load.shape), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (load.samples,), generator=g)
    partition = partitions.build(load.partition, y, load.clients, 0)
    build = models.get(load.model)
    transform, task = Transform((0.5,), (0.25,)), Classification(10)
    return Supervised(x, y, partition, lambda: build(load.shape, 10), transform=transform, task=task)


def measure(name: str, repeats: int) -> None:
    load = WORKLOADS[name]
    made = problem(load)
    local = Local(epochs=1, batch_size=load.batch_size, lr=LR)

    def federation(engine: str) -> Federation:
        return Federation(made, [Uniform(load.participation)], engine=engines.get(engine)(made), local=local)

    feds = {engine: federation(engine) for engine in load.engines}
    times: dict[str, list[float]] = {who: [] for who in feds}
    first: dict[str, torch.Tensor] = {}
    for _ in range(repeats + 1):
        for who, fed in feds.items():
            torch.set_num_threads(1)
            began = perf_counter()
            fed.round()
            times[who].append(perf_counter() - began)
            first.setdefault(who, fed.w.clone())
    for fed in feds.values():
        fed.engine.close()
    medians = {who: median(spent[1:]) for who, spent in times.items()}
    start, base = made.init(0), first["serial"]
    print(f"\n{name}: {load.model}, {load.clients} clients, d = {made.layout.d:,}, {repeats} interleaved repeats")
    for who, spent in medians.items():
        low, high = min(times[who][1:]), max(times[who][1:])
        apart = float((first[who] - base).abs().max() / (base - start).abs().max())
        ratio = medians["serial"] / spent
        print(f"  {who:<10} {spent:8.4f} s [{low:.4f}, {high:.4f}]  {ratio:6.2f}× serial  differs by {apart:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="W")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    for name in options.workloads:
        measure(name, options.repeats)


if __name__ == "__main__":
    main()
