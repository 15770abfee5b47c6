"""Arno, a hand-written loop and the peers on the same work, side by side.

    python benchmarks/speed/run.py [W1 … W5b W7 … W13] [--repeats 5] [--peers DIR] [--only NAME ...]
                                   [--once NAME ...] [--data NAME=FOLDER ...] [--out docs/results/speed.md]

| | model | clients | a round |
| --- | --- | --- | --- |
| W1 | LeNet-5 on Fashion-MNIST | 100, Dirichlet(0.3) | 10 clients, B = 32, E = 1 |
| W2 | softmax regression on Fashion-MNIST | 1,000 × 60 samples | 100 clients, B = 20, E = 1 |
| W3 | five-layer CNN on 10,000 images of CIFAR-10 | 10, Dirichlet(0.5) | all, B = 64, E = 1 |
| W4 | MLP 784-128-10 on Fashion-MNIST | 1,000 × 60 samples | 100 clients, B = 20, E = 1 |
| W5a | SCAFFOLD on W1 | | |
| W5b | FedVARP on W2 | | |
| W7 | softmax regression as a module | as W2 | as W2 |
| W8 | MLP 784-128-10 with dropout as a module | as W2 | as W2 |
| W9 | LeNet-5 as `nn.Sequential` | as W1 | as W1 |
| W10 | CNN with padding and GroupNorm on a third of W1 | as W1 | as W1 |
| W11 | ResNet-18 with GroupNorm on 200 images of CIFAR-10 | 10 × 20 samples | 4 clients, B = 20, E = 1 |
| W12 | LSTM over 80 characters, 10,000 made-up sequences | 100, Dirichlet(0.3) | 10 clients, B = 32, E = 1 |
| W13 | one transformer block over 16 patches, on a third of W1 | as W1 | as W1 |

W7 to W13 are networks as users write them (`networks.py`). On W1, W2 and W4, "Arno, own network" is the same network
written by a user.

Every contender is a process of its own, started anew in every repeat; repeats are interleaved. A contender's time is
the median over its rounds after the first (one round, on W3); the table shows the median of that over the repeats and
its range, the peak memory of the process tree (proportional set size) and the accuracy of the final model with its
range: ranges that do not overlap are a sign of different work. All of them start from the same model, shuffle the
samples in another way in every repeat, and get the same environment variables. `--peers` is where `make bench-peers`
put the peers' environments; without it only Arno and the hand-written loop run. `--only Arno pfl` takes those alone,
`--once Flower` takes Flower in the first repeat only; on W1 and W2 Arno's other parallel engines take part as well.
`--data fashion_mnist=FOLDER` takes real data in place of made-up images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from common import flops
from prepare import prepare

from arno.kernels.products import faster, product

HERE = Path(__file__).parent
ROUNDS = {"W1": 8, "W2": 16, "W3": 2, "W4": 12, "W7": 16, "W8": 12, "W9": 8, "W10": 6, "W11": 7, "W12": 6, "W13": 16}
#: Workloads with a twin: the same network, written by a user.
TWINS = ("W1", "W2", "W4")
VARIANTS = {"W5a": ("W1", "scaffold"), "W5b": ("W2", "fedvarp")}
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Contender:
    """A way to do the work: its name and the command that does it in a folder, for so many rounds."""

    name: str
    command: tuple[str, ...]
    threads: int = 1


def contenders(name: str, method: str, peers: Path | None, cores: int) -> list[Contender]:
    """Who takes part in a workload."""
    python, found = sys.executable, []
    found.append(Contender("Arno", (python, "by_arno.py", "FOLDER", "ROUNDS", f"method={method}")))
    if name in TWINS:
        found.append(Contender("Arno, own network", (python, "by_arno.py", "FOLDER", "ROUNDS", "own")))
    if name in ("W1", "W2") and find_spec("ray"):
        ray = (python, "by_arno.py", "FOLDER", "ROUNDS", "engine=ray")
        found.append(Contender("Arno on Ray", ray))
        found.append(Contender("Arno on Ray, workers add up", (*ray, "engine.reduce=worker")))
        found.append(Contender("Arno, processes", (*ray[:-1], "engine=processes")))
    own = [method] if method != "fedavg" else []
    for threads in sorted({1, cores}):
        name = f"by hand, {threads} thread{'s' * (threads > 1)}"
        found.append(Contender(name, (python, "by_hand.py", "FOLDER", "ROUNDS", str(threads), *own), threads))
    if peers and method != "fedvarp":
        if method == "fedavg":
            found.append(Contender("Flower", (str(peers / "flower/bin/python"), "by_flower.py", "FOLDER", "ROUNDS")))
        torchrun = (str(peers / "pfl/bin/torchrun"), f"--nproc_per_node={cores}", "by_pfl.py", "FOLDER", "ROUNDS", *own)
        found.append(Contender("pfl", torchrun))
        found.append(
            Contender("FedLab", (str(peers / "fedlab/bin/python"), "by_fedlab.py", "FOLDER", "ROUNDS", "1", *own))
        )
        if method == "fedavg":
            blazefl = (str(peers / "blazefl/bin/python"), "by_blazefl.py", "FOLDER", "ROUNDS")
            found += [Contender(f"BlazeFL, {kind}", (*blazefl, kind)) for kind in ("processes", "threads")]
    return found


def once(contender: Contender, folder: Path, rounds: int, seed: int) -> dict[str, float]:
    """Run it; its time is the median of the rounds after the first, if there are more."""
    words = [str(folder) if w == "FOLDER" else str(rounds) if w == "ROUNDS" else w for w in contender.command]
    environment = os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(contender.threads), "SEED": str(seed)}
    done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        raise SystemExit(f"{contender.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found = json.loads(lines[-1])
    seconds = found["seconds"][1:] or found["seconds"]
    return {"seconds": median(seconds), "memory": found["memory"], "accuracy": found["accuracy"]}


def gemm_peak(threads: int) -> float:
    """GFLOP/s of the best of some products of square matrices, by the faster of torch's two libraries."""
    torch.set_num_threads(threads)
    a, b, best = torch.randn(1536, 1536), torch.randn(1536, 1536), 0.0
    ways = [torch.mm] if faster() is None else [torch.mm, product]  # `product`: oneDNN
    for multiply in ways * 12:
        began = perf_counter()
        multiply(a, b)
        best = max(best, 2 * 1536**3 / (perf_counter() - began) / 1e9)
    return best


