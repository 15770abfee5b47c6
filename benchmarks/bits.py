"""Whether two checkouts of Arno compute the same bits.

    python benchmarks/bits.py OLD NEW

OLD and NEW are the folders of two checkouts. Every case is a short run. Both checkouts run it, and the script compares

    final.safetensors, best.safetensors    bit for bit
    metrics.jsonl                          every column that both record, except seconds and uploaded_bytes

Since release 0.2 `uploaded_bytes` counts all that a client sends; before, it counted models alone.

The cases are all methods of OLD on the digits and on quadratics, some lists of parts for `compose`, other settings of
the methods and of local training, all selections, several networks, and the engines. A method that needs a network
refuses quadratics: both checkouts must refuse them. Each checkout runs its cases in one process, with one thread, and
the two processes run side by side. The script imports nothing of Arno: the processes call `arno.run`, and the names of
the methods come from `arno completion`.

It prints one line per case and a summary. It exits with status 1 if a case differs, fails, or runs in one checkout
only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

#: What a case begins with. The images have 28×28 pixels: the digits' 8×8 are too few for LeNet-5.
PROBLEMS = {
    "digits": "data=digits partition=dirichlet clients=12 participation=0.5 rounds=3",
    "quadratic": "problem=quadratic clients=12 participation=0.5 rounds=5 local.epochs=3 local.lr=0.02",
    "images": "data=npz data.path=images.npz partition=dirichlet clients=5 rounds=3 model=lenet5",
}
#: Settings that every method allows.
OTHERWISE = (
    "dtype=float64 weighting=uniform local.weight_decay=0.001 local.clip=1 local.lr_decay=0.9 local.batch_size=20"
)
#: Settings without which a method refuses the digits.
NEEDS = {"lorenzo": "participation=1"}
#: Columns that are not compared: checksums, and bytes, which count more than in release 0.1.
OTHER = ("crc", "uploaded_bytes")
#: Seconds after which the process that runs a case is ended.
PATIENCE = 120

COMPOSITIONS = (
    "window,proximal,scaffold,cluster_varp",
    "window,proximal",
    "window,server_momentum",
    "proximal,server_momentum",
    "proximal,nova",
    "proximal,varp,server_schedule",
    "scaffold,varp",
    "scaffold,server_adaptive",
    "dyn,server_schedule",
    "moon,scaffold",
    "rcl,server_adaptive",
    "rcl,qrmix",
)

METHODS = {
    "cluster_fedvarp": ["method.clusters=3 method.by=labels", "method.clusters=[0,1,2,0,1,2,0,1,2,0,1,2]"],
    "fedavg_schedule": [
        *(f"method.schedule={rule} method.rate=0.7 method.every=2" for rule in ("exponential", "inverse", "step")),
        "method.schedule=inverse_sqrt server_lr=0.5",
    ],
    "fedavgm": ["method.momentum=0.5 server_lr=0.3"],
    "federated_dropout": ["method.mode=mask method.normalize=all"],
    "fednova": ["local.momentum=0.9", "local.epochs=choice(1,2,3) local.lr=uniform(0.01,0.1)"],
    "fedprox": ["method.mu=uniform(0,1)", "method.mu=0.1 local.momentum=0.9 state=disk"],
    "fedrcl": ["method.loss=supcon", "method.loss=align", "method.levels=[0] method.positives=2"],
    "fedrolex": ["method.beta=choice(0.25,0.5,1)", "method.mode=mask", "method.normalize=all model.hidden=[32,16]"],
    "fedscavar": ["method.mode=mask method.by=labels method.clusters=4", "method.beta=1 method.mu=0"],
    "fedvarp": ["select=rand", "state=disk"],
    "heterofl": ["method.beta=[1,1,1,0.5,0.5,0.5,0.5,0.25,0.25,0.25,0.25,0.25] method.mode=mask"],
    "lorenzo": ["method.order=random method.metric=accuracy", "method.metric=neg_loss method.with_global=false"],
    "qrmix": [
        "method.rule=lsq method.at=global",
        "method.rule=mean method.backbone=freeze method.rank_k=5",
        "method.adaptive=0.9 method.every_client=2 method.every_round=2",
    ],
    "scaffold": ["select=rand", "local.epochs=choice(1,2) state=disk"],
}

LOCAL = (
    "local.weight_decay=0.01",
    "local.momentum=0.9",
    "local.momentum=0.9 local.weight_decay=0.001 local.clip=0.5",
    "local.clip=0.1",
    "local.lr_decay=0.5",
    "local.augment=true",
    "local.shuffle=false",
    "local.epochs=choice(1,2,3) local.batch_size=choice(8,16,32) local.lr=uniform(0.01,0.1)",
    "local.batch_size=1000",
    "local.lr=1e30 on_divergence=drop",
    "server_lr=0.5 eval.clients=true eval.every=2",
    "seed=7 model.hidden=[32,16] model.activation=tanh",
    "weighting=uniform",
    "dtype=float64",
    "participation=1",
    "participation=0.1",
    "partition=iid",
    "partition=shards",
    "partition=classes",
    "partition=quantity",
    "partition=replace",
    "partition.alpha=0.1",
    "partition.equal=true",
)

SELECTIONS = (
    *("uniform", "rand", "powd", "powd select.d=9", "cpowd", "cpowd select.batch_size=4", "rpowd", "adapowd"),
    *("adapowd select.until=1 select.d=10", "roundrobin", "schedule select.path=cohorts.json"),
)

QUADRATICS = ("problem.spd=true", "dtype=float32", "weighting=samples", "local.lr_decay=0.5", "server_lr=0.5")

RESNET = "model=resnet18 model.width=8 model.groups=2 rounds=2 data.limit=300 local.batch_size=16 local.epochs=1"
NETWORKS = (
    *(f"digits model=softmax method={name}" for name in ("fedavg", "fedprox", "scaffold", "fedvarp", "qrmix")),
    "digits model=softmax dtype=float64 local.momentum=0.9",
    *(f"digits {RESNET} method={name}" for name in ("fedavg", "scaffold", "fedrcl", "qrmix")),
    f"digits {RESNET} local.augment=true local.momentum=0.9 local.weight_decay=0.001",
    "digits model=simple5layercnn data.limit=300",
    *(f"digits model=custom model.target=net.py:Net method={name}" for name in ("fedavg", "scaffold", "fedavgm")),
    "digits model=custom model.target=net.py:Net weighting=uniform local.momentum=0.5",
    *(f"images method={name}" for name in ("fedavg", "scaffold", "fedrolex", "moon", "fedrcl")),
    "images local.augment=true local.clip=1 local.weight_decay=0.001",
)

ENGINES = (
    *(f"batched engine.workers=2 method={name}" for name in ("fedavg", "fedprox", "scaffold", "fedscavar")),
    "batched engine.workers=1 local.momentum=0.9 local.clip=0.5 local.weight_decay=0.001",
    *(f"processes engine.workers=2 method={name}" for name in ("fedavg", "scaffold", "fedrolex", "qrmix")),
    *(f"auto method={name}" for name in ("fedavg", "fedvarp", "moon")),
    "auto method=lorenzo participation=1",
)

#: A network with BatchNorm, whose buffers the server averages too, and with dropout, which draws random numbers.
NET = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, shape, classes):
        body = [nn.Conv2d(shape[0], 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        super().__init__(*body, nn.Dropout(0.2), nn.Linear(8 * (shape[1] // 2) * (shape[2] // 2), classes))
"""


