"""All runs, comparisons and searches below a folder, and the index file that makes listing them fast.

The index holds the entry of every folder, and the times and sizes of the files from which the entry was read. If a time
or a size differs, the entry is read again. The index is only a copy: it is made again if it is missing or damaged. A
folder that cannot be written has no index.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isnan
from pathlib import Path
from statistics import fmean

from ..errors import ArnoError
from ..limits import read_bytes
from ..records import disk
from ..records.damage import checksum
from ..records.lock import holder, writing
from .run_entry import FILES, LINK, Entry, kind_of, read_entry

#: The name of the index file, its first word, and the largest number of bytes that is read.
INDEX, FORMAT, LARGEST = ".arno-index.json", "arno-index-2", 2**28
#: Names of folders that are not searched for runs.
INNER = {"checkpoints", "logs", "figures", "tensorboard", "__pycache__", "node_modules"}
#: For each file: its time of change in nanoseconds, and its size (LINK for a link).
Signature = dict[str, list[int]]
#: For each path below the folder: the signature, and the entry that was read (None if it is not a run).
Known = dict[str, tuple[Signature, Entry | None]]


class Catalogue:
    """The entries of a folder. `read` reads the entries that have changed; the first time, it uses the index file.

    folder: the folder that is listed. entries: the entries by name, including the cells of comparisons.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.entries: dict[str, Entry] = {}
        self._known: Known | None = None
        self._locks: set[str] = set()
        try:
            os.scandir(self.folder).close()
        except (OSError, ValueError) as error:  # ValueError: the name contains a null character
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ArnoError(f"{self.folder}", f"cannot be listed ({why})", "give another folder") from error

    def path(self, name: str) -> Path:
        """The folder of an entry."""
        return self.folder / name

    def read(self) -> dict[str, Entry]:
        """All entries as they are now."""
        stored = self._known is None
        known = load(self.folder) if self._known is None else self._known
        found: Known = {}
        changed = stored and not known
        self._locks = set()
        for name, path, signature, locked in folders(self.folder):
            before = known.get(name)
            if before is not None and before[0] == signature:
                found[name] = before
            else:
                changed = True
                kind = kind_of(path, signature)
                found[name] = (signature, read_entry(name, path, kind, signature) if kind else None)
            if locked:
                self._locks.add(name)
        changed |= found.keys() != known.keys()
        self._known = found
        if changed and any(entry for _, entry in found.values()):
            store(self.folder, found)
        self.entries = self._now()
        return self.entries

    def again(self, names: Iterable[str]) -> dict[str, Entry]:
        """All entries; only the entries with these names are checked for changes."""
        assert self._known is not None
        for name in names:
            found = here(self.path(name))
            if found is None:
                self._known.pop(name, None)
                continue
            signature, locked, _ = found
            (self._locks.add if locked else self._locks.discard)(name)
            if name in self._known and self._known[name][0] != signature:
                kind = kind_of(self.path(name), signature)
                entry = read_entry(name, self.path(name), kind, signature) if kind else None
                self._known[name] = (signature, entry)
        self.entries = self._now()
        return self.entries

    def _now(self) -> dict[str, Entry]:
        """The entries in their current state: running processes, sums over the cells of comparisons, time so far."""
        recorded = {name: entry for name, (_, entry) in (self._known or {}).items() if entry is not None}
        several = {name for name, entry in recorded.items() if entry.kind != "run"}
        entries = {}
        for name, entry in recorded.items():
            part_of = _above(name, several) if several else ""
            if part_of or name in self._locks or entry.status == "killed":
                entry = alive(entry, self.path(name), name in self._locks, part_of)
            entries[name] = entry
        for name in several:
            entries[name] = summed(entries[name], entries)
        return entries


def _above(name: str, several: set[str]) -> str:
    """The nearest comparison above a folder; empty if there is none."""
    parent = name
    while "/" in parent or parent not in (".", ""):
        parent = parent.rpartition("/")[0] or "."
        if parent in several:
            return parent
        if parent == ".":
            break
    return ""


def alive(entry: Entry, path: Path, locked: bool, part_of: str) -> Entry:
    """The entry of a run with its true status: it is running if a process holds its lock."""
    found = holder(path) if locked else None
    if found is not None and entry.status != "done":
        where = f"process {found.pid}" if found.here else f"on {found.host}" if found.host else found.what
        took = entry.seconds if isnan(entry.started) else time.time() - entry.started
        return replace(entry, status="running", why=where, seconds=took, part_of=part_of)
    if entry.status == "killed":
        return replace(entry, status="stopped", why=entry.why or "killed", part_of=part_of)
    return replace(entry, part_of=part_of) if part_of else entry


