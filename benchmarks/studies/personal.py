"""Personal or global? Every personal method, fine-tuning, local training and two global methods on three federations.

    python benchmarks/studies/personal.py --heart heart.csv [--fashion FOLDER] [--jobs 1] [--out runs/personal-study]

Label skew and feature shift on Fashion-MNIST, and the four hospitals of UCI Heart Disease, three splits each. The
learning rate of each method is chosen from the same three values, on samples that the clients keep from their training
samples: of another draw of images (split 0), or of the training patients of each split. Then the method trains with
another seed and is scored on the clients' own test samples. Runs that are done are not run again. Writes
docs/results/personal.md between its marks, and beside it the numbers and the picture.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

import torch
from torch import nn

from arno.analysis.statistics import summary
from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation
from arno.core.problem import Clients
from arno.errors import Diverged
from arno.pictures.figure import COLOURS, figure
from arno.problems.client_tests import keep_some
from arno.problems.supervised import Supervised

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "personal.md"
MARKS = ("<!-- numbers: begin -->", "<!-- numbers: end -->")
SPLITS, RATES = (1, 2, 3), (0.02, 0.1, 0.5)
#: Share of each client's samples for its test, and of the rest for the choice of the learning rate.
TEST, VALIDATION = 0.25, 0.25
COMMON = ["data.val=0", f"data.client_test={TEST}", "local.epochs=2", "local.batch_size=20", "engine=serial"]
COMMON += ["model=custom", f"model.target={Path(__file__).resolve()}:network", "rounds=25"]
FASHION = ["data=fashion_mnist", "data.limit=3000", "clients=20", "participation=0.5"]
PROBLEMS = {
    "label skew": [*FASHION, "partition=dirichlet", "partition.alpha=0.3"],
    "feature shift": [*FASHION, "partition=iid", "data.shift=rotation", "data.shift_strength=180"],
    "four hospitals": ["data=table", "data.label=target", "data.client=hospital"],
}
#: The methods with their own settings; FedAvg and SCAFFOLD are scored before and after fine-tuning.
METHODS = {name: [f"method={name}"] for name in (
    "local", "fedper", "lg_fedavg", "fedrep", "fedbabu", "fedbn", "ditto", "apfl", "pfedme", "per_fedavg", "fedala"
)}  # fmt: skip
METHODS |= {name: [f"method={name}", "eval.finetune=5"] for name in ("fedavg", "scaffold")}
BASE = "fedavg, fine-tuned"


def network(shape: Sequence[int], outputs: int) -> nn.Module:
    """A perceptron with a hidden layer of 64 units and group normalisation, which every method can train."""
    inputs = int(torch.Size(shape).numel())
    hidden = nn.Sequential(nn.Linear(inputs, 64), nn.GroupNorm(8, 64), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, outputs))


@dataclass(frozen=True)
class Task:
    """One run: a method at a learning rate on a split, to choose the rate or for the final score."""

    problem: str
    method: str
    split: int
    lr: float
    final: bool
    words: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.problem}/{self.method}/{self.split}/{self.lr}/{'test' if self.final else 'validation'}"

    def run(self) -> dict[str, float]:
        """Scores after the last round; none if a client diverged."""
        torch.set_num_threads(1)
        seed = self.split if self.final else self.split + 100
        words = [*COMMON, *PROBLEMS[self.problem], *METHODS[self.method], *self.words]
        config = plain(compose([*words, f"local.lr={self.lr}", f"partition.seed={self.split}", f"seed={seed}"]))
        problem = build.supervised(config)
        if not self.final:  # the test samples stay untouched: validation is taken from the training samples
            train, held = keep_some(problem.partition, VALIDATION, self.split)
            problem.partition, problem.own_test, problem.clients = train, held, Clients(train.sizes)
        try:
            return scores(federation(config, problem), config["rounds"])
        except Diverged:
            return {}


def federation(config: dict[str, Any], problem: Supervised) -> Federation:
    """The federation of a configuration, on a problem that is already there."""
    made = build.federation(config)
    parts, local = made.parts, made.local
    return Federation(
        problem, parts, local=local, weighting=config["weighting"], server_lr=config["server_lr"], seed=config["seed"],
        rounds=config["rounds"],
    )  # fmt: skip


def scores(fed: Federation, rounds: int) -> dict[str, float]:
    """Scores on the clients' own samples after the last round, and what the run cost."""
    steps = uploaded = 0
    for _ in range(rounds):
        clients = fed.round().clients
        steps += sum(clients["steps"])
        uploaded += sum(clients["uploaded"])
    found = fed.own_scores()
    if not all(value == value for value in found.values()):
        return {}
    return found | {"steps": steps, "megabytes": uploaded * fed.w.element_size() / 1e6}


