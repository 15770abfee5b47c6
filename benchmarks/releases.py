"""The speed of one checkout of Arno against another.

    python benchmarks/releases.py OLD NEW [--workload W1 W2] [--pairs 9] [--rounds N] [--data fashion_mnist=FOLDER]

OLD and NEW are the folders of two checkouts. W1 (LeNet-5 on Fashion-MNIST) and W2 (softmax regression) are the ones of
`benchmarks/speed`: OLD's scripts there prepare data, clients, cohorts, first model and settings once, and both
checkouts get the same ones. `--data` takes real data in place of made-up images. Each measurement is a process of its
own. Old and new take turns, and who goes first alternates from pair to pair.

1. Rounds: the time of a run is the median over its rounds, without the first one, which starts workers, and the last
   one, which evaluates. Printed: the median over the pairs of new/old, its range, and both medians.
2. Start: the time of `arno --help`, and of `arno run` on the digits from the start of the process to the selection of
   the first cohort. Printed in the same way; one pair before them is not counted.
3. Counts per round, with the engine that `auto` chooses:
   messages, bytes      what the server's process sends to and receives from its workers through
                        `multiprocessing.connection.Connection`; not what crosses in shared memory
   allocations, bytes   operations of torch in the server's main thread that return new memory; neither temporary
                        memory within an operation nor NumPy's arrays
   copies, bytes        operations there that only move numbers, with or without new memory (COPIES lists them), and
                        the bytes of the tensors that they return
   A run of 10 rounds is subtracted from a run of 30, so that start and end do not count; the rest is divided by 20.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROUNDS = {"W1": 10, "W2": 40}
SHORT, LONG = 10, 30
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
COPIES = {"copy_", "clone", "_to_copy", "index", "index_select", "gather", "cat", "stack", "repeat"}
COPIES |= {"index_copy_", "index_put_", "_index_put_impl_", "scatter", "scatter_", "masked_select"}

COUNTED = ("messages sent", "bytes sent", "messages received", "bytes received")
COUNTED += ("allocations", "bytes allocated", "copies", "bytes copied")

#: Prepares a workload with the scripts of a checkout and prints the settings.
PREPARE = """
import json, sys
from pathlib import Path
from common import settings
from prepare import prepare

name, base, sources = sys.argv[1:]
print(json.dumps(settings(prepare(name, Path(base), json.loads(sources)))))
"""

#: A method that ends the process when the first cohort is selected.
STOP = """
import os
from arno import Part


class Stop(Part):
    def select(self, ids, t):
        os._exit(0)


def factory():
    return [Stop()]
"""


def python(checkout: Path, *words: str, cwd: Path | None = None) -> str:
    """The output of a Python process that imports the Arno of a checkout."""
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(checkout / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python keeps compiled files; the first pair writes them
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def inside(checkout: Path, what: str, rounds: int, settings: list[str]) -> Any:
    """What `seconds` or `counts` finds in a process of its own."""
    words = (str(Path(__file__).resolve()), f"--{what}", str(checkout), str(rounds), *settings)
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(python(checkout, *words, cwd=Path(folder)).splitlines()[-1])


def seconds(rounds: int, settings: list[str]) -> float:
    """In the measured process: the median time of a round, neither the first nor the last one."""
    import arno

    spent = arno.run(*settings, *only_rounds(rounds + 2), out="run").history["seconds"].tolist()
    return median(spent[1:-1])


def counts(rounds: int, settings: list[str]) -> Counter[str]:
    """In the measured process: messages, allocations and copies of a whole run."""
    import arno

    tally: Counter[str] = Counter()
    count_messages(tally)
    with operations(tally) as counting:
        os.register_at_fork(after_in_child=lambda: counting.__exit__(None, None, None))  # workers do not count
        arno.run(*settings, *only_rounds(rounds), out="run")
    return tally


def only_rounds(rounds: int) -> list[str]:
    """So many rounds, and nothing beside them until the last one is over."""
    return [f"rounds={rounds}", f"eval.every={rounds}", "checkpoint.every=0"]


def count_messages(tally: Counter[str]) -> None:
    """Count what this process sends and receives through the pipes of multiprocessing."""
    from multiprocessing.connection import Connection

    send, receive = Connection._send_bytes, Connection._recv_bytes  # type: ignore[attr-defined]

    def counted_send(pipe: Connection, message: Any) -> None:
        tally.update({"messages sent": 1, "bytes sent": memoryview(message).nbytes})
        send(pipe, message)

    def counted_receive(pipe: Connection, most: int | None = None) -> Any:
        message = receive(pipe, most)
        tally.update({"messages received": 1, "bytes received": message.getbuffer().nbytes})
        return message

    Connection._send_bytes, Connection._recv_bytes = counted_send, counted_receive  # type: ignore[attr-defined]


def operations(tally: Counter[str]) -> Any:
    """A context in which torch's operations are counted."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, words: Any = (), named: Any = None) -> Any:
            named = named or {}
            with self:  # an operation that is made of others counts as those
                out = operation.decompose(*words, **named)
            if out is not NotImplemented:
                return out
            before = {memory(x) for x in tree_leaves((words, named)) if isinstance(x, Tensor)}
            out = operation(*words, **named)
            results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            new = {memory(x): x.untyped_storage().nbytes() for x in results if memory(x) not in before | {0}}
            tally.update({"allocations": len(new), "bytes allocated": sum(new.values())})
            if operation.overloadpacket.__name__ in COPIES:
                tally.update({"copies": 1, "bytes copied": sum(x.nbytes for x in results)})
            return out

    def memory(x: Tensor) -> int:
        return x.untyped_storage().data_ptr()

    return Operations()


