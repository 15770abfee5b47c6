"""Every method with a global model on skewed digits, each with a learning rate of its own choice.

    python benchmarks/studies/label_skew.py             # all methods
    python benchmarks/studies/label_skew.py fedrolex    # these alone; the numbers of the others stay

`digits`, Dirichlet(0.1), 30 clients, ten in a round, two local epochs, batches of 10, 40 rounds. The learning rate is
chosen from three values by the validation score at seed 0; then seeds 1 to 3 are scored once on the test data. Other
settings are the methods' defaults. Writes docs/results/label_skew.md between its marks, and the numbers beside it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from statistics import mean

import torch

from arno.analysis.statistics import summary
from arno.config import build
from arno.config.settings import compose, plain
from arno.errors import Diverged
from arno.methods import methods

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "label_skew.md"
MARKS = ("<!-- numbers: begin -->", "<!-- numbers: end -->")
RATES, SEEDS, ROUNDS = (0.02, 0.1, 0.5), (1, 2, 3), 40
WORDS = ["partition.alpha=0.1", "clients=30", "participation=0.34", "local.epochs=2", "local.batch_size=10"]
WORDS += ["local.lr_decay=1", "local.weight_decay=0", "local.clip=null", "engine=serial", f"rounds={ROUNDS}"]
#: Methods with one model; Lorenzo visits all clients.
NAMES = [name for name in methods.names() if methods.info(name)["family"] != "personal" and name != "compose"]
OWN = {"lorenzo": ["participation=1", "method.patience=null", "method.min_batches=0"]}


def score(name: str, lr: float, seed: int, split: str) -> float:
    """The accuracy after the last round; 0 if a client diverged."""
    words = [*WORDS, f"method={name}", f"local.lr={lr}", f"seed={seed}", *OWN.get(name, [])]
    fed = build.federation(plain(compose(words)))
    try:
        while fed.t < ROUNDS:
            fed.round()
    except Diverged:
        return 0.0
    return float(fed.engine.score([fed.evaluated()], split)[0]["accuracy"])


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = json.loads(PAGE.with_suffix(".json").read_text()) if sys.argv[1:] else {}
    for name in sys.argv[1:] or NAMES:
        tried = {lr: score(name, lr, 0, "val") for lr in RATES}
        best = max(tried, key=lambda lr: tried[lr])
        found[name] = {"lr": best, "accuracy": [score(name, best, seed, "test") for seed in SEEDS]}
        print(name, tried, found[name], flush=True)
    lines = ["| method | test accuracy, % | minus FedAvg | learning rate |", "| --- | --- | --- | --- |"]
    for name in sorted(found, key=lambda name: -mean(found[name]["accuracy"])):
        mine, base = (found[which]["accuracy"] for which in (name, "fedavg"))
        s, apart = summary([100 * x for x in mine]), summary([100 * (a - b) for a, b in zip(mine, base, strict=True)])
        difference = "" if name == "fedavg" else f"{apart.mean:+.1f} [{apart.low:+.1f}, {apart.high:+.1f}]"
        cells = [name, f"{s.mean:.1f} [{s.low:.1f}, {min(s.high, 100):.1f}]", difference, f"{found[name]['lr']:g}"]
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    PAGE.with_suffix(".json").write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    page = PAGE.read_text()
    PAGE.write_text(f"{page.split(MARKS[0])[0]}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{page.split(MARKS[1])[1]}")


if __name__ == "__main__":
    main()