def summed(entry: Entry, entries: Mapping[str, Entry]) -> Entry:
    """The entry of a comparison, with the status and the scores that follow from its cells."""
    if entry.status == "damaged":
        return entry
    prefix = "" if entry.name == "." else f"{entry.name}/"
    cells = [(label, entries.get(f"{prefix}{folder}")) for folder, label, _ in entry.cells]
    there = [(label, cell) for label, cell in cells if cell is not None]
    done = sum(cell.status == "done" for _, cell in there)
    failed = sum(cell.status in ("failed", "damaged") for _, cell in there)
    status = entry.status
    if status != "running":
        over = bool(cells) and done + failed == len(cells)
        status = "stopped" if not over else "failed" if failed else "done"
    told = ", ".join(filter(None, (entry.why, f"{failed} failed" if failed else "")))
    scored = [(label, cell) for label, cell in there if cell.status == "done"]
    shared = next((cell for _, cell in there if cell.metric), entry)
    metric = entry.metric or shared.metric
    better = shared.better
    if metric != shared.metric:
        better = "less" if any(metric in cell.less for _, cell in there) else "more"
    name, score = _best(scored, metric, better)
    first = min((cell.started for _, cell in there if not isnan(cell.started)), default=entry.started)
    return replace(
        entry,
        status=status,
        why=told,
        data=", ".join(dict.fromkeys(cell.data for _, cell in there if cell.data)),
        round=done if cells else entry.round,
        metric=metric,
        label=shared.label if metric == shared.metric else metric,
        better=better,
        digits=shared.digits,
        score=score,
        best=name,
        started=first,
        seconds=time.time() - first if status == "running" else entry.seconds,
    )


def _best(scored: Sequence[tuple[str, Entry]], metric: str, better: str) -> tuple[str, float]:
    """The label with the best mean of a score over its finished cells, and this mean."""
    values: dict[str, list[float]] = {}
    for label, cell in scored:
        if metric in cell.scores:
            values.setdefault(label, []).append(cell.scores[metric])
    means = {label: fmean(some) for label, some in values.items()}
    if not means:
        return "", float("nan")
    best = (min if better == "less" else max)(means, key=lambda label: means[label])
    return best, means[best]


def folders(root: Path) -> Iterator[tuple[str, Path, Signature, bool]]:
    """The folders that hold files of Arno: name, path, signature, and whether there is a lock file.

    Links are not followed, and hidden folders are not searched. A folder that cannot be read is left out.
    """
    todo = [("", root)]
    while todo:
        name, path = todo.pop()
        found = here(path)
        if found is None:
            continue
        signature, locked, inner = found
        if signature:
            yield name or ".", path, signature, locked
        todo += [(f"{name}/{one}" if name else one, path / one) for one in inner]


def here(path: Path) -> tuple[Signature, bool, list[str]] | None:
    """The signature of a folder, whether it has a lock file, and the folders in it; None if it cannot be read."""
    signature, locked, inner = Signature(), False, list[str]()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name in _FILES:
                    about = entry.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(about.st_mode):
                        signature[name] = [about.st_mtime_ns, LINK if entry.is_symlink() else about.st_size]
                elif name == ".lock":
                    locked = True
                elif name[0] != "." and name not in INNER and entry.is_dir(follow_symlinks=False):
                    inner.append(name)
                elif name == "pyvenv.cfg":
                    return None
    except OSError:
        return None
    return signature, locked, inner


_FILES = frozenset(FILES)


def load(folder: Path) -> Known:
    """The contents of the index; empty if it is missing, damaged or of another version."""
    try:
        if not (folder / INDEX).is_file() or (folder / INDEX).is_symlink():
            return {}
        head, _, text = read_bytes(folder / INDEX, most=LARGEST).partition(b"\n")
        if head.decode(errors="replace") != f"{FORMAT} {checksum(text)}":
            return {}
        return {
            str(name): (signature, None if entry is None else Entry.from_json(entry))
            for name, (signature, entry) in json.loads(text).items()
        }
    except (ArnoError, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def store(folder: Path, known: Known) -> None:
    """Write the index, completely or not at all.

    It is not written if the folder cannot be written, or if another process writes the index at the same time.
    """
    plain = {n: (signature, None if entry is None else _short(entry)) for n, (signature, entry) in known.items()}
    text = json.dumps(plain, separators=(",", ":")).encode()
    with suppress(ArnoError, OSError), writing(folder, "an index", f"{INDEX}.lock", links=True):
        disk.write(folder / INDEX, f"{FORMAT} {checksum(text)}\n".encode() + text)


def _short(entry: Entry) -> dict[str, object]:
    """The values of an entry that differ from their defaults."""
    return {name: value for name, value in entry.to_json().items() if value != _USUAL[name]}


_USUAL = Entry("").to_json()
