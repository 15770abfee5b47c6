"""Past the machines at hand: a model of a round's time and traffic from measured constants, and a check of it.

    python benchmarks/scale.py

1. Constants, measured here: seconds per sample and parameter of dense and of convolutional training, what a message
   costs its sender and its way, bytes per second through the object store and through the server's sum.
2. A simulation of the schedule (pieces as the engine cuts them, a sender that handles one message at a time) with
   those constants, beside real rounds on Ray at sizes that run here.
3. The same simulation and the closed-form bounds at 1,000,000 clients, cohorts of 10,000, d = 1e8, 1,000 workers.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
import ray
import torch

from arno.client_selection.uniform import Uniform
from arno.core.federation import BLOCK, ROWS, Federation, Local
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.engines.pieces import pieces
from arno.engines.ray import ray_engine
from arno.engines.ray_transport import WORTH
from arno.engines.serial import Serial
from arno.models import models
from arno.problems.supervised import Supervised

CORES = 32  # of a node of the cluster that is planned
STEPS = 5  # of a client's round, in the simulation


@dataclass(frozen=True)
class Constants:
    sample: float  # seconds of one core per training sample (forward, backward, its share of the step)
    send: float  # seconds of the server per message
    way: float  # further seconds until its answer is there
    hand: float  # bytes per second from an actor's memory into the object store
    take: float  # bytes per second from the object store into the server's memory
    add: float  # bytes per second of the server's weighted sum
    link: float = float("inf")  # bytes per second of the network into the server


@dataclass(frozen=True)
class Round:
    cohort: int
    samples: int  # per client
    d: int
    workers: int
    sums: bool = False  # engine.reduce=worker


def problem(model: str, clients: int, samples: int, **settings: object) -> Supervised:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 255, (clients * samples, 1, 28, 28), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (len(x),), generator=g)
    partition = Partition(torch.arange(len(x)), torch.arange(clients + 1) * samples)
    build = models.get(model)
    return Supervised(x, y, partition, lambda: build((1, 28, 28), 10, **settings), transform=Transform((0.5,), (0.25,)))


def federation(made: Supervised, engine: object, participation: float = 1.0) -> Federation:
    return Federation(made, [Uniform(participation)], engine=engine, local=Local(batch_size=20, lr=0.01))


def timed(run: Callable[[], object], repeats: int = 5) -> float:
    spent = []
    for _ in range(repeats + 1):
        began = perf_counter()
        run()
        spent.append(perf_counter() - began)
    return median(spent[1:])


def per_sample(fed: Federation, samples: int) -> float:
    """Seconds per training sample by the workers' own clocks."""
    return median(
        sum(r.clients["seconds"]) / len(r.clients["seconds"]) / samples for r in (fed.round() for _ in range(5))
    )


def constants(sample: float) -> Constants:
    small, n, big = torch.zeros(1).numpy(), 200, 4_000_000
    echo = ray.remote(num_cpus=0)(Echo).remote()
    timed(lambda: ray.get(echo.back.remote(small)), 50)
    began = perf_counter()
    sent = [echo.back.remote(small) for _ in range(n)]
    send = (perf_counter() - began) / n
    ray.get(sent)
    way = timed(lambda: ray.get(echo.back.remote(small)), 50) - send
    whole = timed(lambda: ray.wait([echo.make.remote(big)])) - way
    made = [echo.make.remote(big) for _ in range(6)]
    ray.wait(made, num_returns=len(made))
    took = timed(lambda: np.copy(ray.get(made.pop())))
    rows, weight = torch.rand(32, 1_000_000), torch.rand(32)
    add = rows.numel() * 4 / timed(lambda: weight @ rows)
    ray.kill(echo)
    return Constants(sample, send, way, 4 * big / whole, 4 * big / took, add)


class Echo:
    def back(self, x: object) -> object:
        return x

    def make(self, n: int) -> object:
        return np.zeros(n, dtype=np.float32)


