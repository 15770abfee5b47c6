"""`make fuzz`: read thousands of hostile inputs; each must be accepted or refused with one line.

Every kind runs in a process of its own with 1 GiB above what it takes at the start, and with an alarm. Prints a table
and ends with status 1 if an input caused a traceback, a hang, more memory, or the execution of code.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GIB = 2**30
OUTCOMES = ("tried", "accepted", "refused", "traceback", "hang", "memory", "code run")
BAD = OUTCOMES[3:]
#: Seconds for one input, and for a process between two inputs.
ALARM, SILENCE = 20, 60


class Hang(BaseException):
    """The alarm."""


class Journal:
    """Notes the outcome of every input in a file, so that it survives the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, outcome: str, why: str = "", value: Any = None) -> None:
        shown = "" if outcome in ("accepted", "refused") else repr(value)[:2000]
        self._file.write(json.dumps({"outcome": outcome, "why": why, "input": shown}) + "\n")


def attempt(read: Any, value: Any) -> tuple[str, str]:
    """Read one input; its outcome and the reason."""
    from arno.errors import ArnoError

    signal.setitimer(signal.ITIMER_REAL, ALARM)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            read(value)
        return "accepted", ""
    except ArnoError as error:
        text = str(error)
        if "allow_pickle" in text or len(" ".join(text.split())) > 3000:
            return "traceback", f"a bad message: {text[:300]}"
        return "refused", text
    except SystemExit:
        return "refused", "usage"
    except Hang:
        return "hang", "alarm"
    except MemoryError as error:
        return "memory", where(error)
    except Exception as error:
        kind = "memory" if "allocate" in str(error) or "out of memory" in str(error) else "traceback"
        return kind, where(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def where(error: BaseException) -> str:
    """The error and the last places of the project in its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/arno/" in f.filename]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[:-4:-1])
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({places})"


def child(kind: str, count: int, seed: int, journal: Journal) -> None:
    """Read `count` inputs of one kind in this folder."""
    import inputs
    import readers
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    def alarm(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, alarm)
    warnings.simplefilter("ignore")
    readers.prepare()
    make, read, _ = readers.KINDS[kind]
    with contextlib.suppress(Exception):  # imports and first uses belong to the start
        read(make(random.Random(0)) if callable(make) else [])
    start = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (start + GIB, start + GIB))
    canary = Path(inputs.CANARY)

    def check(value: Any) -> None:
        journal.note("tried", value=value)
        outcome, why = attempt(read, value)
        journal.note(outcome, why, value)
        if canary.exists():
            canary.unlink()
            journal.note("code run", why, value)

    if callable(make):
        rng = random.Random(f"{kind} {seed}")
        for _ in range(count):
            check(make(rng))
    else:
        every = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seeded(seed)(every(given(make)(check)))()


def attack(kind: str, count: int, seed: int) -> tuple[Counter[str], list[dict[str, str]]]:
    """Read `count` inputs of one kind in other processes; a process that dies or is silent is replaced."""
    total: Counter[str] = Counter()
    bad: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for start in range(20):
            work, journal = Path(folder) / f"work{start}", Path(folder) / f"journal{start}"
            work.mkdir()
            status, hung = watch(spawn(work, kind, count - total["tried"], seed + 1000 * start, journal), journal)
            rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
            bad += [row for row in rows if row["outcome"] in BAD]
            total.update(row["outcome"] for row in rows)
            if not rows:
                raise SystemExit(f"{kind}: the process ended before the first input\n{(work / 'log').read_text()}")
            if rows[-1]["outcome"] == "tried":  # the process ended in the middle of an input
                outcome = "hang" if hung else "traceback"
                total[outcome] += 1
                bad.append({"outcome": outcome, "why": f"the process ended with {status}", "input": rows[-1]["input"]})
            if status == 0 or total["tried"] >= count:  # hypothesis may find fewer different inputs
                break
    return total, bad


def spawn(work: Path, kind: str, count: int, seed: int, journal: Path) -> int:
    """Start a process; forked, because importing the libraries takes longer than hundreds of inputs."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(work)
        log = os.open("log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        child(kind, count, seed, Journal(journal))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def watch(pid: int, journal: Path) -> tuple[int, bool]:
    """Wait for the process; end it if it writes nothing for a while. Its status, and whether it was ended."""
    size, since, hung = -1, time.monotonic(), False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), hung
        time.sleep(0.05)
        now = journal.stat().st_size if journal.exists() else -1
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > SILENCE and not hung:
            hung = True
            os.kill(pid, signal.SIGKILL)


def fuzz(count: int, seed: int, only: str | None = None) -> tuple[dict[str, Counter[str]], list[dict[str, str]]]:
    """Attack every kind; the counts per kind, and the inputs that did harm."""
    import readers

    table, bad = {}, []
    for kind, (_, _, share) in readers.KINDS.items():
        if only is None or kind == only:
            table[kind], found = attack(kind, max(10, round(share * count)), seed)
            bad += [{"kind": kind, **row} for row in found]
            print(row_of(kind, table[kind]), flush=True)
    return table, bad


def row_of(kind: str, counts: Counter[str]) -> str:
    return f"{kind:<26}" + "".join(f"{counts[outcome]:>10}" for outcome in OUTCOMES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=11_000, help="about how many inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", help="only this kind")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    print(f"{'kind':<26}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    table, bad = fuzz(options.inputs, options.seed, options.kind)
    print(row_of("all", sum(table.values(), Counter())))
    for (kind, why), times in Counter((row["kind"], f"{row['outcome']}: {row['why']}") for row in bad).most_common():
        first = next(row["input"] for row in bad if (row["kind"], f"{row['outcome']}: {row['why']}") == (kind, why))
        print(f"\n{kind}, {times} times, {why}\n  {first[:400]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