def pairs(old: Path, new: Path, number: int, measure: Callable[[Path, int], float]) -> list[tuple[float, float]]:
    """Measure both checkouts so often, in turns; who goes first alternates."""
    checkouts, found = {"old": old, "new": new}, []
    for i in range(number):
        order = ("old", "new") if i % 2 == 0 else ("new", "old")
        spent = {who: measure(checkouts[who], i) for who in order}
        found.append((spent["old"], spent["new"]))
    return found


def line(name: str, found: list[tuple[float, float]]) -> str:
    """The ratio of the pairs with its range, and the median times."""
    ratios, (old, new) = [b / a for a, b in found], (median(times) for times in zip(*found, strict=True))
    spread = f"{median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
    return f"{name:<30} new/old {spread}   old {old * 1e3:8.2f} ms   new {new * 1e3:8.2f} ms"


def wall(folder: Path, words: tuple[str, ...], checkout: Path, pair: int) -> float:
    """Seconds that a command of Arno takes, from the start of the process to its end."""
    began = perf_counter()
    python(checkout, "-m", "arno", *words, cwd=folder)
    return perf_counter() - began


def a_round(settings: list[str], rounds: int, checkout: Path, pair: int) -> float:
    """Seconds of a round; every pair shuffles the samples in another way."""
    return float(inside(checkout, "seconds", rounds, [*settings, f"seed={pair}"]))


def start_up(old: Path, new: Path, number: int) -> None:
    """The time of `arno --help` and the time to the first round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stop.py").write_text(STOP)
        run = ("run", "data=digits", "method=custom", "method.target=stop.py:factory")
        for title, words in (("arno --help", ("--help",)), ("arno run, to the first round", run)):
            found = pairs(old, new, number + 1, partial(wall, folder, words))
            print(line(title, found[1:]), flush=True)


def workload(name: str, old: Path, new: Path, number: int, rounds: int, sources: dict[str, str]) -> None:
    """The time of a round, and the counts."""
    with tempfile.TemporaryDirectory() as base:
        words = ("-c", PREPARE, name, base, json.dumps(sources))
        settings = json.loads(python(old, *words, cwd=old / "benchmarks" / "speed").splitlines()[-1])
        print(line(f"{name}, a round", pairs(old, new, number, partial(a_round, settings, rounds))), flush=True)
        before, after = per_round(old, settings), per_round(new, settings)
    print(f"{f'{name}, counts per round':<30} {'old':>12} {'new':>12}")
    for what in COUNTED:
        print(f"  {what:<28} {before[what]:>12,.1f} {after[what]:>12,.1f}", flush=True)


def per_round(checkout: Path, settings: list[str]) -> dict[str, float]:
    """The counts of a long run without those of a short one, per round."""
    short, long = (Counter(inside(checkout, "counts", rounds, settings)) for rounds in (SHORT, LONG))
    return {what: (long[what] - short[what]) / (LONG - SHORT) for what in COUNTED}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--workload", nargs="*", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rounds", type=int, help="rounds that are timed in a run; W1: 10, W2: 40")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FOLDER")
    options = parser.parse_args()
    old, new = options.old.resolve(), options.new.resolve()
    sources = {kind: str(Path(folder).expanduser().resolve()) for kind, folder in (d.split("=") for d in options.data)}
    start_up(old, new, options.pairs)
    for name in options.workload:
        workload(name, old, new, options.pairs, options.rounds or ROUNDS[name], sources)


def measured(what: str, checkout: str, rounds: str, *settings: str) -> None:
    """The measured process: print what was asked for."""
    import arno

    if not Path(arno.__file__).is_relative_to(checkout):
        raise SystemExit(f"Arno comes from {arno.__file__}")
    print(json.dumps({"--seconds": seconds, "--counts": counts}[what](int(rounds), list(settings))))


if __name__ == "__main__":
    if sys.argv[1:2] in (["--seconds"], ["--counts"]):
        measured(*sys.argv[1:])
    else:
        main()