def measure(
    name: str, folder: Path, method: str, repeats: int, peers: Path | None, only: list[str] | None, rare: list[str]
) -> dict[str, object]:
    """All contenders of one workload, or `only` some."""
    base, cores = folder.name, os.cpu_count() or 1
    taking_part = [c for c in contenders(name, method, peers, cores) if only is None or c.name in only]
    found: dict[str, list[dict[str, float]]] = {c.name: [] for c in taking_part}
    peaks = []
    for repeat in range(repeats):
        peaks.append(gemm_peak(cores))
        for contender in taking_part:
            if repeat and contender.name in rare:
                continue
            found[contender.name].append(once(contender, folder, ROUNDS[base], repeat))
            print(f"{name} {repeat + 1}/{repeats} {contender.name}: {found[contender.name][-1]}", flush=True)
    parts, cohorts = (json.loads((folder / f"{part}.json").read_text()) for part in ("clients", "cohorts"))
    samples = median(sum(len(parts[k]) for k in cohort) for cohort in cohorts[1 : max(2, ROUNDS[base] - 1)])
    return {"runs": found, "gemm": peaks, "flops": flops(base) * samples}


def table(name: str, result: dict[str, object]) -> str:
    """A workload as a Markdown table; ratios are to Arno's median."""
    runs: dict[str, list[dict[str, float]]] = result["runs"]  # type: ignore[assignment]
    medians = {who: median(run["seconds"] for run in many) for who, many in runs.items()}
    lines = [
        f"**{name}**",
        "",
        "| | seconds a round | slower than Arno | peak MiB | accuracy |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for who, many in runs.items():
        spent, memory = [run["seconds"] for run in many], median(run["memory"] for run in many)
        scores = [run["accuracy"] for run in many]
        lines.append(
            f"| {who} | {medians[who]:.4f} [{min(spent):.4f}, {max(spent):.4f}] "
            f"| {medians[who] / medians['Arno']:.2f}× | {memory:.0f} "
            f"| {median(scores):.3f} [{min(scores):.3f}, {max(scores):.3f}] |"
        )
    speed, peak = float(result["flops"]) / medians["Arno"] / 1e9, median(result["gemm"])  # type: ignore[arg-type]
    return "\n".join(
        [*lines, "", f"Arno: {speed:.1f} GFLOP/s, {speed / peak:.0%} of the {peak:.0f} of a matrix product."]
    )


def place(name: str) -> tuple[int, str]:
    """The order of workloads: by number."""
    return int(name[1:].rstrip("ab")), name


def picture(results: dict[str, dict[str, object]], path: Path) -> None:
    """Times relative to Arno's, workload by workload."""
    from arno.pictures.figure import COLOURS, figure

    fig, axes = figure(1, 1, (10, 4.6))
    axis, names = axes[0][0], list(dict.fromkeys(who for r in results.values() for who in r["runs"]))  # type: ignore[attr-defined]
    names.remove("Arno")
    width, seen = 0.86 / len(names), set[str]()
    for j, work in enumerate(sorted(results, key=place)):
        runs: dict[str, list[dict[str, float]]] = results[work]["runs"]  # type: ignore[assignment]
        medians = {who: median(run["seconds"] for run in many) for who, many in runs.items()}
        there = [who for who in names if who in runs]
        for i, who in enumerate(there):
            ratio, at = medians[who] / medians["Arno"], j + (i - (len(there) - 1) / 2) * width
            colour = COLOURS[(1 + names.index(who)) % 8]
            hatch = "////" if names.index(who) >= 8 else None  # there are eight colours
            axis.bar(
                at, ratio - 1, 0.92 * width, bottom=1, color=colour, hatch=hatch, label=None if who in seen else who
            )
            axis.annotate(
                f"{ratio:.0f}" if ratio > 99 else f"{ratio:.2g}",
                (at, max(ratio, 1)),
                (0, 2),
                textcoords="offset points",
                ha="center",
                size=7,
            )
            seen.add(who)
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axis.set(
        yscale="log",
        ylabel="time of a round / Arno's",
        xticks=range(len(results)),
        xticklabels=sorted(results, key=place),
    )
    axis.axhline(1, color="#000000", lw=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=130)


def main() -> None:
    """Measure, print, and keep what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="W")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--only", nargs="*", metavar="CONTENDER")
    parser.add_argument("--once", nargs="*", metavar="CONTENDER", default=[])
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument(
        "--out", type=Path, help="a page: tables between its two marks, numbers and a picture beside it"
    )
    options = parser.parse_args()
    sources = {kind: str(Path(folder).expanduser().resolve()) for kind, folder in (d.split("=") for d in options.data)}
    results: dict[str, dict[str, object]] = {}
    numbers = options.out and options.out.with_suffix(".json")
    if numbers and numbers.exists():
        results = json.loads(numbers.read_text())
    peers = options.peers.resolve() if options.peers else None
    with tempfile.TemporaryDirectory() as base:
        for name in options.workloads or [*ROUNDS, *VARIANTS]:
            work, method = VARIANTS.get(name, (name, "fedavg"))
            folder = prepare(work, Path(base), sources)
            results[name] = measure(name, folder, method, options.repeats, peers, options.only, options.once)
            print(f"\n{table(name, results[name])}\n", flush=True)
            if options.out:
                numbers.write_text(json.dumps(results, indent=1) + "\n")
                picture(results, options.out.with_suffix(".png"))
                before, _, rest = options.out.read_text().partition(BEGIN)
                after = rest.partition(END)[2]
                tables = "\n\n".join(table(name, results[name]) for name in sorted(results, key=place))
                options.out.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}")


if __name__ == "__main__":
    main()
