"""Count the file operations of a process in one folder, and end the process, or fill the disk, at a chosen one.

An operation is: open a file for writing, write, sync, rename, remove, make or remove a folder. They are seen by the
audit events of Python, by a wrapper of `os.fsync`, by a wrapper of files that are open for writing, and by one of the
function that writes safetensors.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What happens at the chosen operation. kill: SIGKILL before it. torn: SIGKILL in the middle of it, if it is a write.
#: full: it and every later write fails, the disk is full. int, term: a signal arrives before it. twice: one before it
#: and one before the operation after it.
SIGNALS = {"int": signal.SIGINT, "term": signal.SIGTERM, "twice": signal.SIGINT}
ACTIONS = ("kill", "torn", "full", *SIGNALS)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")


class Operations:
    """The operations under `root` so far. at: the number of the chosen one, from 1; 0: none, they are counted only."""

    def __init__(self, root: Path, at: int = 0, action: str = "kill", journal: Path | None = None) -> None:
        self.root, self.at, self.action = str(root.resolve()), at, action
        self.journal = None if journal is None else os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.count, self.owner = 0, os.getpid()

    def inside(self, path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        full = os.path.join(os.getcwd(), os.fsdecode(path))  # no realpath: that would be slow
        return os.path.normpath(full).startswith(self.root)

    def reached(self, what: str) -> bool:
        """Count an operation; whether the chosen one is reached."""
        if os.getpid() != self.owner:  # workers that were forked have no folder of their own
            return False
        self.count += 1
        if self.journal is not None:
            os.write(self.journal, f"{what}\n".encode())
        if self.action in SIGNALS:
            if self.at and self.at <= self.count <= self.at + (self.action == "twice"):
                os.kill(self.owner, SIGNALS[self.action])
            return False
        return bool(self.at) and (self.count == self.at or (self.action == "full" and self.count > self.at))

    def step(self, what: str, removes: bool = False) -> None:
        """Before an operation that is no write."""
        if self.reached(what):
            if self.action != "full":
                die()
            elif not removes:
                raise no_space()

    def write(self, what: str, half: Callable[[], Any]) -> None:
        """Before a write; `half` does some of it."""
        if self.reached(what):
            if self.action in ("torn", "full"):
                half()
            if self.action == "full":
                raise no_space()
            die()


class Watched:
    """A file that is open for writing."""

    def __init__(self, file: Any, operations: Operations, name: str) -> None:
        self._file, self._operations, self._name = file, operations, name

    def write(self, data: Any) -> Any:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._operations.write(f"write {self._name}", half)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)


def die() -> None:
    """End this process and its group, as a power cut would."""
    os.killpg(0, signal.SIGKILL)


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def install(operations: Operations) -> None:
    """Watch this process."""
    sys.addaudithook(lambda event, arguments: audit(operations, event, arguments))
    plain_open, plain_sync = io.open, os.fsync

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        found = plain_open(file, mode, *rest, **more)
        if any(letter in mode for letter in "wax+") and operations.inside(file):
            return Watched(found, operations, short(operations, file))
        return found

    def fsync(file: Any) -> None:
        operations.step("fsync")
        plain_sync(file)

    builtins.open = io.open = opened  # type: ignore[assignment]
    os.fsync = fsync  # type: ignore[assignment]
    watch_safetensors(operations)


def audit(operations: Operations, event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITING and operations.inside(path):
            operations.step(f"open {short(operations, path)}")
    elif event in EVENTS and operations.inside(arguments[0]):
        removes = event in ("os.remove", "os.rmdir")
        operations.step(f"{event.removeprefix('os.')} {short(operations, arguments[0])}", removes)


def watch_safetensors(operations: Operations) -> None:
    """The library writes files without Python's functions."""
    from safetensors import SafetensorError
    from safetensors import numpy as of_numpy

    import arno.records.checkpoint as of_torch

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def save(tensors: Any, path: Any, *rest: Any, **more: Any) -> Any:
            def half() -> None:
                plain(tensors, path, *rest, **more)
                with os.fdopen(os.open(path, os.O_RDWR), "rb+") as file:
                    file.truncate(os.path.getsize(path) // 2)

            try:
                operations.write(f"save {short(operations, path)}", half)
            except OSError as error:
                raise SafetensorError(f"Error while serializing: I/O error: {error}") from error
            return plain(tensors, path, *rest, **more)

        return save

    of_torch.save_file = watched(of_torch.save_file)  # type: ignore[attr-defined]
    of_numpy.save_file = watched(of_numpy.save_file)


def short(operations: Operations, path: Any) -> str:
    full = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
    return full[len(operations.root) + 1 :]


def from_environment() -> None:
    """Watch a process that was started with ARNO_TORTURE=ROOT:NUMBER:ACTION; for `sitecustomize`."""
    root, at, action = os.environ["ARNO_TORTURE"].rsplit(":", 2)
    install(Operations(Path(root), int(at), action))
