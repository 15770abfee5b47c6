"""A table of a million rows, 30 columns and 1,000 clients: time and memory until the first round could begin.

    python benchmarks/table.py [--rows 1000000] [--repeats 3]

The file is made in a temporary folder: 30 columns of floating-point numbers, a label and the name of a client. Prints,
for CSV, Parquet and Feather, the time of `data=table` until the problem is built (read, split, scaled, divided among
the clients) in times of what pyarrow alone needs to read the file, and the peak of memory above that of the imports in
times of the numbers as float32. Every measurement has a process of its own. Bars: 5 times, 3 times. A Feather file that
is not compressed is read as fast as memory is copied; there the time has no bar.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

COLUMNS, CLIENTS = 30, 1000
KINDS = ("csv", "parquet", "feather")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write(folder: Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv, feather

    random = np.random.default_rng(0)
    columns = {f"x{i}": random.normal(i, 1 + i, rows) for i in range(COLUMNS)}
    columns["label"] = random.integers(0, 2, rows)
    columns["hospital"] = np.char.add("h", random.integers(0, CLIENTS, rows).astype(str))
    table = pa.table(columns)
    csv.write_csv(table, folder / "it.csv")
    pq.write_table(table, folder / "it.parquet")
    feather.write_feather(table, str(folder / "it.feather"), compression="uncompressed")


def alone(path: str) -> None:
    """Print the seconds that pyarrow needs to read the file."""
    import pyarrow.parquet as pq
    from pyarrow import csv, feather

    began = time.perf_counter()
    if path.endswith(".csv"):
        csv.read_csv(path)
    elif path.endswith(".parquet"):
        pq.ParquetFile(path).read()
    else:
        feather.read_table(path, memory_map=False)
    print(time.perf_counter() - began)


def ready(path: str, small: str) -> None:
    """Print the seconds until the problem is built, and the bytes of memory above those of the imports."""
    from arno.config.build import supervised
    from arno.config.settings import compose, plain

    def build(file: str) -> object:
        words = ["data=table", f"data.path={file}", "data.label=label", "data.client=hospital", "model=softmax"]
        return supervised(plain(compose(words)))

    build(small)  # imports what is needed
    before, began = peak(), time.perf_counter()
    problem = build(path)
    print(time.perf_counter() - began, peak() - before, problem.clients.n)


def child(*words: str) -> list[float]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, few = Path(folder) / "whole", Path(folder) / "few"
        for place, rows in ((whole, options.rows), (few, 20_000)):
            place.mkdir()
            write(place, rows)
        numbers = 4 * options.rows * COLUMNS
        print(f"{options.rows:,} rows, {COLUMNS} columns, {CLIENTS:,} clients; as float32: {numbers / 1e6:.0f} MB")
        for kind in KINDS:
            path, small = (str(place / f"it.{kind}") for place in (whole, few))
            pairs = [(child("alone", path)[0], child("ready", path, small)) for _ in range(options.repeats)]
            reading = median(seconds for seconds, _ in pairs)
            seconds, most = (median(result[i] for _, result in pairs) for i in (0, 1))
            assert pairs[0][1][2] == CLIENTS
            print(
                f"{kind:8} pyarrow {reading:5.2f} s, ready {seconds:5.2f} s: {seconds / reading:4.1f} times (bar 5); "
                f"peak {most / 1e6:4.0f} MB: {most / numbers:4.2f} times (bar 3)"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        alone(*sys.argv[2:])
    elif sys.argv[1:2] == ["ready"]:
        ready(*sys.argv[2:])
    else:
        main()
