"""How much memory and disk this process may use. The machine, its control group and its own limits decide this."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

#: The folder of the shared memory of Linux.
SHARED = Path("/dev/shm")


def memory() -> int:
    """The bytes that all processes of a run may use together; 64 GiB if the system does not report them."""
    return _limit()


def owner() -> str:
    """The words for what sets the limit of `memory()`, for errors."""
    return "this machine" if memory() >= _physical() else "the control group of this process"


def available() -> int:
    """How many bytes of `memory()` are free now, or can be freed immediately."""
    free = _table(Path("/proc/meminfo")).get("MemAvailable", memory())
    return max(0, min([free, *(limit - used for limit, used in groups())]))


def of_a_process() -> tuple[int, str]:
    """The bytes that one process may use in addition to its libraries, and the name of the limit that decides it."""
    if sys.platform == "win32":
        return memory(), owner()
    import resource

    found = [(memory(), owner())]
    for kind, name in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        soft = resource.getrlimit(kind)[0]
        if soft != resource.RLIM_INFINITY:
            mapped = _status("VmSize" if kind == resource.RLIMIT_AS else "VmData") - _status("VmRSS")
            found.append((max(0, soft - max(0, mapped)), name))
    return min(found)


def resident() -> int:
    """The bytes of memory that this process uses now; 0 if the system does not report them."""
    return _status("VmRSS")


def peak() -> int:
    """The most bytes of memory that this process has used so far; 0 if the system does not report them."""
    return _status("VmHWM")


def free_disk(path: Path) -> int:
    """The free bytes of the file system of a path; the path need not exist."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return shutil.disk_usage(there).free


def free_shared() -> int | None:
    """The free bytes of shared memory; None if the system gives it no size of its own."""
    return shutil.disk_usage(SHARED).free if SHARED.is_dir() else None


@cache
def _physical() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 64 * 2**30


def _status(name: str) -> int:
    return _table(Path("/proc/self/status")).get(name, 0)


def _table(path: Path) -> dict[str, int]:
    """The lines `name:  number kB` of a file of /proc, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    parts = [(name, value.split()) for name, _, value in (line.partition(":") for line in lines)]
    return {name: 1024 * int(words[0]) for name, words in parts if len(words) == 2 and words[1] == "kB"}


@cache
def _limit() -> int:
    return min([_physical(), *(limit for limit, _ in groups())])


def groups(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[tuple[int, int]]:
    """For each control group of this process: its limit, and how many of its used bytes cannot be freed immediately."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    found = list[tuple[int, int]]()
    for line in lines:
        _, kinds, group = line.split(":", 2)
        if kinds == "":
            found += _upwards(root, group, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _upwards(root / "memory", group, names)
    return found


def _upwards(top: Path, group: str, names: tuple[str, str, str]) -> Iterator[tuple[int, int]]:
    """The limit and the use of a group and of its parent groups. In a container, only some of them are visible."""
    limit, use, cached = names
    here = top / group.strip("/")
    while top == here or top in here.parents:
        with suppress(OSError, ValueError):  # a group without a limit says `max`
            words = (here / "memory.stat").read_text().split()
            freed = int(words[words.index(cached) + 1]) if cached in words else 0
            yield int((here / limit).read_text()), max(0, int((here / use).read_text()) - freed)
        here = here.parent
