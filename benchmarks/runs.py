"""How long `arno runs` takes with 10,000 runs: without an index, and with one.

    python benchmarks/runs.py [--runs 10000] [--keep FOLDER]

One real run is trained, and its folder is copied with other methods, scores and times; big files are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arno.records import checksummed, metrics_file
from arno.records.damage import checksum

METHODS = ("fedavg", "fedprox", "scaffold", "lorenzo", "fedvarp")
KEPT = ("config.yaml", "manifest.json", "metrics.jsonl", "log.txt", "counts.npy", "panels.json", "clients.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="make the folder here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary, "runs")
        make(folder, options.runs)
        print(f"{options.runs:,} runs in a folder; the whole command `arno runs`, Python's start included")
        for name, words in (
            ("without an index", []),
            ("with an index", []),
            ("with an index", ["method=scaffold", "score>0.5", "--sort", "score"]),
            ("with an index", ["--json"]),
            ("with an index, a setting", ["partition.alpha=0.5", "--limit", "0"]),
        ):
            print(f"{listed(folder, words):6.2f} s  {name:<26} arno runs {' '.join(words)}", flush=True)


def listed(folder: Path, words: list[str]) -> float:
    """The seconds of one call."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "arno", "runs", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") > 20
    return time.perf_counter() - began


def make(folder: Path, count: int) -> None:
    """Make a folder with so many runs."""
    first = folder.parent / "first"
    small = ("rounds=50", "clients=10", "model=softmax", "data.limit=300", "engine=serial", f"out={first}", "--quiet")
    subprocess.run([sys.executable, "-m", "arno", "run", *small], check=True, capture_output=True)
    files = {name: (first / name).read_bytes() for name in KEPT if (first / name).exists()}
    config = files["config.yaml"].decode().partition("\n")[2]
    manifest = checksummed.read(first / "manifest.json", first, "status")
    rows = metrics_file.read(first)
    now = time.time()
    for i in range(count):
        path, mark = folder / f"{i:05d}", f"{i:08x}"
        (path / "checkpoints").mkdir(parents=True)
        text = config.replace("kind: fedavg", f"kind: {METHODS[i % 5]}", 1).replace("seed: 0", f"seed: {i % 7}")
        head = f"# arno configuration of run {mark}, crc32 {checksum((mark + text).encode())}\n"
        started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now - 60 * i))
        about = manifest | {"run": mark, "started": started, "status": ("done", "interrupted", "failed")[i % 9 // 7]}
        rows[-1] |= {"test_f1": (i * 7919 % 10_000) / 10_000}
        for name, content in (files | {"config.yaml": (head + text).encode()}).items():
            (path / name).write_bytes(content)
        (path / "manifest.json").write_text(checksummed.text(about))
        (path / "metrics.jsonl").write_text("".join(metrics_file.line(row, mark) for row in rows))


if __name__ == "__main__":
    main()
