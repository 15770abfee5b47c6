"""Damaged files of every kind in the folders of runs, simulations and comparisons.

After the damage `arno report`, `arno track` and `arno resume` (for a comparison the same command again) give what they
give of the undamaged folder, or are refused with one line. A refused run is repaired and continued, with the same rule.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from cases import Bad, Case, Verdict, check, computed, one_line, same
from commands import At, Said, forked

RUN = (
    "clients=5",
    "model=softmax",
    "participation=0.6",
    "checkpoint.every=2",
    "checkpoint.keep=3",
    "eval.clients=true",
)
#: The same network with the loss of a method that has panels and a table of the clients.
SCAFFOLD = (*RUN, "method=scaffold")
GRID = ("method=fedavg,scaffold", "seed=0..1", "rounds=4", "clients=5", "checkpoint.every=2", "model=softmax")
TUNE = (
    *("tune", "method=fedavg,fedprox", "rounds=4", "clients=4", "seed=0..1", "data.limit=200", "model=softmax"),
    *("out=run", "--trials", "3", "--jobs", "1"),
)
QUADRATIC = ("num_users=8", "epochs=40", "seltype=powd")


@dataclass(frozen=True)
class Base:
    """A folder that is damaged. words: the command that makes it. stop: the operation at which that is killed.

    more: what `arno resume` is given. whole: the command that makes what it must become.
    """

    name: str
    words: tuple[str, ...]
    stop: str = ""
    more: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    tracked: bool = False

    @property
    def grid(self) -> bool:
        return self.words[0] in ("compare", "tune")


def _run(words: tuple[str, ...], rounds: int, seed: int = 0) -> tuple[str, ...]:
    return ("run", *words, "engine=serial", f"rounds={rounds}", f"seed={seed}", "out=run", "--quiet")


BASES = (
    Base("done", _run(RUN, 6), more=("rounds=8",), whole=_run(RUN, 8)),
    Base("killed", _run(RUN, 6), stop="save run/checkpoints/00000006", whole=_run(RUN, 6), tracked=True),
    Base("beginning", _run(RUN, 6), stop="save run/checkpoints/00000002", whole=_run(RUN, 6)),
    Base("scaffold", _run(SCAFFOLD, 6), more=("rounds=8",), whole=_run(SCAFFOLD, 8)),
    Base("quadratic", ("quadratic", *QUADRATIC, "out=run", "--quiet"), whole=("quadratic", *QUADRATIC, "out=run")),
    Base("compare", ("compare", *GRID, "out=run", "--jobs", "1"), whole=("compare", *GRID, "out=run", "--jobs", "1")),
    Base("tune", TUNE, whole=TUNE),
)
OTHER = _run(RUN, 6, seed=1)
FILES = (
    "config.yaml", "manifest.json", "manifest.json.previous", "metrics.jsonl", "checkpoints/[0-9]*.safetensors",
    "checkpoints/clients-*.parquet", "final.safetensors", "best.safetensors", "clients.parquet", "counts.npy",
    "panels.json", "curves.png", "log.txt", ".lock", "track/tensorboard.json", "client_scores.parquet",
)  # fmt: skip
OF_GRID = (
    "compare.json", ".lock", "table.csv", "differences.csv", "compare.png", "log.txt",
    *(f"method=*/{name}" for name in FILES[:13]), "method=*/failure.json",
)  # fmt: skip
OF_TUNE = (
    "tune.json", "tune.json", "optuna.journal", "compare.json", "table.csv", "search", "search/method=*",
    *(f"search/method=*/000/{name}" for name in FILES[:8]),
)  # fmt: skip


def flip(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def noise(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(min(64, len(data) - at)) + data[at + 64 :]


def zeros(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]


def without(data: bytes, rng: Random) -> bytes:
    at, lines = rng.random(), data.splitlines(keepends=True)
    del lines[int(at * len(lines))]
    return b"".join(lines)


def twice(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    return b"".join([*lines[:at], lines[at], *lines[at:]])


def exchanged(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


#: How the content of a file changes.
CONTENT: dict[str, Callable[[bytes, Random], bytes]] = {
    "a bit flipped": flip,
    "noise": noise,
    "zeros": zeros,
    "truncated": lambda data, rng: data[: rng.randrange(len(data))],
    "empty": lambda data, rng: b"",
    "random": lambda data, rng: rng.randbytes(rng.randrange(1, 2 * len(data) + 2)),
    "twice": lambda data, rng: data + data,
    "more at the end": lambda data, rng: data + rng.randbytes(rng.randrange(1, 64)),
    "a line less": without,
    "a line twice": twice,
    "two lines exchanged": exchanged,
}
#: Other damage.
PLACES = (
    "deleted", "of another run", "another file", "a folder", "a pipe", "a link to nothing", "a link to itself",
    "a link to a device", "a link to a file elsewhere", "a terabyte",
)  # fmt: skip
HOW = (*CONTENT, *PLACES)
#: A file outside of the run, to which a link leads: it must not change.
VICTIM = "victim"
#: Bytes of memory that a command may reserve beyond what it has at its start; Arrow reserves much that it never uses.
MEMORY = 2**32


def spoil(file: Path, how: str, rng: Random, folder: Path, other: Path) -> bool:
    """Damage a file; false if there is nothing to damage in this way."""
    if not file.exists() and file.name != ".lock":
        return False
    if file.is_dir():  # a file in its place, or a link to the folder elsewhere
        shutil.move(file, folder.parent / "moved")
        file.write_bytes(b"x")
    data = file.read_bytes() if file.exists() else b'{"host": "here", "pid": 1, "what": "a run"}\n'
    if how in CONTENT:
        changed = CONTENT[how](data, rng) if data else b"x"
        file.write_bytes(changed)
        return changed != data
    if how in ("of another run", "another file"):
        among = [other / file.relative_to(folder)] if how == "of another run" else sorted(_files(folder))
        among = [path for path in among if path.is_file() and path != file]
        if not among and how == "of another run" and file.parent.name == "checkpoints":
            among = sorted((other / "checkpoints").glob(f"{file.name[:16]}*"))
        if not among:
            return False
        found = rng.choice(among).read_bytes()
        file.write_bytes(found)
        return found != data
    if how == "a terabyte":  # of zeros, which take no room on the disk
        with file.open("ab") as opened:
            opened.truncate(2**40)
        return True
    file.unlink(missing_ok=True)
    if how == "a folder":
        file.mkdir()
    elif how == "a pipe":
        os.mkfifo(file)
    elif how.startswith("a link"):
        victim = folder.parent / ("moved" if (folder.parent / "moved").exists() else VICTIM)
        (folder.parent / VICTIM).write_text(VICTIM)
        file.symlink_to({"nothing": "nowhere", "itself": file.name, "a device": "/dev/zero"}.get(how[10:], victim))
    return True


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


class Bases:
    """The undamaged folders, made once: the folder, its report, what is tracked of it and what it becomes."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def of(self, base: Base) -> Path:
        place = self.store / base.name
        if not place.exists():
            work = self.store / f"{base.name}.{os.getpid()}"
            work.mkdir(parents=True)
            self._make(base, work)
            try:
                work.rename(place)
            except OSError:  # another case was faster
                shutil.rmtree(work)
        return place

    def other(self) -> Path:
        return self.of(Base("other", OTHER, whole=OTHER)) / "run"

    def _make(self, base: Base, work: Path) -> None:
        (work / "whole").mkdir()
        journal = work / "journal"
        want = forked(base.whole, work / "whole", journal=journal, pictures=True)
        assert want.status == 0, want
        known = {"computed": {name: computed(work / "whole" / name) for name in runs(work / "whole" / "run")}}
        known["tracked"] = {} if base.grid else tracked(work / "whole")[1]
        if base.stop:
            names = journal.read_text().splitlines()
            number = next(i for i, name in enumerate(names, 1) if name.startswith(base.stop))
            assert forked(base.words, work, at=At(number)).killed
        else:
            assert forked(base.words, work, pictures=True).status == 0
        known["sent"] = {}
        if not base.grid:
            shutil.copytree(work / "run", work / "sent" / "run")
            known["sent"] = tracked(work / "sent")[1]
        if base.tracked:
            assert tracked(work)[0].status == 0
        known["report"] = report(work)[1]
        (work / "known.json").write_text(json.dumps(known))


