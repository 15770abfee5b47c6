"""Lorenzo against FedAvg, FedProx and SCAFFOLD with the same local work, and what the order of its pass is worth.

    python benchmarks/studies/lorenzo.py [--root DIR] [--jobs 1] [--rounds 4] [--out runs/lorenzo-study]

Fashion-MNIST, 10,000 training images (and 2,000 for validation), 10 clients, Dirichlet α ∈ {0.1, 0.5}, LeNet-5, three
seeds. Every arm trains one epoch first and then `rounds` times five, on the same partitions and from the same weights;
runs that are done are not run again. --root is the folder of Fashion-MNIST's four files; without it Arno fetches them.
Writes the tables and what they say into docs/results/lorenzo.md, between its two marks, and the picture beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar

import torch

import arno
from arno.analysis.statistics import summary
from arno.core.federation import Federation
from arno.core.method_part import Part
from arno.core.work import Work
from arno.methods.fedprox import fedprox
from arno.methods.lorenzo import lorenzo
from arno.methods.scaffold import scaffold
from arno.pictures.figure import COLOURS, figure
from arno.records import metrics_file

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "docs" / "results" / "lorenzo.md", "lorenzo.png"
ALPHAS, SEEDS = (0.1, 0.5), (0, 1, 2)
TARGET = 0.9  # of the test F1 that FedAvg ends with


@dataclass
class ShortFirst(Part):
    """One epoch in the first round: what Lorenzo does in its bootstrap, so that the local work is the same."""

    roles: ClassVar = frozenset({"step"})

    def start(self, fed: Federation) -> None:
        self._clients = fed.clients

    def send(self, work: Work) -> Work:
        if work.round:
            return work
        epochs = torch.ones_like(work.epochs)
        steps = self._clients.steps(work.clients, epochs, work.batch_size)
        return replace(work, epochs=epochs, steps=steps.to(work.steps))


ARMS: dict[str, Callable[[], list[Part]]] = {
    "FedAvg": lambda: [ShortFirst()],
    "FedProx": lambda: [ShortFirst(), *fedprox(mu=0.01)],
    "SCAFFOLD": lambda: [ShortFirst(), *scaffold()],
    "Lorenzo": lambda: lorenzo(patience=None),
    "Lorenzo, random order": lambda: lorenzo(patience=None, order="random"),
    "Lorenzo, reverse order": lambda: lorenzo(patience=None, order="reverse"),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    arm: str
    alpha: float
    seed: int
    rounds: int
    out: Path
    root: Path | None

    @property
    def path(self) -> Path:
        return self.out / f"{self.arm}-alpha{self.alpha}-seed{self.seed}-rounds{self.rounds}".replace(
            ", ", "-"
        ).replace(" ", "-")

    @property
    def sequential(self) -> bool:
        return self.arm.startswith("Lorenzo")

    def run(self) -> None:
        manifest = self.path / "manifest.json"
        if manifest.exists():
            if json.loads(manifest.read_text())["status"] == "done":
                return
            shutil.rmtree(self.path)  # it was stopped in the middle
        arno.run(
            *([f"data.root={self.root}"] if self.root else []),
            "data.limit=12000",
            f"data.val={2000 / 12000}",
            f"partition.alpha={self.alpha}",
            method=ARMS[self.arm](),
            data="fashion_mnist",
            model="lenet5",
            engine="serial",
            clients=10,
            rounds=self.rounds if self.sequential else self.rounds + 1,
            local={"epochs": 5, "batch_size": 32, "lr": 0.05, "weight_decay": 1e-4},
            checkpoint={"every": 0},
            seed=self.seed,
            out=str(self.path),
        )

    @cached_property
    def curve(self) -> list[dict[str, float]]:
        """After every round: test F1, local steps so far, and steps on the critical path so far."""
        import pandas as pd

        steps = pd.read_parquet(self.path / "clients.parquet").groupby("round")["steps"]
        longest, total, path, rows = steps.max(), steps.sum(), 0, []
        for i, row in enumerate(metrics_file.read(self.path)):
            one_by_one = self.sequential and i > 0
            path += int((total if one_by_one else longest)[row["round"]])
            rows.append({"round": i, "f1": row["test_f1"], "steps": row["local_steps"], "path": path})
        return rows

    def reach(self, target: float) -> dict[str, float] | None:
        """The first round at or above the target."""
        return next((row for row in self.curve if row["f1"] >= target), None)


def spread(values: list[float], digits: int = 3) -> str:
    """Mean ± sample standard deviation."""
    more = f" ± {stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):,.{digits}f}{more}" if values else "–"


def table(cells: dict[tuple[str, float], list[Cell]], alpha: float) -> str:
    """One α: where every arm ends, and what it takes to reach the target."""
    target = TARGET * mean(cell.curve[-1]["f1"] for cell in cells["FedAvg", alpha])
    rounds = len(cells["FedAvg", alpha][0].curve) - 1
    lines = [
        f"### α = {alpha}: target F1 {target:.3f}",
        "",
        f"| | test F1 after round 1 | after round {rounds} | reached | rounds to target | local steps to target "
        "| steps on the critical path to target | critical path in all |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm in ARMS:
        runs = cells[arm, alpha]
        hits = [hit for hit in (cell.reach(target) for cell in runs) if hit]
        columns = [
            spread([cell.curve[1]["f1"] for cell in runs]),
            spread([cell.curve[-1]["f1"] for cell in runs]),
            f"{len(hits)} of {len(runs)}",
            *(
                spread([hit[name] for hit in hits], digits)
                for name, digits in (("round", 1), ("steps", 0), ("path", 0))
            ),
            spread([cell.curve[-1]["path"] for cell in runs], 0),
        ]
        lines.append(f"| {arm} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def paired(cells: dict[tuple[str, float], list[Cell]]) -> str:
    """Final F1 minus that of Lorenzo (by score), seed by seed: the same data and start."""
    lines = [
        "### Final test F1 minus Lorenzo's, seed by seed",
        "",
        "| | " + " | ".join(f"α = {a}" for a in ALPHAS) + " |",
    ]
    lines.append("| --- |" + " --- |" * len(ALPHAS))
    for arm in ARMS:
        if arm == "Lorenzo":
            continue
        row = []
        for alpha in ALPHAS:
            pairs = zip(cells[arm, alpha], cells["Lorenzo", alpha], strict=True)
            row.append(", ".join(f"{a.curve[-1]['f1'] - b.curve[-1]['f1']:+.3f}" for a, b in pairs))
        lines.append(f"| {arm} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def reading(cells: dict[tuple[str, float], list[Cell]]) -> str:
    """What the numbers say: differences by seed with their intervals, and the length of the critical path."""
    lines = [
        f"![Test F1 against rounds, local steps and the critical path]({PICTURE})",
        "",
        "## What the numbers say",
        "",
    ]
    for alpha in ALPHAS:
        own = cells["Lorenzo", alpha]
        for arm in ARMS:
            if arm != "Lorenzo":
                pairs = zip(own, cells[arm, alpha], strict=True)
                gap = summary([a.curve[-1]["f1"] - b.curve[-1]["f1"] for a, b in pairs])
                word = (
                    "better than it" if gap.low > 0 else "worse than it" if gap.high < 0 else "not told apart from it"
                )
                what = f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
                lines.append(f"- α = {alpha}, final test F1: Lorenzo against {arm}: {what}: {word}.")
        paths = {arm: mean(cell.curve[-1]["path"] for cell in cells[arm, alpha]) for arm in ("Lorenzo", "FedAvg")}
        longer = f"{paths['Lorenzo'] / paths['FedAvg']:.1f} times as long as FedAvg's"
        lines.append(f"- α = {alpha}, time: Lorenzo's critical path is {longer}, with the same local work.")
    lines.append("- The intervals are 95 % intervals over the seeds (Student's t), not corrected for their number.")
    return "\n".join(lines) + "\n"


def draw(cells: dict[tuple[str, float], list[Cell]], path: Path) -> None:
    """F1 against rounds, local steps and the critical path; a line per arm, mean over seeds ± one deviation."""
    fig, axes = figure(len(ALPHAS), 3, (14, 4 * len(ALPHAS)))
    labels = {"round": "round", "steps": "local steps of all clients", "path": "steps on the critical path"}
    for across, alpha in zip(axes, ALPHAS, strict=True):
        for axis, (name, label) in zip(across, labels.items(), strict=True):
            for i, arm in enumerate(ARMS):
                curves: Any = [[(row[name], row["f1"]) for row in cell.curve] for cell in cells[arm, alpha]]
                points = torch.tensor(curves, dtype=torch.float64)
                x, y = points[..., 0].mean(0), points[..., 1].mean(0)
                dashes = "--" if "," in arm else "-"
                colour = COLOURS[(0, 4, 1, 3, 2, 5)[i]]
                axis.plot(x, y, dashes, color=colour, label=arm, lw=1.8, marker="o", markersize=3)
                if len(points) > 1 and "," not in arm:
                    width = points[..., 1].std(0)
                    axis.fill_between(x, y - width, y + width, color=colour, alpha=0.12, lw=0)
            axis.set(xlabel=label, ylabel="test F1", title=f"α = {alpha}")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.grid(alpha=0.3)
    axes[0][0].legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="the folder of Fashion-MNIST")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of five epochs after the first of one")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "lorenzo-study")
    options = parser.parse_args()
    grid = [
        Cell(arm, alpha, seed, options.rounds, options.out, options.root)
        for seed, alpha, arm in product(SEEDS[: options.seeds], ALPHAS, ARMS)
    ]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for i, (cell, _) in enumerate(zip(grid, pool.map(Cell.run, grid), strict=True), 1):
            print(f"{i}/{len(grid)} {cell.path.name}", flush=True)
    cells: dict[tuple[str, float], list[Cell]] = {}
    for cell in grid:
        cells.setdefault((cell.arm, cell.alpha), []).append(cell)
    text = "\n".join([*(table(cells, alpha) for alpha in ALPHAS), paired(cells), reading(cells)])
    print(text)
    draw(cells, PAGE.with_name(PICTURE))
    begin, end = "<!-- numbers: begin -->", "<!-- numbers: end -->"
    page = PAGE.read_text() if PAGE.exists() else f"{begin}\n{end}\n"
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


if __name__ == "__main__":
    main()
