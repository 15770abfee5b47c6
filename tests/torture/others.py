"""Full disks, hung workers, and two commands that write one folder."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil
from cases import Bad, Case, Verdict, check, one_line, same
from commands import At, Said, begun, ended, forked
from kills import OPERATIONS, Recipe, Whole, comparison, continued, methods, run_of, written

#: Bytes that a file may have, or the disk: less than a checkpoint, less than all of them.
SIZES = (300, 2_000, 6_000, 20_000, 60_000, 120_000)


def cases(whole: Whole, seed: int, share: float = 1.0) -> Iterator[Case]:
    """All cases; share: the part of them that is made."""
    rng = Random(f"others {seed}")

    def some(count: int) -> int:
        return max(1, round(count * share))

    for method in rng.sample(methods(), some(40)):
        yield full_case(run_of(method, "engine=serial"), whole, f"op {rng.randint(1, OPERATIONS)}")
    for size in SIZES[: some(len(SIZES))]:
        yield full_case(run_of("scaffold", "engine=serial"), whole, f"file {size}")
        if can_mount():
            yield full_case(run_of("scaffold", "engine=serial"), whole, f"disk {10 * size}")
    for _ in range(some(6)):
        yield full_case(comparison(), whole, f"op {rng.randint(1, 12)}")
    if has_timeout():
        for number in range(some(10)):
            yield hung_case(whole, rng.choice(methods()), number)
    for number in range(some(6)):
        for pair in WRITERS:
            yield writers_case(whole, pair, number)


# --- a full disk ---


def full_case(recipe: Recipe, whole: Whole, plan: str) -> Case:
    """A command on a full disk; when there is room again, it is continued."""
    word, number = plan.split()

    def act(folder: Path, rng: Random) -> Verdict:
        known = whole.of(recipe)
        recipe.prepare(folder)
        with tight(folder, int(number)) if word == "disk" else contextlib.nullcontext():
            at = At(int(number), "full") if word == "op" else None
            before = (lambda: limit(int(number))) if word == "file" else None
            said = forked(recipe.first, folder, at=at, before=before)
            lost = said.status == 1 and not said.broken and "failed: " in said.out  # a cell
            refused = lost or check(said, "on a full disk").refused
            if word == "disk" and refused:
                make_room(folder)
            continued(recipe, folder, forked)
            for name in recipe.folders:
                same(folder / name, known["computed"][name], name)
        return Verdict("refused" if refused else "identical", one_line(said.err))

    return Case("full disk", f"full disk/{recipe.name}/{plan}", act)


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextlib.contextmanager
def tight(folder: Path, size: int) -> Iterator[None]:
    """A file system of `size` bytes at the place of the run."""
    (folder / "run").mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder / "run"))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder / "run")], check=False, capture_output=True)


def make_room(folder: Path) -> None:
    mount("-o", "remount,size=64m", str(folder / "run"))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def can_mount() -> bool:
    """Whether this user may mount a small file system."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", "-l", folder], check=False, capture_output=True)
        return True


# --- a hung worker ---


def has_timeout() -> bool:
    from arno.config.settings import compose
    from arno.errors import ArnoError

    try:
        compose(["engine=processes", "engine.timeout=1"])
    except ArnoError:
        return False
    return True


def hung_case(whole: Whole, method: str, number: int) -> Case:
    """A worker is suspended in the middle of a run: it is replaced, and the result stays."""
    recipe = run_of(method, "engine=processes", "engine.workers=2", "engine.timeout=1", "rounds=6")

    def act(folder: Path, rng: Random) -> Verdict:
        known, moment = whole.of(run_of(method, "engine=serial")), rng.uniform(0.05, 0.8)
        recipe.prepare(folder)
        said = check(forked(recipe.first, folder, before=lambda: suspend_later(moment, rng)), "with a hung worker")
        if said.refused:
            raise Bad("silent", f"refused: {one_line(said.err)}")
        same(folder / "run", known["computed"]["run"], "with a hung worker")
        return Verdict("identical")

    return Case("hung worker", f"hung worker/{method}/{number}", act)


def suspend_later(moment: float, rng: Random) -> None:
    """From another process: suspend a worker of this one after some seconds."""
    server = os.getpid()
    if os.fork():
        return
    end = time.monotonic() + 20
    with contextlib.suppress(psutil.Error):
        while time.monotonic() < end:
            workers = [child for child in psutil.Process(server).children() if child.pid != os.getpid()]
            if workers:
                time.sleep(moment)
                rng.choice(workers).send_signal(signal.SIGSTOP)
                break
            time.sleep(0.002)
    os._exit(0)


# --- two writers ---

LONG = replace(run_of("scaffold", "engine=serial", "rounds=30"), name="scaffold, 30 rounds")
RUN, RESUME = LONG.first, LONG.again
#: Two commands that are started in one folder, after the command that prepares it was killed half-way or has ended.
WRITERS = {
    "run and run": (None, RUN, RUN),
    "resume of a running run": (None, RUN, RESUME),
    "repair of a running run": (None, RUN, ("repair", "run")),
    "resume and resume": ("killed", RESUME, RESUME),
    "track and track": ("done", ("track", "run", "--to", "tensorboard"), ("track", "run", "--to", "tensorboard")),
    "compare and compare": (None, comparison().first, comparison().first),
}


def writers_case(whole: Whole, pair: str, number: int) -> Case:
    """Two commands at once: each ends well or is refused with one line, and the folder holds one whole result."""
    prepared, first, second = WRITERS[pair]
    recipe = comparison() if first[0] == "compare" else LONG

    def act(folder: Path, rng: Random) -> Verdict:
        known = whole.of(recipe)
        recipe.prepare(folder)
        if prepared:
            forked(recipe.first, folder, after=0.5 * known["seconds"] if prepared == "killed" else None)
            if not written(folder, recipe):
                return Verdict("identical", "nothing was written yet")
        commands = [begun(first, folder, name="1")]
        time.sleep(rng.uniform(0, 0.6) * known["seconds"])
        commands.append(begun(second, folder, name="2"))
        said = [ended(command) for command in commands]
        refused = [check(one, pair).refused for one in said]
        _one_writer(said, refused, prepared)
        if all(refused):
            raise Bad("silent", f"both were refused: {one_line(said[0].err)}")
        if "repair" in pair and not (folder / "run" / "final.safetensors").exists():
            continued(recipe, folder, forked)
        for name in recipe.folders:
            same(folder / name, known["computed"][name], name)
        return Verdict("refused" if any(refused) else "identical", one_line(said[1].err))

    return Case("two writers", f"two writers/{pair}/{number}", act)


def _one_writer(said: list[Said], refused: list[bool], prepared: str | None) -> None:
    """A refusal must name the other writer, or what it left."""
    reasons = ("is being written by", "holds a run already", "is no run", "no such folder", "nothing is damaged")
    for one, was in zip(said, refused, strict=True):
        if was and not any(reason in one.err for reason in reasons):
            raise Bad("silent", f"refused for another reason: {one_line(one.err)}")