def tuned_on(problem: str) -> tuple[int, ...]:
    """The splits on which learning rates are chosen: split 0 of the images, and each split of the few patients."""
    return SPLITS if problem == "four hospitals" else (0,)


def tasks(chosen: dict[tuple[str, str, int], float] | None, extra: dict[str, list[str]]) -> Iterator[Task]:
    """The runs that choose learning rates, or the final ones."""
    for problem in PROBLEMS:
        words = tuple(extra[problem])
        for split in tuned_on(problem) if chosen is None else SPLITS:
            for method in METHODS:
                rates = set(RATES) if chosen is None else {chosen[problem, arm, split] for arm in arms(method)}
                for lr in sorted(rates):
                    yield Task(problem, method, split, lr, chosen is not None, words)


def arms(method: str) -> list[str]:
    """The rows of the table that a method gives."""
    return [method, f"{method}, fine-tuned"] if method in ("fedavg", "scaffold") else [method]


def column(arm: str) -> str:
    """The score of an arm: of the model that its clients would use."""
    return "own_accuracy" if arm in ("fedavg", "scaffold") else "personal_accuracy"


def execute(todo: list[Task], done: dict[str, dict[str, float]], file: Path, jobs: int) -> None:
    """Run what is missing; every result is written at once."""
    missing = [task for task in todo if task.key not in done]
    began = perf_counter()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, file.open("a") as out:
        for i, (task, found) in enumerate(zip(missing, pool.map(Task.run, missing), strict=True), 1):
            done[task.key] = found
            out.write(json.dumps({"key": task.key, "scores": found}) + "\n")
            out.flush()
            print(f"{i}/{len(missing)} {task.key} {perf_counter() - began:.0f} s", flush=True)


def choose(done: dict[str, dict[str, float]]) -> dict[tuple[str, str, int], float]:
    """The learning rate of each arm on each split: the best validation score; of equal ones the smallest rate."""
    best = {}
    for problem in PROBLEMS:
        for split in SPLITS:
            on = split if split in tuned_on(problem) else 0
            for method in METHODS:
                for arm in arms(method):
                    keys = {lr: f"{problem}/{method}/{on}/{lr}/validation" for lr in RATES}
                    found = {lr: done[key].get(column(arm), -1.0) for lr, key in keys.items()}
                    best[problem, arm, split] = max(found, key=lambda lr, found=found: found[lr])  # type: ignore[misc]
    return best


