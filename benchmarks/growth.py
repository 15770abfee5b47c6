"""W6: how a round's time and memory grow with the cohort, the clients, the parameters and the cores.

    python benchmarks/growth.py [ROW ...]

Synthetic images, 60 samples a client drawn with replacement, B = 20, E = 1, engine auto. Each point is a process of its
own, three times over, the points of a row in turn: medians of the time of a round (and of those three), and how far the
rounds take the memory beyond data and model. Time should be flat in the clients, linear in cohort and parameters;
memory independent of cohort and clients (FedAvg).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import median
from time import perf_counter

ROWS = {
    "cohort": ([10, 30, 100, 300, 1_000, 3_000], "softmax, N = 1e5"),
    "clients": ([100, 1_000, 10_000, 100_000, 1_000_000], "softmax, 100 a round"),
    "parameters": ([1e4, 1e5, 1e6, 1e7], "MLP with one hidden layer, 10 a round"),
    "cores": ([1, 2], "LeNet-5, 10 a round"),
}


def point(row: str, value: float) -> dict[str, float]:
    """One point: seconds a round, MiB beyond what stood before the first."""
    import resource

    import torch

    from arno.client_selection.uniform import Uniform
    from arno.core.federation import Federation, Local
    from arno.core.seeds import stream
    from arno.data import partitions
    from arno.data.dataset import Transform
    from arno.engines.auto import auto
    from arno.models import models
    from arno.problems.supervised import Supervised

    clients = {"cohort": 100_000, "clients": int(value)}.get(row, 1000)
    cohort = {"cohort": int(value), "clients": 100}.get(row, 10)
    model, settings = {"parameters": ("mlp", {"hidden": (max(1, int(value / 795)),)}), "cores": ("lenet5", {})}.get(
        row, ("softmax", {})
    )
    g = stream(0, "growth")
    x = torch.randint(0, 255, (10_000, 1, 28, 28), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (10_000,), generator=g)
    held = partitions.build({"kind": "replace", "size": 60}, y, clients, 0)
    problem = Supervised(
        x, y, held, lambda: models.get(model)((1, 28, 28), 10, **settings), transform=Transform((0.5,), (0.25,))
    )
    engine = auto(problem, cores=int(value) if row == "cores" else 0)
    fed = Federation(problem, [Uniform(cohort / clients)], engine=engine, local=Local(1, 20, 0.01))
    before, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    while len(spent) < 4 or (len(spent) < 100 and sum(spent) < 2):
        began = perf_counter()
        fed.round()
        spent.append(perf_counter() - began)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    fed.engine.close()
    return {"seconds": median(spent[1:]), "memory": grown, "d": problem.layout.d}


def main() -> None:
    """All rows, each point in a process of its own."""
    if len(sys.argv) == 3 and sys.argv[1] in ROWS and sys.argv[2] not in ROWS:
        print(json.dumps(point(sys.argv[1], float(sys.argv[2]))))
        return
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for row in sys.argv[1:] or ROWS:
        values, what = ROWS[row]
        found: dict[float, list[dict[str, float]]] = {value: [] for value in values}
        for value in values * 3:
            words = [sys.executable, __file__, row, str(value)]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
            found[value].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"\n| {row} ({what}) | ms a round | to the first | MiB beyond data and model |")
        print("| ---: | ---: | ---: | ---: |")
        seconds, memory = (
            [median(run[part] for run in runs) for runs in found.values()] for part in ("seconds", "memory")
        )
        for value, spent, grown in zip(values, seconds, memory, strict=True):
            print(f"| {value:,.0f} | {spent * 1e3:.1f} | {spent / seconds[0]:.2f} | {grown:.0f} |", flush=True)


if __name__ == "__main__":
    main()
