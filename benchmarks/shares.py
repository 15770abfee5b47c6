"""Where the wall time of a run goes: W1 with evaluation every 10 rounds and a checkpoint every 10, tracked in MLflow.

    python benchmarks/shares.py [--rounds 60]

LeNet-5, 100 clients by Dirichlet(0.3), 10 a round, B = 32, E = 1, made-up images of Fashion-MNIST's size. Everything
but training and averaging (bar: together under 5 %) is timed where it happens. Then the time to start: `arno --help`,
and `arno run` on the embedded digits up to its first round, against `import torch` (bars: 0.3 and 2 times; medians of
5, interleaved, after one warm-up).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

SPENT: dict[str, float] = defaultdict(float)
FIRST_ROUND = """
import sys, arno.cli
from arno.runs import run
def stop(*_, **__): raise SystemExit(0)
run.one_round = stop
sys.argv = ["arno", "run", "data=digits", "out=" + sys.argv[1]]
arno.cli.main()
"""


def timed(owner: Any, name: str, label: str) -> None:
    """Note how long every call of a function takes."""
    function: Callable[..., Any] = getattr(owner, name)

    def wrapper(*words: Any, **more: Any) -> Any:
        began = perf_counter()
        try:
            return function(*words, **more)
        finally:
            SPENT[label] += perf_counter() - began

    setattr(owner, name, wrapper)


def shares(rounds: int, base: Path) -> None:
    """The shares of one run."""
    sys.path.insert(0, str(Path(__file__).parent / "speed"))
    import prepare

    import arno
    from arno.client_selection.schedule import Fixed
    from arno.config import build
    from arno.core.federation import Federation, Round
    from arno.engines.auto import Auto
    from arno.records.folder import RunFolder
    from arno.runs import run

    folder = prepare.prepare("W1", base, {})
    timed(build, "split", "data and partition")
    timed(Auto, "report", "evaluation")
    timed(Fixed, "select", "selection")
    timed(Round, "add", "records")
    timed(RunFolder, "add", "records")
    timed(run, "save", "checkpoints")
    timed(run, "finish", "the end: models, tables, pictures")
    timed(run.Tracking, "__init__", "tracking")
    timed(run.Tracking, "finish", "tracking")
    timed(Federation, "round", "rounds")
    words = ["data=npz", f"data.path={folder / 'data.npz'}", "data.val=0", "clients=100", "model=lenet5"]
    words += ["partition=file", f"partition.path={folder / 'clients.json'}", "local.batch_size=32", "local.lr=0.01"]
    words += ["select=schedule", f"select.path={folder / 'cohorts.json'}", "eval.every=10", f"rounds={rounds}"]
    words += [f"track=mlflow@sqlite:///{base / 'mlflow.db'}"]
    began = perf_counter()
    arno.run(*words, out=str(base / "run"))
    wall = perf_counter() - began
    inside = SPENT["selection"] + SPENT["records"]
    SPENT["training and averaging"] = SPENT.pop("rounds") - inside
    SPENT["anything else"] = wall - sum(SPENT.values())
    print(f"W1, {rounds} rounds, {wall:.1f} s")
    for name, spent in sorted(SPENT.items(), key=lambda item: -item[1]):
        print(f"  {name:<36} {spent:8.3f} s  {spent / wall:6.2%}")
    named = ("evaluation", "data and partition", "selection", "records", "checkpoints", "tracking")
    print(f"  {', '.join(named)} together: {sum(SPENT[n] for n in named) / wall:.2%} (bar: 5 %)")


def start_up(base: Path) -> None:
    """Processes from nothing to the first round."""
    python, environment = sys.executable, os.environ | {"OMP_NUM_THREADS": "1"}
    commands = {
        "import torch": [python, "-c", "import torch"],
        "arno --help": [python, "-m", "arno", "--help"],
        "arno run, to the first round": [python, "-c", FIRST_ROUND, "FOLDER"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(6):
        for name, command in commands.items():
            words = [str(base / f"{repeat}") if word == "FOLDER" else word for word in command]
            began = perf_counter()
            subprocess.run(words, env=environment, check=True, capture_output=True)
            times[name].append(perf_counter() - began)
    torch_time = median(times["import torch"][1:])
    for name, spent in times.items():
        print(f"{name:<30} {median(spent[1:]):6.2f} s, {median(spent[1:]) / torch_time:5.2f} times import torch")


def main() -> None:
    """Both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        start_up(Path(base))
        shares(options.rounds, Path(base))


if __name__ == "__main__":
    main()
