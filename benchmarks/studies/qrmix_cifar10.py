"""The claim of QR-Mix at its own size: 200 + 100 rounds on CIFAR-10, 100 clients, 5 %; days of two cores.

    python benchmarks/studies/qrmix_cifar10.py [--root DIR] [--splits DIR] [--out runs/qrmix-cifar10] [--hours 10]
                                               [--alpha 0.3] [--write]

Stage 1 is FedRCL with server momentum, 200 rounds; from its model, FedRCL alone, and FedRCL with QR-Mix by both rules,
go on to round 300. β is chosen for each rule from three values by the validation accuracy at a seed that is not used
again. `lenet5`: α = 0.3 with five seeds, 0.1 and 0.6 with three. `--hours` ends after so many hours, between two
runs; the same command goes on where it stopped: runs that are done are not run again, one that was stopped is resumed.
`--splits` is a folder with the split files that FedRCL's authors published (cifar10_dirichlet0.3_clients100.txt.gz);
without it the split is drawn. `--write` writes docs/results/qrmix_cifar10.md from the runs that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from arno.analysis.statistics import summary
from arno.records.metrics import read as recorded
from arno.runs.run import resume, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "qrmix_cifar10.md"
FIRST, LAST, TUNING = 200, 300, 1000  # the last rounds of the stages, the seed of the choice of β
SEEDS = {0.3: (0, 1, 2, 3, 4), 0.1: (0, 1, 2), 0.6: (0, 1, 2)}
RULES, BETAS = ("seed", "lsq"), (0.001, 0.01, 0.1)
BASE = "FedRCL"
SETTING = ["data=cifar10", "model=lenet5", "clients=100", "participation=0.05", "local.lr=0.1", "local.lr_decay=0.998"]
SETTING += ["local.weight_decay=1e-3", "local.batch_size=50", "local.epochs=5", "local.clip=10", "local.augment=true"]
SETTING += ["eval.every=20", "checkpoint.every=20"]
STAGE1 = ["method=compose", "method.parts=[rcl,server_momentum]"]


TEXT = """\
# QR-Mix against FedRCL on CIFAR-10

    make results NAME=qrmix_cifar10 ARGS="--root DIR --splits DIR"

The README of FedRCL with QR-Mix claims +1 to +2 points over FedRCL on CIFAR-10 at α = 0.3, and more at a smaller α.
Its setting: 100 clients, 5 % of them in a round, 200 rounds of FedRCL with server momentum, then 100 rounds of a
second stage from the same model. Here with `lenet5`. β is chosen for each rule from 0.001, 0.01 and 0.1 by
validation at a seed that is not used again. Mean and 95 % interval over the seeds (Student's t); the differences
are paired by seed. *MB sent*: all uploads of the second stage.

{rows}
"""


class Cell(NamedTuple):
    """A run: its folder's name, its settings, and the run that it starts from."""

    name: str
    words: list[str]
    start: str = ""


def setting(alpha: float, seed: int, splits: Path | None) -> list[str]:
    """The settings of a seed at one α; validation samples only where β is chosen."""
    words = [*SETTING, f"seed={seed}", f"data.val={0.1 if seed == TUNING else 0}"]
    if splits is None:
        return [*words, f"partition.alpha={alpha}"]
    return [*words, "partition=file", f"partition.path={splits / f'cifar10_dirichlet{alpha}_clients100.txt.gz'}"]


def mixing(rule: str, beta: float) -> list[str]:
    return ["method=compose", "method.parts=[rcl,qrmix]", f"method.qrmix.rule={rule}", f"method.qrmix.beta={beta}"]


def first(alpha: float, seed: int, splits: Path | None) -> Cell:
    words = [*setting(alpha, seed, splits), *STAGE1, f"rounds={FIRST}"]
    return Cell(f"{alpha}-{seed}-stage1", words)


def second(alpha: float, seed: int, splits: Path | None, name: str, method: list[str]) -> Cell:
    words = [*setting(alpha, seed, splits), *method, f"rounds={LAST}"]
    return Cell(f"{alpha}-{seed}-{name}", words, f"{alpha}-{seed}-stage1")


def trials(alpha: float, splits: Path | None) -> Iterator[Cell]:
    """The runs that choose β."""
    yield first(alpha, TUNING, splits)
    for rule in RULES:
        for beta in BETAS:
            yield second(alpha, TUNING, splits, f"{rule}-{beta}", mixing(rule, beta))


def counted(alpha: float, splits: Path | None, out: Path) -> Iterator[Cell]:
    """The runs that count, with the chosen β."""
    chosen = {rule: beta_of(alpha, rule, out) for rule in RULES}
    for seed in SEEDS[alpha]:
        yield first(alpha, seed, splits)
        yield second(alpha, seed, splits, BASE, ["method=fedrcl"])
        for rule, beta in chosen.items():
            yield second(alpha, seed, splits, rule, mixing(rule, beta))


def beta_of(alpha: float, rule: str, out: Path) -> float:
    """The β with the best validation accuracy after the last round."""
    scores = {beta: recorded(out / f"{alpha}-{TUNING}-{rule}-{beta}")[-1]["val_accuracy"] for beta in BETAS}
    return max(scores, key=lambda beta: scores[beta])


def done(path: Path) -> bool:
    manifest = path / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text())["status"] == "done"


