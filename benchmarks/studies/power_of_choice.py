"""Power-of-choice on Fashion-MNIST beside a published reproduction; writes docs/results/power_of_choice.md.

    python benchmarks/studies/power_of_choice.py [data.root=DIR] [any setting of arno run]

K = 100 clients, m = 3 a round, 400 rounds, learning rate 5e-4, batch 64, an MLP, three seeds; accuracy is the mean over
the last ten rounds. What is done is kept in runs/power_of_choice, so that the command can be given again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from arno.config import build
from arno.config.settings import compose, plain

ROOT = Path(__file__).parents[2]
DONE = ROOT / "runs" / "power_of_choice"
PAGE = ROOT / "docs" / "results" / "power_of_choice.md"
STRATEGIES = {"rand": ["select=rand"]} | {f"powd d={d}": ["select=powd", f"select.d={d}"] for d in (6, 9, 15)}
PUBLISHED = {2.0: (0.682, 0.726, 0.727, 0.729), 0.3: (0.694, 0.716, 0.684, 0.676)}
SEEDS = (0, 1, 2)
SETTINGS = [
    "data=fashion_mnist", "data.val=0", "model=mlp", "model.hidden=[64,30]", "clients=100", "participation=0.03",
    "partition=dirichlet", "rounds=400", "local.lr=5e-4", "local.batch_size=64", "local.epochs=3", "weighting=uniform",
]  # fmt: skip


def cell(name: str, alpha: float, seed: int, more: list[str]) -> dict[str, float]:
    """One run: accuracies every twenty rounds and in the last ten, and what the selection cost."""
    path = DONE / f"{name.replace(' ', '_')}-{alpha}-{seed}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    config = plain(compose([*SETTINGS, *STRATEGIES[name], f"partition.alpha={alpha}", f"seed={seed}", *more]))
    fed, curve, cost = build.federation(config), {}, 0.0
    for t in range(1, config["rounds"] + 1):
        cost += fed.round().numbers.get("loss_evaluations", 0)
        if t % 20 == 0 or t > config["rounds"] - 10:
            curve[t] = fed.problem.evaluate(fed.w, "test")["accuracy"]
    fed.engine.close()
    shares = fed.problem.label_shares()
    found = {
        "accuracy": float(np.mean([a for t, a in curve.items() if t > config["rounds"] - 10])),
        "half_way": curve[config["rounds"] // 2],
        "evaluations": cost,
        "largest_share": float(shares.max(1).values.mean()),
        "classes_held": float((shares > 0).sum(1).double().mean()),
    }
    DONE.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))
    print(f"{name:<10} alpha={alpha} seed={seed}: {found['accuracy']:.4f}", flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    more = sys.argv[1:]
    rows: dict[tuple[float, str], list[dict[str, float]]] = {}
    for seed in SEEDS:
        for alpha in PUBLISHED:
            for name in STRATEGIES:
                rows.setdefault((alpha, name), []).append(cell(name, alpha, seed, more))
    write(rows)


def write(rows: dict[tuple[float, str], list[dict[str, float]]]) -> None:
    def spread(values: list[float]) -> str:
        return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"

    lines = [
        "# Power-of-choice on Fashion-MNIST",
        "",
        "`python benchmarks/studies/power_of_choice.py` writes this page. The settings beyond the defaults:",
        f"`{' '.join(SETTINGS)}`, seeds {', '.join(map(str, SEEDS))}.",
        "Nothing is tuned: all strategies have these settings.",
        "",
        "Test accuracy, mean over the last ten of 400 rounds; ours as mean ± standard deviation over three seeds,",
        "beside a published reproduction of Cho, Wang, Joshi (arXiv:2010.01243) with one seed. Its settings name",
        "K = 100, m = 3, 400 rounds, lr 5e-4, batch 64 and an MLP; the hidden layers (64, 30) and three local epochs",
        "(about 30 steps) are ours, so compare the order of the strategies, not the decimals.",
        "",
        "| split parameter | strategy | accuracy | after 200 rounds | published | losses evaluated a run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (alpha, name), found in rows.items():
        published = PUBLISHED[alpha][list(STRATEGIES).index(name)]
        lines.append(
            f"| {alpha:g} | {name} | {spread([f['accuracy'] for f in found])} "
            f"| {spread([f['half_way'] for f in found])} "
            f"| {published:.3f} | {found[0]['evaluations']:.0f} |"
        )
    lines += ["", "## Which split is the more heterogeneous one", ""]
    for alpha in PUBLISHED:
        found = rows[(alpha, "rand")]
        share, held = (np.mean([f[k] for f in found]) for k in ("largest_share", "classes_held"))
        lines.append(
            f"- Dirichlet({alpha:g}): a client's most frequent class is {share:.0%} of its samples on average, and it "
            f"holds {held:.1f} of the ten classes."
        )
    lines += [
        "",
        "The smaller parameter gives the more heterogeneous clients, as usual with Dirichlet splits; the published",
        "report calls 2 the more heterogeneous one, which these label histograms contradict for a Dirichlet split.",
        "",
        "With three seeds, differences of the size of the standard deviations show nothing by themselves.",
    ]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n")
    print(PAGE)


if __name__ == "__main__":
    main()
