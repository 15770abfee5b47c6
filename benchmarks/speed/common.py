"""What every contender reads and reports: the work's folder, the network, time, memory and the final accuracy.

Imports nothing but NumPy and torch, so that it runs in a peer's environment.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import torch
from networks import OWN, sample
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

#: Batch size, learning rate, and the multiplications of each layer's forward pass on one sample.
BATCH = {
    "W1": 32,
    "W2": 20,
    "W3": 64,
    "W4": 20,
    "W7": 20,
    "W8": 20,
    "W9": 32,
    "W10": 32,
    "W11": 20,
    "W12": 32,
    "W13": 32,
}
LR = 0.05
LAYERS = {
    "W1": (24 * 24 * 6 * 25, 8 * 8 * 16 * 6 * 25, 256 * 120, 120 * 84, 84 * 10),
    "W2": (784 * 10,),
    "W3": (30 * 30 * 32 * 27, 28 * 28 * 64 * 288, 12 * 12 * 128 * 576, 4608 * 256, 256 * 10),
    "W4": (784 * 128, 128 * 10),
}


def flops(name: str) -> int:
    """Floating-point operations to train on one sample: forward, and twice that backward, less the pixels' gradient."""
    if name in LAYERS:
        return 6 * sum(LAYERS[name]) - 2 * LAYERS[name][0]
    if name == "W12":  # the counter does not know torch's LSTM
        return 6 * 80 * 4 * 64 * (8 + 64)
    with FlopCounterMode(display=False) as counter:
        network(name)(sample(name)).sum().backward()
    return counter.get_total_flops()


def network(name: str) -> nn.Module:
    """The model as anybody would write it."""
    torch.manual_seed(int(os.environ.get("SEED", 0)))  # of everything that the contender draws from here on
    if name == "W1":
        layers = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    elif name == "W2":
        layers = [nn.Flatten(), nn.Linear(784, 10)]
    elif name == "W3":
        layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(64, 128, 3), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(4608, 256), nn.ReLU(), nn.Linear(256, 10)]
    elif name in OWN and name != "W4":
        return OWN[name]()
    else:
        layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def five_layers(shape: tuple[int, ...], classes: int) -> nn.Module:
    """W3's network as a network of one's own in Arno."""
    return network("W3")


def own(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network that a user writes for the workload that the environment names, in Arno."""
    return OWN[os.environ["WORKLOAD"]]()


def settings(folder: Path) -> list[str]:
    """The work of a folder in Arno's words."""
    name, clients = folder.name, len(json.loads((folder / "clients.json").read_text()))
    model = {"W1": "lenet5", "W2": "softmax", "W4": "mlp"}.get(name, "custom")
    words = [
        "data=npz", f"data.path={folder / 'data.npz'}", "data.val=0", f"clients={clients}",
        "partition=file", f"partition.path={folder / 'clients.json'}",
        "select=schedule", f"select.path={folder / 'cohorts.json'}",
        f"model={model}", f"local.batch_size={BATCH[name]}", f"local.lr={LR}",
        f"seed={os.environ.get('SEED', 0)}", f"load={folder / 'start.safetensors'}",
    ]  # fmt: skip
    if model == "custom":
        os.environ["WORKLOAD"] = name
        words.append(f"model.target={Path(__file__).resolve()}:{'five_layers' if name == 'W3' else 'own'}")
    return words + ["model.hidden=[128]"] * (name == "W4")


class Task:
    """The folder that `prepare.py` wrote: normalised samples, who holds which, the first model, and all cohorts."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder)
        self.name = self.path.name
        self.batch_size, self.lr = BATCH[self.name], LR
        self.x, self.y = (torch.from_numpy(np.load(self.path / f"{part}.npy")) for part in ("x", "y"))
        self.parts = json.loads((self.path / "clients.json").read_text())
        self.cohorts = json.loads((self.path / "cohorts.json").read_text())

    def network(self) -> nn.Module:
        """The model before the first round, the same for every contender."""
        model = network(self.name)
        start = torch.from_numpy(np.load(self.path / "start.npy"))
        nn.utils.vector_to_parameters(start, model.parameters())
        return model

    def accuracy(self, model: nn.Module) -> float:
        """On the test data."""
        x, y = (torch.from_numpy(np.load(self.path / f"{part}_test.npy")) for part in ("x", "y"))
        with torch.inference_mode():
            hits = [model(a).argmax(1).eq(b).sum() for a, b in zip(x.split(256), y.split(256), strict=True)]
        return float(sum(hits)) / len(y)


class Memory:
    """The largest proportional set size of this process and all its children, in MiB, looked at twice a second."""

    def __init__(self) -> None:
        self.peak, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.peak = max(self.peak, tree_memory(os.getpid()))

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return max(self.peak, tree_memory(os.getpid()))


def tree_memory(root: int) -> float:
    """The proportional set size of a process and all below it, in MiB."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                after = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(after[1]), []).append(int(entry))
            except (OSError, IndexError):
                continue
    kilobytes, queue = 0, [root]
    while queue:
        pid = queue.pop()
        queue += children.get(pid, [])
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kilobytes += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return kilobytes / 1024


def report(seconds: list[float], mebibytes: float, accuracy: float) -> None:
    """One line for the driver: the seconds of each round (the driver drops the first), memory, accuracy."""
    print(json.dumps({"seconds": seconds, "memory": mebibytes, "accuracy": accuracy}), flush=True)


def clock() -> float:
    """Seconds."""
    return time.perf_counter()