def simulate(r: Round, c: Constants) -> tuple[float, int]:
    """A round by the clock: the server sends one message after another and takes answers in between, in order of
    their arrival; a worker trains its rows and hands the deltas over. Returns seconds and messages."""
    size, one = 4 * r.d, r.samples * c.sample + (0 if r.sums else 4 * r.d / c.hand)
    row = size / c.link + size / c.take + (0 if r.sums else size / c.add)  # a vector's way into the sum, at the server
    last = size / c.hand if r.sums else 0.0
    todo, now = deque(messages(r, one)), 0.0
    sent = len(todo)
    out = size / min(c.link, c.take)  # the model's way to one node; they get it one after another
    free = [(out * (k // CORES + 1), k) for k in range(r.workers)]
    answers: list[tuple[float, int, int]] = []  # when, whose, how many rows
    while todo or answers:
        if todo and free and (not answers or max(now, free[0][0]) <= max(now, answers[0][0])):
            (at, k), rows = heapq.heappop(free), todo.popleft()
            now = max(now, at) + c.send
            heapq.heappush(answers, (now + c.way + rows * one + last, k, rows))
            continue
        at, k, rows = heapq.heappop(answers)
        now = max(now, at) + c.send + (row if r.sums else rows * row)
        heapq.heappush(free, (at, k))
    return now, sent


def messages(r: Round, one: float) -> list[int]:
    """How many rows of equal length, which take `one` second, the engine puts into each message of a round."""
    if r.sums:
        return [len(share) for share in np.array_split(np.arange(r.cohort), r.workers)]
    rows = max(1, min(ROWS, BLOCK // max(1, r.d)))
    blocks = [min(rows, r.cohort - at) for at in range(0, r.cohort, rows)]
    least = WORTH / (one / STEPS) if one else 0.0
    return [len(piece) for n in blocks for piece in pieces(torch.full((n,), STEPS), r.workers, least)]


def bounds(r: Round, c: Constants) -> dict[str, float]:
    """What each resource alone would need."""
    vectors = r.workers if r.sums else r.cohort
    count = len(messages(r, r.samples * c.sample))
    return {
        "workers train": -(-r.cohort // r.workers) * r.samples * c.sample,
        "server sends": 2 * count * c.send,
        "model goes out": -(-r.workers // CORES) * 4 * r.d / min(c.link, c.take),
        "deltas travel": vectors * 4 * r.d / c.link,
        "server copies and adds": vectors * 4 * r.d * (1 / c.take + (0 if r.sums else 1 / c.add)),
    }


def check() -> Constants:
    """Real rounds beside the simulation, which knows the workers' pace from earlier rounds."""
    cores, c = os.cpu_count() or 1, None
    print("\nrounds that run here: seconds measured, simulated, largest bound\n")
    print("| model | clients a round | samples each | workers | measured | simulated | bound | messages |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model, settings, cohort, samples in (
        ("softmax", {}, 100, 60),
        ("softmax", {}, 400, 60),
        ("mlp", {"hidden": (200,)}, 40, 200),
        ("mlp", {"hidden": (1000,)}, 20, 100),
    ):
        made = problem(model, cohort, samples, **settings)
        for workers in sorted({1, cores}):
            fed = federation(made, ray_engine(made, workers=workers))
            fed.round()
            c = constants(per_sample(fed, samples))
            spent = timed(fed.round)
            fed.engine.close()
            r = Round(cohort, samples, made.layout.d, workers)
            predicted, sent = simulate(r, c)
            print(
                f"| {model}, d = {r.d:,} | {cohort} | {samples} | {workers} | {spent:.3f} | {predicted:.3f} | "
                f"{max(bounds(r, c).values()):.3f} | {sent} |"
            )
    assert c is not None
    return c


def plan(c: Constants, link: float) -> None:
    """The large one; deltas travel over a network link of so many bytes per second."""
    c = replace(c, link=link)
    print(f"\n1,000,000 clients, 100 samples each, d = 1e8, a link of {link / 1e9:g} GB/s into the server\n")
    print("| cohort | workers | reduce | " + " | ".join(bounds(Round(1, 1, 1, 1), c)) + " | simulated | traffic up |")
    print("| ---: | ---: | --- |" + " ---: |" * 7)
    for cohort, workers, sums in (
        (10_000, 100, False),
        (10_000, 1_000, False),
        (10_000, 100, True),
        (10_000, 1_000, True),
        (10_000, 10_000, True),
    ):
        r = Round(cohort, 100, 10**8, workers, sums)
        spent, up = simulate(r, c)[0], (workers if sums else cohort) * 4e8
        each = " | ".join(f"{seconds:,.1f} s" for seconds in bounds(r, c).values())
        word = "worker" if sums else "server"
        print(f"| {cohort:,} | {workers:,} | {word} | {each} | {spent:,.0f} s | {up / 1e9:,.0f} GB |")


def room() -> None:
    """What has to lie somewhere, at d = 1e8."""
    row = 4e8
    print("\nmemory at d = 1e8, cohorts of 10,000\n\n| what | where | GB |\n| --- | --- | ---: |")
    print(f"| the model, the block, the sum | server | {3 * row / 1e9:.1f} |")
    print(f"| a delta and the learner's two buffers, per core | node | {3 * row / 1e9:.1f} |")
    print(f"| deltas that wait for their turn, two per core, {CORES} cores | node | {2 * CORES * row / 1e9:.1f} |")
    print(f"| rows kept for clients (SCAFFOLD, FedVARP, MOON), after one round | state= | {10_000 * row / 1e9:,.0f} |")
    print(f"| the same, all 1,000,000 clients seen | state= | {1e6 * row / 1e9:,.0f} |")
    print(f"| the same at d = 1e6 | state= | {1e6 * 4e6 / 1e9:,.0f} |")
    print(f"| a sum per node instead of one per worker, 1,000 workers | network | {32 * row / 1e9:.1f} |")


def main() -> None:
    torch.set_num_threads(1)
    print("constants\n\n| model | seconds per sample | d | per sample and parameter |\n| --- | ---: | ---: | ---: |")
    kinds = {"softmax": {}, "mlp 1000": {"hidden": (1000,)}, "mlp 2000, 2000": {"hidden": (2000, 2000)}, "lenet5": {}}
    for name, settings in kinds.items():
        made = problem(name.split()[0], 16, 60, **settings)
        sample, d = per_sample(federation(made, Serial(made)), 60), made.layout.d
        print(f"| {name} | {sample:.2e} | {d:,} | {sample / d:.2e} |")
        if name.startswith("mlp"):
            dense = sample / d
    c = check()
    print(
        f"\nper message: {c.send * 1e6:.0f} µs of the server, {c.way * 1e6:.0f} µs on its way; per second: "
        f"{c.hand / 1e9:.2f} GB into the store, {c.take / 1e9:.2f} GB out of it, {c.add / 1e9:.2f} GB into the sum"
    )
    c = replace(c, sample=dense * 10**8)
    for link in (1.25e9, 12.5e9):
        plan(c, link)
    room()


if __name__ == "__main__":
    main()
