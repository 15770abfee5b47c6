"""A round costs the same with a thousand clients and with a million; memory grows with the clients seen.

    python benchmarks/clients.py

Softmax regression on `digits`, every client draws 20 samples with replacement, 100 clients a round. Prints the ratio
of the median times per round at N = 1e6 and at N = 1e3 (interleaved); bar: 1.3. Then the memory per client seen.
"""

from __future__ import annotations

import resource
from statistics import median
from time import perf_counter

import torch

from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation

ROUNDS, BAR = 30, 1.3
SIZES = (1_000, 1_000_000)


def federation(method: str, n: int, **extra: str) -> Federation:
    words = ["model=softmax", "partition=replace", f"clients={n}", f"participation={100 / n}", "rounds=1000"]
    words += [f"method={method}", "local.batch_size=20", *(f"{k}={v}" for k, v in extra.items())]
    return build.federation(plain(compose(words)))


def main() -> None:
    torch.set_num_threads(1)
    for method in ("fedavg", "scaffold", "fedvarp"):
        feds = {n: federation(method, n) for n in SIZES}
        times: dict[int, list[float]] = {n: [] for n in SIZES}
        for _ in range(ROUNDS):
            for n, fed in feds.items():
                began = perf_counter()
                fed.round()
                times[n].append(perf_counter() - began)
        small, large = (median(times[n][3:]) for n in SIZES)
        both = f"{small * 1e3:6.1f} ms at N = 1e3, {large * 1e3:6.1f} ms at N = 1e6"
        print(f"{method:<9} a round: {both}, ratio {large / small:.2f} (bar {BAR})")
    for state in ("memory", "disk"):
        fed = federation("scaffold", 1_000_000, state=state)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(50):
            fed.round()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        seen = next(part.ck.seen for part in fed.parts if hasattr(part, "ck"))
        rows = seen * fed.layout.size * 4 / 2**20
        print(f"scaffold, state={state}: {seen:,} of 1,000,000 clients seen", end=", ")
        print(f"their rows take {rows:.1f} MiB, peak memory grew by {grown:.1f} MiB")


if __name__ == "__main__":
    main()
