"""Power-of-choice on Fashion-MNIST beside a published reproduction; writes docs/results/power_of_choice.md.

    python benchmarks/studies/power_of_choice.py [data.root=DIR] [any setting of arno run]

K = 100 clients, m = 3 a round, 400 rounds, learning rate 5e-4, batch 64, an MLP, three seeds; accuracy is the mean over
the last ten rounds. Two more cases test why the published order does not appear: dropout in the network, and a far more
heterogeneous split. What is done is kept in runs/power_of_choice, so that the command can be given again; with other
settings than data.root the page is written there, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import nn

from arno.analysis.statistics import Summary, summary
from arno.config import build
from arno.config.settings import compose, plain

DONE = Path("runs") / "power_of_choice"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "power_of_choice.md"
STRATEGIES = {"rand": ["select=rand"]} | {f"powd d={d}": ["select=powd", f"select.d={d}"] for d in (6, 9, 15)}
PUBLISHED = {"split 2": (0.682, 0.726, 0.727, 0.729), "split 0.3": (0.694, 0.716, 0.684, 0.676)}
DROPOUT = [*("model=custom", f"model.target={Path(__file__).resolve()}:dropout"), "partition.alpha=2"]
MLP = ["model=mlp", "model.hidden=[64,30]"]
CASES = {f"split {alpha}": [*MLP, f"partition.alpha={alpha}"] for alpha in (2, 0.3, 0.05)}
CASES |= {"split 2, dropout": DROPOUT}
SEEDS = (0, 1, 2)
SETTINGS = [
    "data=fashion_mnist", "data.val=0", "clients=100", "participation=0.03", "partition=dirichlet", "rounds=400",
    "local.lr=5e-4", "local.batch_size=64", "local.epochs=3", "weighting=uniform",
]  # fmt: skip
TEXT = """\
# Power-of-choice on Fashion-MNIST

    make results NAME=power_of_choice

Test accuracy, mean over the last ten of 400 rounds; ours as mean ± standard deviation over three seeds, beside a
published reproduction of Cho, Wang, Joshi (arXiv:2010.01243) with one seed. Its settings name K = 100, m = 3, 400
rounds, lr 5e-4, batch 64 and an MLP; the hidden layers (64, 30) and three local epochs (about 30 steps at 2) are
ours, so compare the order of the strategies, not the decimals. *Minus rand*: mean and 95 % interval, paired by seed
(Student's t). Nothing is tuned: all strategies have the settings `{settings}`.

{rows}

## Which split is the more heterogeneous one

{splits}

The smaller parameter gives the more heterogeneous clients, as usual with Dirichlet splits; the published report calls 2
the more heterogeneous one, which these label histograms contradict for a Dirichlet split.

## What does not explain the published lead

The publication has powd 4.4 to 4.7 points above rand at 2. Two causes were tested, each with the settings above:

{causes}

Not tested, because the publication does not say enough: its split, which caps the sizes class by class, and 30 random
batches a round instead of epochs. Its numbers are of one seed. [Published figures](reproduce.md) repeats the splits 2
and 0.3 with its decay of the learning rate and its weight decay.
"""


def dropout(shape: Sequence[int], outputs: int) -> nn.Module:
    """The perceptron with dropout after its first layer."""
    first = nn.Sequential(nn.Linear(int(torch.Size(shape).numel()), 64), nn.Dropout(0.5), nn.ReLU())
    return nn.Sequential(nn.Flatten(), first, nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, outputs))


def cell(name: str, case: str, seed: int, more: list[str]) -> dict[str, float]:
    """One run: its accuracy over the last ten rounds and half-way, and what the selection cost."""
    words = [*SETTINGS, *CASES[case], *STRATEGIES[name], f"seed={seed}", *more]
    counted = [word for word in words if not word.startswith(("data.root=", "model.target="))]
    digest = blake2b(" ".join(counted).encode(), digest_size=4).hexdigest()
    path = DONE / f"{name}-{case}-{seed}-{digest}.json".replace(" ", "_")
    if path.exists():
        return dict(json.loads(path.read_text()))
    config = plain(compose(words))
    fed, curve, cost, rounds = build.federation(config), {}, 0.0, config["rounds"]
    for t in range(1, rounds + 1):
        cost += fed.round().numbers.get("loss_evaluations", 0)
        if t == rounds // 2 or t > rounds - 10:
            curve[t] = fed.engine.score([fed.evaluated()], "test")[0]["accuracy"]
    counts = fed.problem.label_counts()
    assert counts is not None
    shares = counts / counts.sum(1, keepdim=True)
    fed.engine.close()
    found = {
        "accuracy": float(np.mean([a for t, a in curve.items() if t > rounds - 10])),
        "half_way": float(curve[rounds // 2]),
        "evaluations": float(cost),
        "largest_share": float(shares.max(1).values.mean()),
        "classes_held": float((shares > 0).sum(1).double().mean()),
    }
    DONE.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))
    print(f"{name:<10} {case}, seed {seed}: {found['accuracy']:.4f}", flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    more = sys.argv[1:]
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    for seed in SEEDS:
        for case in CASES:
            for name in STRATEGIES:
                rows.setdefault((case, name), []).append(cell(name, case, seed, more))
    place = PAGE if all(word.startswith("data.root=") for word in more) else DONE / PAGE.name
    place.write_text(page(rows), "utf-8")
    print(place)


Rows = dict[tuple[str, str], list[dict[str, float]]]


def page(rows: Rows) -> str:
    lines = [
        "| case | strategy | accuracy | minus rand, points | after 200 rounds | published | losses evaluated a run |"
    ]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for (case, name), found in rows.items():
        published = f"{PUBLISHED[case][list(STRATEGIES).index(name)]:.3f}" if case in PUBLISHED else ""
        numbers = [spread([f["accuracy"] for f in found]), "" if name == "rand" else told(lead(rows, case, name))]
        numbers += [spread([f["half_way"] for f in found]), published, f"{found[0]['evaluations']:.0f}"]
        lines.append(f"| {case} | {name} | {' | '.join(numbers)} |")
    splits = []
    for case in CASES:
        share, held = (np.mean([f[k] for f in rows[case, "rand"]]) for k in ("largest_share", "classes_held"))
        if case != "split 2, dropout":
            splits.append(
                f"- Dirichlet({case.split()[1]}): a client's most frequent class is {share:.0%} of its samples on "
                f"average, and it holds {held:.1f} of the ten classes."
            )
    causes = [cause(rows, "split 2, dropout", "Dropout (a half) after the first layer, at 2")]
    causes.append(cause(rows, "split 0.05", "A far more heterogeneous split, Dirichlet(0.05)"))
    said = {"rows": lines, "splits": splits, "causes": causes}
    return TEXT.format(settings=" ".join(SETTINGS), **{name: "\n".join(some) for name, some in said.items()})


def lead(rows: Rows, case: str, name: str) -> Summary:
    """The points of a strategy above rand, paired by seed."""
    pairs = zip(rows[case, name], rows[case, "rand"], strict=True)
    return summary([100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs])


def cause(rows: Rows, case: str, what: str) -> str:
    """Whether the published lead appears in a case."""
    leads = {name: lead(rows, case, name) for name in STRATEGIES if name != "rand"}
    explains = any(one.low > 0 and one.high >= 4.4 for one in leads.values())
    said = "; ".join(f"{name} {told(one)}" for name, one in leads.items())
    return f"- {what}: {said}. {'It may explain the lead.' if explains else 'It does not explain the lead.'}"


def told(found: Summary) -> str:
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


if __name__ == "__main__":
    main()
