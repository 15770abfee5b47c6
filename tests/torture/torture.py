"""`make torture`: kill, damage, fill, stop and double everything that Arno writes; nothing may be lost in silence.

Kills (SIGKILL) of runs of every method on every engine, of comparisons, stages and simulations, at file operations and
at any moment, once and twice; damaged files of every kind; hung workers; full disks; two writers of one folder. After
that a command gives the bits of a run that was left alone, or is refused with one line. Prints a table, and ends with
status 1 if a case ended with another result in silence, with a traceback, or did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cases import BAD, OUTCOMES, Bad, Case, Verdict, one_line  # noqa: E402
from commands import SLICE, preload  # noqa: E402

#: Seconds for one case.
LIMIT = 900
COLUMNS = ("tried", *OUTCOMES, "kills")


class Stopped(Exception):
    """The user stopped the torture."""


def all_cases(store: Path, seed: int, share: float) -> list[Case]:
    import damage
    import kills
    import others
    import own_code

    whole = kills.Whole(store / "whole")
    found = [
        *kills.cases(whole, seed, share),
        *damage.cases(store, seed, share),
        *others.cases(whole, seed, share),
        *own_code.cases(whole, seed, share),
    ]
    known: dict[str, Case] = {}
    for case in found:  # equal plans are one case
        known.setdefault(case.name, case)
    return list(known.values())


def begin(case: Case, seed: int, store: Path, number: int) -> int:
    """Start a case in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    folder = store / f"case{number}"
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ |= {"XDG_STATE_HOME": str(folder / ".state"), "ARNO_DATA": str(store / "data"), "COLUMNS": "100"}
        folder.mkdir()
        verdict = attempt(case, folder, Random(f"{seed} {case.name}"))
        (store / f"verdict{number}").write_text(json.dumps(verdict))
        if verdict.outcome not in BAD:
            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def attempt(case: Case, folder: Path, rng: Random) -> Verdict:
    try:
        return case.act(folder, rng)
    except Bad as bad:
        return Verdict(*bad.args)
    except Exception:
        return Verdict("traceback", f"in the torture itself: {traceback.format_exc()}")


def torture(
    cases: Sequence[Case], seed: int, store: Path, jobs: int, seconds: float, journal: Journal
) -> list[tuple[Case, Verdict]]:
    """Run the cases, `jobs` at a time, and begin none after `seconds`; Ctrl-C ends with what there is."""
    waiting, running, ended = list(enumerate(cases)), dict[int, tuple[int, Case, float]](), []
    now = time.monotonic()
    end = now + seconds
    try:
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < jobs and time.monotonic() < end:
                number, case = waiting.pop(0)
                running[begin(case, seed, store, number)] = (number, case, LIMIT)
            before, now = now, time.monotonic()
            for pid in list(running):
                number, case, left = running[pid]
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    running[pid] = (number, case, left - min(now - before, SLICE))
                    if left <= 0:
                        os.killpg(pid, signal.SIGKILL)
                    continue
                del running[pid]
                ended.append((case, verdict_of(store, number)))
                journal.note(*ended[-1])
                show(*ended[-1], seed, len(ended), len(cases))
            time.sleep(0.01)
    except KeyboardInterrupt:
        print(f"stopped after {len(ended)} of {len(cases)} cases", flush=True)
        for pid in running:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return ended


