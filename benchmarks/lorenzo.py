"""What a round of Lorenzo is spent on: training, scoring, aggregation. Aggregation must stay below one per cent.

    python benchmarks/lorenzo.py [--samples 5000] [--rounds 1]

CIFAR-10 (from $ARNO_SHARED_DATA or ../shared/data; without it, random images of the same shape), ten clients,
Dirichlet α = 0.5, Simple5LayerCNN, batches of 64, five local epochs. With fewer samples than CIFAR-10's 50,000 the
shares of training and scoring shrink with them and that of aggregation, which does not depend on data, grows: a limit
can only overstate it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from arno.config import build
from arno.config import settings as config
from arno.methods.lorenzo import Lorenzo, Mean

SHARED = Path(os.environ.get("ARNO_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
spent: defaultdict[str, float] = defaultdict(float)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its time added to `spent[name]`."""

    def call(*arguments: Any, **settings: Any) -> Any:
        began = perf_counter()
        try:
            return function(*arguments, **settings)
        finally:
            spent[name] += perf_counter() - began

    return call


def data(samples: int) -> list[str]:
    """CIFAR-10 if it is at hand, random images of its shape otherwise."""
    if (SHARED / "cifar10").is_dir():
        return ["data=cifar10", f"data.root={SHARED / 'cifar10'}", f"data.limit={samples}"]
    import tempfile

    import numpy as np

    rng, file = np.random.default_rng(0), Path(tempfile.mkdtemp()) / "noise.npz"
    x = rng.integers(0, 256, (samples + 1000, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(0, 10, len(x))
    np.savez(file, x=x[1000:], y=y[1000:], x_test=x[:1000], y_test=y[:1000])
    print("CIFAR-10 is not at hand: random images of its shape")
    return ["data=npz", f"data.path={file}", "data.val=0.2"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5000, help="of the training data (validation included)")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    overrides = ["method=lorenzo", *data(options.samples), "model=simple5layercnn", "clients=10", "partition.alpha=0.5"]
    overrides += ["local.batch_size=64", "method.min_batches=0", "engine=serial"]
    fed = build.federation(config.plain(config.compose(overrides)))
    fed.round()  # the bootstrap; not measured

    inner = fed.engine.train

    def train(works: Any) -> Iterator[Any]:
        blocks = iter(inner(works))
        while (block := timed("training", next)(blocks, None)) is not None:
            yield block

    fed.engine.train, fed.engine.score = train, timed("scoring", fed.engine.score)  # type: ignore[method-assign]
    for name in ("__init__", "exchange", "value", "shares"):
        setattr(Mean, name, timed("aggregation", getattr(Mean, name)))
    part = next(part for part in fed.parts if isinstance(part, Lorenzo))
    total = 0.0
    for _ in range(options.rounds):
        began = perf_counter()
        fed.round()
        total += perf_counter() - began
        print(f"round {fed.t}: F1 {part.s_g:.4f}, {part._evaluations} evaluations")
    spent["the rest (delta norms, records, steps)"] = total - sum(spent.values())
    train_samples = int(fed.clients.sizes.sum())
    print(f"{len(part.H)} clients, {fed.layout.d:,} parameters, {train_samples:,} training samples, one thread")
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{name:40s} {seconds / options.rounds:8.3f} s a round  {100 * seconds / total:6.2f} %")
    share = spent["aggregation"] / total
    fine = share < 0.01
    print(f"aggregation: {100 * share:.3f} % of a round, {'below' if fine else 'NOT below'} 1 %")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
