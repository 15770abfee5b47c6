"""What Ray costs against `processes` on the same work, and whether its memory grows.

    python benchmarks/cluster.py [W1 W2] [--repeats 7] [--rounds 300]

The workloads are those of `rounds.py`; both engines run in turn, round by round, in one process on one machine, with as
many workers as it has cores. Then W2 alone, 300 rounds on Ray: the memory of the driver, of its workers (without what
they share) and of the object store, at round 50 and at the end.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from time import perf_counter

import psutil
import ray
import torch

from arno.client_selection.uniform import Uniform
from arno.core.federation import Federation, Local
from arno.engines.processes import processes
from arno.engines.ray import RayEngine, ray_engine
from rounds import LR, WORKLOADS, problem

#: What was promised: at most so many times the processes' time.
BARS = {"W1": 1.15, "W2": 2.0}


def federation(name: str, made: object, engine: object) -> Federation:
    load = WORKLOADS[name]
    local = Local(epochs=1, batch_size=load.batch_size, lr=LR)
    return Federation(made, [Uniform(load.participation)], engine=engine, local=local)


def cost(name: str, repeats: int) -> None:
    made, cores = problem(WORKLOADS[name]), os.cpu_count() or 1
    feds = {"processes": federation(name, made, processes(made, workers=cores))}
    feds["processes"].round()  # it forks its workers: before Ray has threads here
    feds["ray"] = federation(name, made, ray_engine(made, workers=cores))
    feds["ray"].round()
    times: dict[str, list[float]] = {who: [] for who in feds}
    for _ in range(repeats + 1):
        for who, fed in feds.items():
            began = perf_counter()
            fed.round()
            times[who].append(perf_counter() - began)
    same = torch.equal(feds["processes"].w, feds["ray"].w)
    for fed in feds.values():
        fed.engine.close()
    print(f"\n{name}: {repeats} interleaved repeats, {cores} workers each, the same bits: {same}")
    medians = {who: median(spent[1:]) for who, spent in times.items()}  # a worker may have come late
    for who, spent in medians.items():
        print(f"  {who:<10} {spent:7.4f} s [{min(times[who][1:]):.4f}, {max(times[who][1:]):.4f}]")
    print(f"  ratio      {medians['ray'] / medians['processes']:7.2f}   (at most {BARS.get(name, float('nan'))})")


def memory(rounds: int) -> None:
    made = problem(WORKLOADS["W2"])
    engine = ray_engine(made)
    fed, seen = federation("W2", made, engine), []
    for t in range(1, rounds + 1):
        fed.round()
        if t in (50, rounds):
            time.sleep(2)  # Ray reports what its store holds now and then
            seen.append(sizes(engine))
    engine.close()
    print(f"\nW2 on Ray, memory in MiB (at most 1.05 times)\n  {'':<14} {'round 50':>9} {f'round {rounds}':>10}  ratio")
    for what in seen[0]:
        a, b = seen[0][what], seen[1][what]
        print(f"  {what:<14} {a:9.1f} {b:10.1f}  {b / a if a else 1:5.3f}")


def sizes(engine: RayEngine) -> dict[str, float]:
    me = psutil.Process()
    workers = [p for p in me.children(recursive=True) if p.name().startswith("ray::Trainer")]
    total, free = ray.cluster_resources(), ray.available_resources()
    return {
        "driver": me.memory_full_info().uss / 2**20,
        f"{len(workers)} workers": sum(p.memory_full_info().uss for p in workers) / 2**20,
        "object store": (total["object_store_memory"] - free["object_store_memory"]) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(BARS), metavar="W")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=300, help="of the memory test; 0 leaves it out")
    options = parser.parse_args()
    for name in options.workloads:
        cost(name, options.repeats)
    if options.rounds:
        memory(options.rounds)


if __name__ == "__main__":
    main()