class Journal:
    """The verdicts of the cases of one seed, in a file that a later call continues; path: None keeps nothing."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path, self._seed = path, seed

    def known(self) -> dict[str, Verdict]:
        """The verdicts so far, by the names of the cases."""
        if self._path is None or not self._path.exists():
            return {}
        rows = map(json.loads, self._path.read_text().splitlines())
        return {row["case"]: Verdict(*row["verdict"]) for row in rows if row["seed"] == self._seed}

    def note(self, case: Case, verdict: Verdict) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"seed": self._seed, "case": case.name, "verdict": verdict}) + "\n")


def verdict_of(store: Path, number: int) -> Verdict:
    try:
        return Verdict(*json.loads((store / f"verdict{number}").read_text()))
    except (OSError, ValueError):
        return Verdict("hung", "the process of the case ended without a verdict")


def show(case: Case, verdict: Verdict, seed: int, done: int, total: int) -> None:
    if verdict.outcome in BAD:
        print(f"{verdict.outcome}: {case.name}\n  {verdict.why}\n  repeat it: {repeat(case, seed)}", flush=True)
    if done % 100 == 0:
        print(f"{done} of {total}", flush=True)


def repeat(case: Case, seed: int) -> str:
    return f"make torture ARGS=\"--seed {seed} --case '{case.name}'\""


def table(ended: Sequence[tuple[Case, Verdict]]) -> str:
    kinds: dict[str, Counter[str]] = {}
    for case, verdict in ended:
        row = kinds.setdefault(case.kind, Counter())
        row.update({"tried": 1, verdict.outcome: 1, "kills": verdict.kills})
    kinds["all"] = sum(kinds.values(), Counter())
    width = max(map(len, kinds)) + 2
    lines = [f"{'kind':<{width}}" + "".join(f"{name:>11}" for name in COLUMNS)]
    lines += [f"{kind:<{width}}" + "".join(f"{row[name]:>11}" for name in COLUMNS) for kind, row in kinds.items()]
    return "\n".join(lines)


def sabotage(how: str | None) -> None:
    """Break `arno resume` on purpose: the torture must see it."""
    from arno.core.federation import Federation

    plain = Federation.restore

    def fails() -> None:
        raise RuntimeError("broken on purpose")

    def broken(fed: Federation, state: dict[str, object]) -> None:
        plain(fed, state)
        if how == "raise":
            fed.round = fails  # type: ignore[method-assign, assignment]
        fed.w += 1e-7

    if how is not None:
        Federation.restore = broken  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="which part of the cases is made")
    parser.add_argument("--only", default="", help="only the kinds that contain this text")
    parser.add_argument("--skip", default="", help="without the kinds that contain one of these texts: ray,compare")
    parser.add_argument("--case", help="only this case; its folder is kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--most", type=int, help="at most so many cases, drawn at random")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many minutes")
    parser.add_argument("--journal", type=Path, help="a file of verdicts: cases in it are not tried again, but counted")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    options = parser.parse_args()
    preload()
    sabotage(os.environ.get("ARNO_TORTURE_BREAK"))
    store = Path(tempfile.mkdtemp(prefix="torture-"))
    skipped = [text for text in options.skip.split(",") if text]
    cases = [
        case
        for case in all_cases(store, options.seed, options.share)
        if options.only in case.kind and not any(text in case.kind for text in skipped)
    ]
    if options.case is not None:
        cases = [case for case in cases if case.name == options.case]
    if options.most is not None and options.most < len(cases):
        cases = Random(f"most {options.seed}").sample(cases, options.most)
    if options.list or not cases:
        print("\n".join(case.name for case in cases) or "no such case")
        return 0 if cases else 2
    began, journal = time.monotonic(), Journal(options.journal, options.seed)
    known = journal.known()
    ended = [(case, known[case.name]) for case in cases if case.name in known]
    left = [case for case in cases if case.name not in known]
    ended += torture(left, options.seed, store, options.jobs, 60 * options.minutes, journal)
    bad = [pair for pair in ended if pair[1].outcome in BAD]
    print(table(ended))
    print(f"{len(ended)} of {len(cases)} cases, {time.monotonic() - began:.0f} seconds, seed {options.seed}")
    for case, verdict in bad:
        print(f"{verdict.outcome}: {case.name}: {one_line(verdict.why)}")
    if bad or options.case is not None:
        print(f"the folders of failed cases are in {store}")
    else:
        shutil.rmtree(store, ignore_errors=True)
    return 1 if bad or len(ended) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