class Checkout:
    """A checkout, the process that runs its cases, and the folder of its runs."""

    def __init__(self, name: str, path: Path, base: Path) -> None:
        self.name, self.path, self.base = name, path.resolve(), base
        self.runs, self.errors = base / name, base / f"{name}.err"
        # Its own sources come before an installed Arno; one thread, since there are two processes.
        self.environment = os.environ | {"PYTHONPATH": str(self.path / "src"), "OMP_NUM_THREADS": "1"}

    def methods(self) -> list[str]:
        """The names of all methods."""
        words = [sys.executable, "-m", "arno", "completion", "--words", "arno run method="]
        done = subprocess.run(words, env=self.environment, cwd=self.base, stdout=subprocess.PIPE, text=True, check=True)
        return [word.removeprefix("method=") for word in done.stdout.split()]

    def start(self) -> subprocess.Popen[str]:
        """Start the process that runs the cases of `cases.json`."""
        words = [sys.executable, str(Path(__file__).resolve()), "--work", str(self.runs), str(self.path)]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                words, env=self.environment, cwd=self.base, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        return self.process

    def answer(self) -> tuple[str, str]:
        """What the checkout did with the next case (ran, refused, failed), and why."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            did, why = json.loads(line)
            return did, why
        last = ["", *self.errors.read_text().split("\n")[:-1]][-1]
        return "failed", f"its process ended with status {self.process.wait()}: {last}"


def work(runs: str, checkout: str) -> None:
    """The process of one checkout: run every case in a folder of its own and print what became of it."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import arno

    if not Path(arno.__file__).is_relative_to(checkout):
        raise SystemExit(f"Arno comes from {arno.__file__}")
    for i, words in enumerate(json.loads(Path("cases.json").read_text())):
        signal.alarm(PATIENCE)
        did, why = "ran", ""
        try:
            arno.run(*words, out=f"{runs}/{i}")
        except arno.ArnoError as error:
            did, why = "refused", str(error)
        except Exception as error:
            did, why = "failed", f"{type(error).__name__}: {error}"
        print(json.dumps([did, why]), file=answers, flush=True)


