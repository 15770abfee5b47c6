"""How large the groups of the engine `batched` should be (`MORE` in engines/batched.py).

    python benchmarks/groups.py [--repeats 5]

A round of 100 clients with 60 samples of 784 numbers, for groups of different sizes in turn: medians of milliseconds.
"""

from __future__ import annotations

import argparse
import tempfile
from statistics import median

import numpy as np

import arno
from arno.engines import batched

SIZES = (1, 2, 4, 8)
WORK = {
    "784-128-10": [],
    "784-128-10, weight decay": ["local.weight_decay=1e-4"],
    "784-64-64-10": ["model.hidden=[64,64]"],
    "784-128-10, SCAFFOLD": ["method=scaffold"],
}
SETTING = ["model=mlp", "model.hidden=[128]", "clients=1000", "partition=iid", "participation=0.1", "rounds=13"]
SETTING += ["local.batch_size=20", "eval.every=13", "checkpoint.every=13", "data.val=0"]


def rounds(data: arno.Data, words: list[str], more: int) -> float:
    """Milliseconds of a round."""
    batched.MORE = more
    with tempfile.TemporaryDirectory() as out:
        result = arno.run(*SETTING, *words, data=data, out=f"{out}/run")
        return 1e3 * median(result.history["seconds"].tolist()[1:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    data = arno.Data(rng.normal(size=(60_000, 784)).astype("float32"), rng.integers(10, size=60_000))
    print(f"{'times 2^20 numbers':<26}" + "".join(f"{more:>8}" for more in SIZES))
    for name, words in WORK.items():
        spent: dict[int, list[float]] = {more: [] for more in SIZES}
        for _ in range(repeats):
            for more, many in spent.items():
                many.append(rounds(data, words, more))
        print(f"{name:<26}" + "".join(f"{median(many):8.1f}" for many in spent.values()), flush=True)


if __name__ == "__main__":
    main()
