"""What tracking costs, with MLflow's embedded SQLite store, every metric of every round.

1. `arno quadratic track=mlflow`, 15,000 rounds: seconds until the command ends, and whether every value is in the store
   (read back through MLflow's client). Bar: 30 s.
2. `arno run problem=quadratic method=scaffold rounds=5000` with and without `track=mlflow`, turn and turn about: the
   time of the rounds (what tracking could slow down) and of the whole command, which waits at its end for what is not
   sent yet. Bar: 1.10 times for the rounds.

    python benchmarks/tracking.py [--rounds 5000] [--repeats 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arno


def command(folder: Path, *words: str) -> float:
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(arno.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    }
    env.pop("MLFLOW_TRACKING_URI", None)
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "arno", *words, "--quiet"], cwd=folder, env=env, check=True, stdout=sys.stderr
    )
    return time.perf_counter() - began


def stored(folder: Path, run: Path) -> dict[str, int]:
    """How many values of each metric the store holds."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlruns.db'}")
    made = json.loads((run / "track" / "mlflow.json").read_text())["run"]
    return {name: len(client.get_metric_history(made, name)) for name in client.get_run(made).data.metrics}


def wall(run: Path) -> float:
    """Seconds from the first round to the last record, as the run itself measured them."""
    return float(json.loads((run / "manifest.json").read_text())["wall"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command(folder, "quadratic", "epochs=10")  # compiled
        plain = command(folder, "quadratic", "out=plain")
        spent = command(folder, "quadratic", "track=mlflow", "out=tracked")
        counts = stored(folder, folder / "tracked")
        print(f"arno quadratic, 15,000 rounds: {plain:.1f} s; with track=mlflow {spent:.1f} s (bar: 30)")
        print("values in the store: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
        if spent > 30 or set(counts.values()) != {15_000}:
            missed.append(f"15,000 tracked rounds: {spent:.1f} s, {counts}")
        words = ["run", "problem=quadratic", "method=scaffold", f"rounds={options.rounds}", "checkpoint.every=1000"]
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for i in range(options.repeats):
            for track in (False, True):
                run = folder / f"{i}-{track}"
                total = command(folder, *words, f"out={run}", *(["track=mlflow"] if track else []))
                times[track].append((wall(run), total))
        (off, off_total), (on, on_total) = (min(times[track]) for track in (False, True))
        print(f"arno run, scaffold, {options.rounds} rounds: {off:.1f} s of rounds, {on:.1f} s with track=mlflow")
        print(f"ratio {on / off:.3f} (bar: 1.10); whole command {off_total:.1f} s and {on_total:.1f} s")
        counts = stored(folder, folder / f"{options.repeats - 1}-True")
        print(f"values in the store: {min(counts.values())} to {max(counts.values())} of {len(counts)} metrics")
        if on / off > 1.10 or min(counts.values()) != options.rounds:
            missed.append(f"the general path: {on / off:.3f}, {counts}")
    print("missed: " + "; ".join(missed) if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