def runs(folder: Path) -> list[str]:
    """The runs in a folder, by their names in the folder above."""
    if (folder / "config.yaml").exists():
        return [folder.name]
    return [f"{folder.name}/{path.parent.name}" for path in sorted(folder.glob("*/config.yaml"))]


def report(folder: Path) -> tuple[Said, str]:
    """`arno report`, and what it wrote without the time."""
    said = forked(("report", "run", "--out", "report.html"), folder, before=bounded)
    path = folder / "report.html"
    return said, re.sub(r"Written by Arno [^<]*", "", path.read_text()) if path.exists() else ""


def tracked(folder: Path) -> tuple[Said, dict[str, float]]:
    """`arno track`, and all numbers that the tracker has now, without times."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    said, found = forked(("track", "run", "--to", "tensorboard"), folder, before=bounded), {}
    for path in sorted((folder / "run" / "tensorboard").glob("events*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if "seconds" not in value.tag and value.metadata.plugin_data.plugin_name == "scalars":
                    found[f"{value.tag} {event.step}"] = float(value.tensor.float_val[0])
    return said, found


def damage_case(base: Base, pattern: str, how: str, bases: Bases, number: int) -> Case:
    """Damage a file of a folder, and use the folder."""
    name = f"damage/{base.name}/{pattern}/{how}/{number}"

    def act(folder: Path, rng: Random) -> Verdict:
        place = bases.of(base)
        known = json.loads((place / "known.json").read_text())
        shutil.copytree(place / "run", folder / "run")
        files = sorted((folder / "run").glob(pattern)) or [folder / "run" / pattern]
        file = rng.choice(files)
        other = bases.other() / "run" if base.grid else bases.other()
        data = file.read_bytes() if file.is_file() else b""
        done = file.parent.is_dir() and spoil(file, how, rng, folder / "run", other)
        shorter = file.name == "metrics.jsonl" and bool(base.stop) and data.startswith(_kept(file))
        told = f"{file.relative_to(folder)} {how if done else 'as it was'}"
        try:
            refusals = grid(folder, file, base, known) if base.grid else single(folder, base, known, shorter)
            if (folder / VICTIM).exists() and (folder / VICTIM).read_text() != VICTIM:
                raise Bad("silent", "a file outside of the folder was changed through a link")
            if any("out of memory" in line for line in refusals):
                raise Bad("traceback", f"it takes too much memory: {refusals}")
        except Bad as bad:
            raise Bad(bad.args[0], f"{told}: {bad.args[1]}") from bad
        return Verdict("refused" if refusals else "identical", " | ".join(refusals))

    return Case(f"damage, {base.name}", name, act)


def bounded() -> None:
    """Limit the memory of this process."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))