def perform(cell: Cell, out: Path, more: list[str]) -> None:
    """Make a run, or finish it."""
    path = out / cell.name
    if (path / "manifest.json").exists():
        resume(path)
    else:
        load = [f"load={out / cell.start}"] if cell.start else []
        run(*cell.words, *more, *load, out=str(path))


def table(alphas: list[float], out: Path) -> list[str]:
    """Rows of all seeds that have every arm."""
    lines = ["| α | seeds | server | test accuracy, % | minus FedRCL | seconds of eigenpairs per client | MB sent |"]
    lines += ["| ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    for alpha in alphas:
        arms = (BASE, *RULES)
        seeds = [s for s in SEEDS[alpha] if all(done(out / f"{alpha}-{s}-{arm}") for arm in arms)]
        rows = {arm: [recorded(out / f"{alpha}-{s}-{arm}") for s in seeds] for arm in arms}
        for arm in arms if seeds else ():
            lines.append(row(alpha, arm, rows))
    return lines


def row(alpha: float, arm: str, rows: dict[str, list[list[dict[str, Any]]]]) -> str:
    last = {name: [100 * records[-1]["test_accuracy"] for records in runs] for name, runs in rows.items()}
    own, gap = summary(last[arm]), summary([a - b for a, b in zip(last[arm], last[BASE], strict=True)])
    every = [record for records in rows[arm] for record in records if "qrmix_seconds" in record]
    spent = sum(record["qrmix_seconds"] / record["clients"] for record in every) / len(every) if every else 0.0
    sent = sum(records[-1]["uploaded_bytes"] for records in rows[arm]) / len(rows[arm]) / 1e6
    apart = "" if arm == BASE else f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]"
    told = f"{own.mean:.1f} [{own.low:.1f}, {own.high:.1f}]"
    name = arm if arm == BASE else f"QR-Mix, rule {arm}"
    return f"| {alpha} | {len(rows[arm])} | {name} | {told} | {apart} | {spent:.3f} | {sent:,.0f} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the folder of CIFAR-10")
    parser.add_argument("--splits", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/qrmix-cifar10"))
    parser.add_argument("--hours", type=float, default=10)
    parser.add_argument("--alpha", type=float, nargs="*", default=list(SEEDS), choices=list(SEEDS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("words", nargs="*", help="more settings for every run, to try the program: rounds stay")
    options = parser.parse_args(arguments)
    more = [*([f"data.root={options.root}"] if options.root else []), *options.words]
    ends = perf_counter() + 3600 * options.hours
    for alpha in () if options.write else options.alpha:
        for plan in (trials(alpha, options.splits), counted(alpha, options.splits, options.out)):
            for cell in plan:
                if done(options.out / cell.name):
                    continue
                if perf_counter() > ends:
                    print("the hours are over; the same command goes on from here")
                    return 1
                perform(cell, options.out, more)
                print(f"{cell.name}: done", flush=True)
    PAGE.write_text(TEXT.format(rows="\n".join(table(options.alpha, options.out))))
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
