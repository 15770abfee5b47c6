"""The memory that `arno plan` estimates, beside the peak that `arno run` with the same settings takes.

    python benchmarks/plan.py

Measured: the largest sum over the processes of a run of their proportional set sizes (shared pages count once), sampled
every 50 ms, and of the main process the kernel's own peak (VmHWM) where that is larger; and how much of the sum were
pages of files (libraries, and with state=disk the table of the clients), which the system drops when memory is needed.
Linux only. Bar: a factor 1.5; for state=disk, whose table the estimate counts as disk, the ratio is printed only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

BAR = 1.5
ARNO = (sys.executable, "-m", "arno")
SETTINGS = {
    "digits, mlp": "engine=serial rounds=3",
    "4,096 × 4,096 perceptron, 17.1 million parameters": "engine=serial model.hidden=[4096,4096] clients=4 rounds=2",
    "lenet5, 100 clients, 2 workers": "{images} model=lenet5 engine=processes engine.workers=2 clients=100 rounds=3",
    "mlp, 1,000 clients, batched": "{images} clients=1000 rounds=3 partition=iid",
    "scaffold, 2,000 clients seen, mlp": "{images} method=scaffold clients=2000 partition=iid rounds=2",
    "scaffold, the same with state=disk": "{images} method=scaffold clients=2000 partition=iid rounds=2 state=disk",
    "ditto, 200 clients, own tests": "{images} method=ditto data.client_test=0.2 clients=200 partition=iid rounds=2",
    "resnet18, 11.2 million parameters": "{colours} model=resnet18 clients=20 participation=0.1 rounds=2",
    "resnet18 of width 16, 2 workers": "{colours} model=resnet18 model.width=16 clients=20 participation=0.2 rounds=2",
    "table of 1,000,000 rows": "{table} clients=100 participation=0.1 rounds=2",
    "scaffold on 1,000,000 quadratics": "problem=quadratic clients=1000000 method=scaffold participation=0.02 rounds=3",
}


def made(folder: Path) -> dict[str, str]:
    """Data of some sizes, as settings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for name, shape, n in (("images", (28, 28), 40_000), ("colours", (3, 32, 32), 2_000)):
        y = rng.integers(0, 10, n)
        np.savez(folder / f"{name}.npz", x=rng.integers(0, 256, (n, *shape), dtype=np.uint8), y=y)
    rows = 1_000_000
    columns = {f"x{i}": rng.standard_normal(rows) for i in range(20)} | {"y": rng.integers(0, 2, rows)}
    pq.write_table(pa.table(columns), folder / "table.parquet")
    found = {name: f"data=npz data.path={folder / name}.npz" for name in ("images", "colours")}
    return found | {"table": f"data=table data.path={folder / 'table.parquet'} data.label=y"}


def tree(pid: int) -> Iterator[int]:
    """A process and all processes below it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from tree(int(child))


def field(pid: int, file: str, name: str) -> int:
    """A number of bytes from /proc; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def measured(words: list[str], folder: Path) -> tuple[int, int, float]:
    """The peak memory of a run, the pages of files when the sum was largest, and its seconds per round."""
    out = folder / "run"
    process = subprocess.Popen([*ARNO, "run", *words, f"out={out}", "--quiet"], stdout=subprocess.DEVNULL)
    most = largest = files = 0
    while process.poll() is None:
        pids = list(tree(process.pid))
        whole = sum(field(pid, "smaps_rollup", "Pss:") for pid in pids)
        if whole > largest:
            largest, files = whole, sum(field(pid, "smaps_rollup", "Pss_File:") for pid in pids)
        most = max(most, whole, field(process.pid, "status", "VmHWM:"))
        sleep(0.05)
    if process.returncode:
        raise SystemExit(f"arno run {' '.join(words)} failed")
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    subprocess.run(["rm", "-r", str(out)], check=True)
    return most, files, last["seconds"]


def main() -> None:
    chosen = sys.argv[1:]
    print(f"{os.cpu_count()} cores\n")
    print(
        "| run | engine | memory estimated | measured | of it files | ratio | seconds per round estimated | measured |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    worst = 1.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, began = made(folder), perf_counter()
        for title, text in SETTINGS.items():
            if chosen and not any(word in title for word in chosen):
                continue
            words = text.format(**data).split()
            answer = subprocess.run([*ARNO, "plan", *words, "--json"], capture_output=True, text=True, check=True)
            plan = json.loads(answer.stdout)[0]
            peak, files, seconds = measured(words, folder)
            ratio = plan["memory"] / peak
            worst = worst if "state=disk" in words else max(worst, ratio, 1 / ratio)
            engine = plan["engine"] + (f" ({plan['workers']})" if plan["workers"] else "")
            print(
                f"| {title} | {engine} | {plan['memory'] / 2**20:,.0f} MiB | {peak / 2**20:,.0f} MiB "
                f"| {files / 2**20:,.0f} MiB | {ratio:.2f} | {plan['seconds']:.2g} | {seconds:.2g} |",
                flush=True,
            )
    print(f"\nlargest factor between estimate and peak: {worst:.2f} (bar: {BAR}); {perf_counter() - began:.0f} s")
    if worst > BAR and not chosen:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
