"""What locks, checksums and syncs add to a run of W2, counted and timed by themselves.

    python benchmarks/safety.py [--rounds 40] [--data fashion_mnist=FOLDER]

W2 of `benchmarks/speed`: softmax regression, 100 of 1,000 clients a round, a checkpoint every ten rounds. Every call of
the functions that take a lock, compute a checksum of a record, or flush a file to the disk is counted and timed by the
place where it happens: in a round, at a checkpoint, or at the start and the end of the run. The last column is the time
of the calls in one round and of a tenth of a checkpoint, as a share of the median round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "speed"))

EVERY = 10
KINDS = ("checksums of records", "syncs of files and folders", "locks taken and released")
PLACES = ("round", "checkpoint", "start and end")


class Calls:
    """How often something was called, and for how long, by kind and place."""

    def __init__(self) -> None:
        self.place = PLACES[2]
        self.count: dict[tuple[str, str], int] = defaultdict(int)
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.times: dict[str, list[float]] = defaultdict(list)

    def add(self, kind: str, seconds: float, count: int = 1) -> None:
        self.count[kind, self.place] += count
        self.seconds[kind, self.place] += seconds

    def timed(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*arguments: Any, **more: Any) -> Any:
            began = perf_counter()
            try:
                return call(*arguments, **more)
            finally:
                self.add(kind, perf_counter() - began)

        return inner

    def within(self, place: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*arguments: Any, **more: Any) -> Any:
            began, self.place = perf_counter(), place
            try:
                return call(*arguments, **more)
            finally:
                self.place = PLACES[2]
                self.times[place].append(perf_counter() - began)

        return inner


def watch(calls: Calls) -> None:
    """Wrap the functions that are counted."""
    from arno.records import checksummed, clients, folder, metrics_file
    from arno.runs import run
    from arno.runs.loop import Loop

    for module in (metrics_file, clients, checksummed, folder):
        module.checksum = calls.timed(KINDS[0], module.checksum)  # type: ignore[attr-defined]
    for module in (clients, folder):
        module.file_checksum = calls.timed(KINDS[0], module.file_checksum)  # type: ignore[attr-defined]
    os.fsync = calls.timed(KINDS[1], os.fsync)  # type: ignore[assignment]
    plain = run.writing

    @contextmanager
    def writing(*arguments: Any, **more: Any) -> Iterator[None]:
        began = perf_counter()
        with plain(*arguments, **more):
            calls.add(KINDS[2], perf_counter() - began)
            yield
            began = perf_counter()
        calls.add(KINDS[2], perf_counter() - began, 0)

    run.writing = writing  # type: ignore[assignment]
    Loop.round = calls.within(PLACES[0], Loop.round)  # type: ignore[method-assign]
    Loop.save = calls.within(PLACES[1], Loop.save)  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FOLDER", help="real data")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    from common import settings
    from prepare import prepare

    import arno

    calls = Calls()
    with tempfile.TemporaryDirectory() as base:
        words = settings(prepare("W2", Path(base), dict(pair.split("=", 1) for pair in options.data)))
        words = [word for word in words if not word.startswith(("rounds=", "checkpoint", "out="))]
        watch(calls)
        arno.run(*words, f"rounds={options.rounds}", f"checkpoint.every={EVERY}", out=f"{base}/run")
    show(calls)


def show(calls: Calls) -> None:
    rounds, saves = calls.times["round"], calls.times["checkpoint"]
    usual = median(rounds)
    print(
        f"W2: {len(rounds)} rounds, median {1e3 * usual:.2f} ms; {len(saves)} checkpoints, {1e3 * median(saves):.2f} ms"
    )
    print(f"{'':<28}" + "".join(f"{place:>26}" for place in PLACES) + f"{'of a round':>12}")
    each = (len(rounds), len(saves), 1)
    for kind in KINDS:
        cells, share = [], 0.0
        for place, times, weight in zip(PLACES, each, (1, 1 / EVERY, 0), strict=True):
            count, seconds = calls.count[kind, place] / times, calls.seconds[kind, place] / times
            cells.append(f"{count:.1f} calls, {1e6 * seconds:.0f} µs")
            share += weight * seconds / usual
        print(f"{kind:<28}" + "".join(f"{cell:>26}" for cell in cells) + f"{share:>12.2%}")


if __name__ == "__main__":
    main()
