"""Rounds of Arno, a hand-written loop and the peers on the same work; writes the tables of docs/results/speed.md.

    python benchmarks/studies/speed.py [W1 …] [--data fashion_mnist=DIR cifar10=DIR] [--only CONTENDER …]

`benchmarks/speed/run.py` with the peers of `.peers`, which `make bench-peers` installs; the words are its own. Tables
of workloads that are not named stay as they are in docs/results/speed.json.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    out = ["--out", str(ROOT / "docs" / "results" / "speed.md")]
    peers = ["--peers", str(ROOT / ".peers")] if (ROOT / ".peers").is_dir() else []
    command = [sys.executable, str(ROOT / "benchmarks" / "speed" / "run.py"), *sys.argv[1:], *out, *peers]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