def collect(
    done: dict[str, dict[str, float]], chosen: dict[tuple[str, str, int], float]
) -> dict[str, dict[str, dict[str, Any]]]:
    """For each problem and arm: the scores of all splits, the chosen rates and the cost."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for problem in PROBLEMS:
        found[problem] = {}
        for method in METHODS:
            for arm in arms(method):
                rates = [chosen[problem, arm, split] for split in SPLITS]
                rows = [done[f"{problem}/{method}/{s}/{lr}/test"] for s, lr in zip(SPLITS, rates, strict=True)]
                worst = column(arm).replace("accuracy", "f1_worst_decile")
                found[problem][arm] = {
                    "accuracy": [row.get(column(arm), 0.0) for row in rows],
                    "worst": [row.get(worst, 0.0) for row in rows],
                    "rates": rates,
                    "steps": mean(row.get("steps", 0.0) for row in rows),
                    "megabytes": mean(row.get("megabytes", 0.0) for row in rows),
                }
    return found


def interval(values: Sequence[float], sign: str = "") -> str:
    """Mean and 95 % interval in percentage points."""
    s = summary([100 * value for value in values])
    return f"{s.mean:{sign}.1f} [{s.low:{sign}.1f}, {s.high:{sign}.1f}]"


def table(arms: dict[str, dict[str, Any]]) -> str:
    """One problem: the best mean accuracy first."""
    head = (
        "| method | accuracy, % | minus fine-tuned FedAvg | worst tenth of clients, F1 | learning rates | local steps "
    )
    lines = [f"{head}| MB uploaded |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for arm in sorted(arms, key=lambda arm: -mean(arms[arm]["accuracy"])):
        row = arms[arm]
        apart = [a - b for a, b in zip(row["accuracy"], arms[BASE]["accuracy"], strict=True)]
        difference = "" if arm == BASE else interval(apart, "+")
        rates = ", ".join(f"{lr:g}" for lr in dict.fromkeys(row["rates"]))
        lines.append(
            f"| {arm} | {interval(row['accuracy'])} | {difference} | {100 * mean(row['worst']):.1f} | {rates} "
            f"| {row['steps']:,.0f} | {row['megabytes']:,.1f} |"
        )
    return "\n".join(lines)


def draw(found: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Accuracy with its interval, a row for each method."""
    fig, axes = figure(1, len(found), (14, 5))
    for axis, (problem, arms) in zip(axes[0], found.items(), strict=True):
        order = sorted(arms, key=lambda arm: mean(arms[arm]["accuracy"]))
        for i, arm in enumerate(order):
            s = summary([100 * value for value in arms[arm]["accuracy"]])
            colour = COLOURS[1] if column(arm) == "own_accuracy" else COLOURS[2] if "fine" in arm else COLOURS[0]
            axis.plot([s.low, s.high], [i, i], color=colour, lw=2)
            axis.plot([s.mean], [i], "o", color=colour, markersize=5)
        axis.set_yticks(range(len(order)), order, fontsize=8)
        axis.set(xlabel="accuracy on the clients' own test samples, %", title=problem)
        axis.grid(alpha=0.3)
    fig.savefig(path, dpi=120)


def two_classes(path: Path, out: Path) -> Path:
    """heart.csv with the target 0 (no disease) or 1."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"target": "ill" if float(row["target"]) > 0 else "healthy"} for row in rows)
    return out


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heart", type=Path, required=True, help="heart.csv; the page says where it comes from")
    parser.add_argument("--fashion", type=Path, help="folder with the files of Fashion-MNIST; downloaded by default")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "personal-study")
    options = parser.parse_args()
    heart = two_classes(options.heart, options.out / "heart.csv").resolve()
    images = [f"data.root={options.fashion.resolve()}"] if options.fashion else []
    extra = {name: [f"data.path={heart}"] if "hospitals" in name else images for name in PROBLEMS}
    file, done = options.out / "scores.jsonl", dict[str, dict[str, float]]()
    if file.exists():
        done = {row["key"]: row["scores"] for row in map(json.loads, file.read_text().splitlines())}
    execute(list(tasks(None, extra)), done, file, options.jobs)
    chosen = choose(done)
    execute(list(tasks(chosen, extra)), done, file, options.jobs)
    found = collect(done, chosen)
    text = "\n\n".join(f"## {name.capitalize()}\n\n{table(found[name])}" for name in PROBLEMS)
    print(text)
    draw(found, PAGE.with_suffix(".png"))
    PAGE.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    page = PAGE.read_text() if PAGE.exists() else "\n".join(MARKS)
    PAGE.write_text(f"{page.split(MARKS[0])[0]}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{page.split(MARKS[1])[1]}")


if __name__ == "__main__":
    main()