def read(folder: Path, base: Base, known: dict, shorter: bool = False) -> list[str]:
    """Report and track a damaged folder; the lines with which they were refused."""
    said, page = report(folder)
    refusals = [said.err] if check(said, "report").refused else []
    if not refusals and page != known["report"] and not shorter:
        raise Bad("silent", f"the report differs: {first_difference(page, known['report'])}")
    if not base.grid:
        said, found = tracked(folder)
        if check(said, "track").refused:
            refusals.append(said.err)
        elif found != known["sent"] and not shorter:
            raise Bad("silent", f"the tracker got {len(found)} numbers, not {len(known['sent'])}")
    return refusals


def _kept(file: Path) -> bytes:
    """What is left of the records: whole lines from the beginning are those of a run that was killed earlier."""
    if not file.is_file():
        return b""
    with file.open("rb") as opened:
        return opened.read(2**20).rpartition(b"\n")[0]


def single(folder: Path, base: Base, known: dict, shorter: bool) -> list[str]:
    """A damaged run: read it, continue it, repair it if it is refused. shorter: the end of its records is missing."""
    refusals = read(folder, base, known, shorter)
    again = ("resume", "run", *base.more, "--quiet")
    said = check(forked(again, folder, before=bounded), "resume")
    apart: tuple[str, ...] = ()
    if said.refused:
        refusals.append(said.err)
        mended = check(forked(("repair", "run"), folder, before=bounded), "repair")
        if mended.refused:
            return [*refusals, mended.err]
        apart = ("clients", "panels") if "are lost; models and scores are not affected" in mended.out else ()
        said = check(forked(again, folder, before=bounded), "resume after repair")
        if said.refused:
            return [*refusals, said.err]
    same(folder / "run", known["computed"]["run"], "resumed", apart)
    said, found = tracked(folder)
    if check(said, "track after resume").refused:
        return [*refusals, said.err]
    if found != known["tracked"]:
        raise Bad("silent", f"after resume the tracker has {len(found)} numbers, not {len(known['tracked'])}")
    return refusals