def cases(methods: list[str]) -> list[str]:
    """All cases: the name of a problem, then settings."""
    names = [name for name in methods if name != "compose"]
    found = [f"digits method={name} {NEEDS.get(name, '')} {more}" for more in ("", OTHERWISE) for name in names]
    for name in names:
        found += [f"digits method={name} {NEEDS.get(name, '')} {words}" for words in METHODS.get(name, ())]
    found += [f"quadratic method={name}" for name in names]
    for problem in ("digits", "quadratic"):
        found += [f"{problem} method=compose method.parts=[{parts}]" for parts in COMPOSITIONS]
        found += [f"{problem} select={words}" for words in SELECTIONS]
    found += [f"quadratic {words}" for words in QUADRATICS]
    found += [f"digits {words}" for words in LOCAL]
    found += [*NETWORKS, *(f"digits engine={words}" for words in ENGINES)]
    return [" ".join(words.split()) for words in found]


def settings(case: str) -> list[str]:
    """A case in the words of the command line; the engine is `serial` unless the case names another."""
    problem, *words = case.split()
    return ["engine=serial", *PROBLEMS[problem].split(), *words]


def write_files(base: Path) -> None:
    """The files that cases name: a network, images, cohorts."""
    (base / "net.py").write_text(NET)
    (base / "cohorts.json").write_text(json.dumps([[0, 3, 5], [1, 2], [11, 4, 7, 8]]))
    rng = np.random.default_rng(0)
    np.savez(base / "images.npz", x=rng.integers(0, 256, (400, 1, 28, 28), dtype=np.uint8), y=rng.integers(0, 10, 400))


def compare(old: Checkout, new: Checkout, names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Run all cases in both checkouts: each case with its verdict and the reason."""
    (old.base / "cases.json").write_text(json.dumps([settings(case) for case in names]))
    with old.start(), new.start():
        for i, case in enumerate(names):
            yield case, *verdict(old, new, str(i))


def verdict(old: Checkout, new: Checkout, run: str) -> tuple[str, str]:
    """Equal, refused by both or different; and why."""
    (did, why), (new_did, new_why) = old.answer(), new.answer()
    if did == new_did == "refused":
        return "refused by both", why
    if did != "ran" or new_did != "ran":
        sides = (("old", did, why), ("new", new_did, new_why))
        return "different", "; ".join(f"{name} {what}{why and f': {why}'}" for name, what, why in sides)
    before, after = rows(old.runs / run), rows(new.runs / run)
    models = ("final.safetensors", "best.safetensors")
    unequal = [name for name in models if tensors(old.runs / run / name) != tensors(new.runs / run / name)]
    unequal += columns(before, after)
    if unequal:
        return "different", ", ".join(unequal)
    alone = set().union(*before) ^ set().union(*after)
    return "equal", f"recorded by one alone: {', '.join(sorted(alone))}" if alone else ""


def tensors(path: Path) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], bytes]]:
    """The tensors of a file: type, shape and bytes; none if there is no file."""
    if not path.exists():
        return {}
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in load_file(path).items()}


def rows(run: Path) -> list[dict[str, Any]]:
    """The recorded metrics, round by round, without seconds and `OTHER`."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if "seconds" not in name and name not in OTHER} for row in found
    ]


def columns(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """The columns that both have and that differ, with the first round in which they do."""
    if len(before) != len(after):
        return [f"{len(before)} and {len(after)} rounds"]
    first: dict[str, int] = {}
    for a, b in zip(before, after, strict=True):
        for name in a.keys() & b.keys():
            if json.dumps(a[name]) != json.dumps(b[name]):
                first.setdefault(name, a["round"])
    return [f"{name} from round {t}" for name, t in sorted(first.items())]


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    options = parser.parse_args()
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        base = Path(name)
        write_files(base)
        old, new = Checkout("old", options.old, base), Checkout("new", options.new, base)
        for case, found, why in compare(old, new, cases(old.methods())):
            count[found] += 1
            shown = found.upper() if found == "different" else found
            print(f"{case}: {shown}{f' ({why})' if why else ''}", flush=True)
    summary = ", ".join(f"{count[kind]} {kind}" for kind in ("equal", "refused by both", "different"))
    print(f"{count.total()} cases, {summary}")
    return 1 if count["different"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
