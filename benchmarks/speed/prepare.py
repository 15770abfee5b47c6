"""Write a workload's folder: the same data, clients, cohorts and first model for every contender."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from common import BATCH, settings

from arno.config import build
from arno.config.settings import compose, plain
from arno.core.seeds import numpy_stream
from arno.data import partitions
from arno.data.arrays import from_arrays
from arno.data.dataset import Dataset, datasets
from arno.records.checkpoint import Checkpoint, save

#: Data, training samples, partition, clients, clients a round.
WORK = {
    "W1": ("fashion_mnist", 60_000, {"kind": "dirichlet", "alpha": 0.3}, 100, 10),
    "W2": ("fashion_mnist", 60_000, {"kind": "iid"}, 1000, 100),
    "W3": ("cifar10", 10_000, {"kind": "dirichlet", "alpha": 0.5}, 10, 10),
    "W4": ("fashion_mnist", 60_000, {"kind": "iid"}, 1000, 100),
    "W7": ("fashion_mnist", 60_000, {"kind": "iid"}, 1000, 100),
    "W8": ("fashion_mnist", 60_000, {"kind": "iid"}, 1000, 100),
    "W9": ("fashion_mnist", 60_000, {"kind": "dirichlet", "alpha": 0.3}, 100, 10),
    "W10": ("fashion_mnist", 20_000, {"kind": "dirichlet", "alpha": 0.3}, 100, 10),
    "W11": ("cifar10", 200, {"kind": "iid"}, 10, 4),
    "W12": ("characters", 10_000, {"kind": "dirichlet", "alpha": 0.3}, 100, 10),
    "W13": ("fashion_mnist", 20_000, {"kind": "dirichlet", "alpha": 0.3}, 100, 10),
}
#: Test samples of a workload whose network would score all of them for minutes.
TEST = {"W11": 500}
ROUNDS = 60


def prepare(name: str, base: Path, sources: dict[str, str]) -> Path:
    """The folder `base/name`; real data where `sources` names their folder, else made-up images of ten classes."""
    kind, samples, partition, clients, cohort = WORK[name]
    folder = base / name
    folder.mkdir(parents=True, exist_ok=True)
    data = datasets.get(kind)(root=sources[kind], limit=samples) if kind in sources else made_up(kind, samples)
    held = partitions.build(partition, data.y, clients, 0)
    rng = numpy_stream(0, f"benchmark/{name}")
    cohorts = [sorted(rng.choice(clients, cohort, replace=False).tolist()) for _ in range(ROUNDS)]
    (folder / "clients.json").write_text(json.dumps([held[k].tolist() for k in range(clients)]))
    (folder / "cohorts.json").write_text(json.dumps(cohorts))
    few = slice(TEST.get(name))
    arrays = {"x": data.x, "y": data.y, "x_test": data.x_test[few], "y_test": data.y_test[few]}
    np.savez(folder / "data.npz", **{part: tensor.numpy() for part, tensor in arrays.items()})
    # The peers get what their users would make: normalised float32 arrays, with the moments that Arno finds by itself.
    numbers = from_arrays(name, {part: tensor.numpy() for part, tensor in arrays.items()}, classes=data.classes)
    for part, tensor in arrays.items():
        array = numbers.transform().normalise(tensor) if part.startswith("x") else tensor
        np.save(folder / f"{part}.npy", array.numpy())
    assert name in BATCH
    config = plain(compose(settings(folder)))
    first = build.supervised(config).init(0)
    np.save(folder / "start.npy", first.numpy())
    save(folder / "start.safetensors", Checkpoint(0, {"w": first}, {}, config))
    return folder


def made_up(kind: str, samples: int) -> Dataset:
    """Images around ten random prototypes: to learn them is easy, and takes as long as real ones."""
    g = torch.Generator().manual_seed(0)
    if kind == "characters":
        return made_up_characters(samples, g)
    shape = (1, 28, 28) if kind == "fashion_mnist" else (3, 32, 32)
    prototypes = torch.randint(0, 256, (10, *shape), generator=g)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = torch.randint(0, 10, (n,), generator=g)
        noise = torch.randint(0, 256, (n, *shape), generator=g)
        return ((prototypes[y] + 7 * noise) // 8).to(torch.uint8).numpy(), y.numpy()

    (x, y), (x_test, y_test) = draw(samples), draw(5_000)
    return from_arrays(kind, {"x": x, "y": y, "x_test": x_test, "y_test": y_test}, classes=tuple("0123456789"))


def made_up_characters(samples: int, g: torch.Generator) -> Dataset:
    """Sequences of 80 of 64 characters around ten random prototypes: half of the characters are others."""
    prototypes = torch.randint(0, 64, (10, 80), generator=g)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = torch.randint(0, 10, (n,), generator=g)
        other, noise = torch.rand(n, 80, generator=g) < 0.5, torch.randint(0, 64, (n, 80), generator=g)
        return torch.where(other, noise, prototypes[y]).numpy(), y.numpy()

    (x, y), (x_test, y_test) = draw(samples), draw(2_000)
    return from_arrays("characters", {"x": x, "y": y, "x_test": x_test, "y_test": y_test}, classes=tuple("0123456789"))