def grid(folder: Path, file: Path, base: Base, known: dict) -> list[str]:
    """A damaged comparison: read it, continue it, repair the damaged cell if it is refused."""
    gone = not (folder / "run" / "compare.json").exists()  # then these are runs in a folder, as any others
    refusals = read(folder, base, known, gone)
    again = base.words if base.words[0] == "tune" else (*base.words, "--retry")
    for attempt in range(2):
        said = forked(again, folder, before=bounded)
        if said.status == 1 and not said.broken and "failed: " in said.out:
            refusals.append(next(line for line in said.out.splitlines() if line.startswith("failed: ")))
        elif check(said, "compare").refused:
            refusals.append(said.err)
        elif unread := [line for name in known["computed"] if (line := unreadable(folder / name))]:
            refusals += unread  # a cell that is done is not run again; who reads it, is told
        else:
            for name, want in known["computed"].items():
                same(folder / name, want, name)
            return refusals
        cell = next((path for path in file.parents if (path / "log.txt").exists()), folder / "run")
        if attempt == 0 and cell.is_relative_to(folder / "run") and cell != folder / "run":
            check(forked(("repair", str(cell.relative_to(folder))), folder, before=bounded), "repair")
    return refusals


def unreadable(run: Path) -> str:
    """The line with which a run is refused to who reads its results; empty if it can be read."""
    from arno.errors import ArnoError

    try:
        computed(run)
    except ArnoError as error:
        return str(error)
    return ""


def first_difference(a: str, b: str) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return one_line(f"…{a[max(0, at - 60) : at + 100]}… instead of …{b[max(0, at - 20) : at + 100]}…")


@cache
def plans(base: Base) -> list[tuple[str, str]]:
    """Which files are damaged in which way."""
    lines = ("metrics.jsonl", "config.yaml", "manifest.json", "log.txt", "panels.json")
    found = []
    for pattern in OF_TUNE if base.words[0] == "tune" else OF_GRID if base.grid else FILES:
        for how in HOW:
            of_lines = "line" in how and how != "a link to nothing"
            if not of_lines or Path(pattern).name in lines:
                found.append((pattern, how))
    return found


#: How many cases each folder gets.
COUNTS = {"done": 150, "killed": 150, "beginning": 50, "scaffold": 80, "quadratic": 50, "compare": 60, "tune": 60}


def cases(store: Path, seed: int, share: float = 1.0) -> Iterator[Case]:
    """The cases: every file of every folder gets its share, every way of damage its own."""
    rng, bases = Random(f"damage {seed}"), Bases(store / "base")
    for base in BASES:
        every = plans(base)
        count = max(1, round(COUNTS[base.name] * share))
        chosen = rng.sample(every, min(count, len(every)))
        chosen += [rng.choice(every) for _ in range(count - len(chosen))]
        for number, (pattern, how) in enumerate(chosen):
            yield damage_case(base, pattern, how, bases, number)
