"""One writer per folder: a lock that the system releases when the process that holds it ends.

POSIX record locks (`fcntl.lockf`) work on local disks, and on network file systems whose server supports them. Worker
processes do not inherit them, so no lock remains after a run was killed.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from ..errors import ArnoError, Busy
from ..limits import CONFIG, inside, read_bytes, shortened

#: Lock files that this process holds; a record lock does not stop the same process from taking the lock again.
_HELD: set[Path] = set()
#: The layout of `struct flock`, and the positions of its type and its process in it.
_FLOCK = {"linux": ("hhqqi4x", 0, 4), "darwin": ("qqihh", 3, 2)}


class Holder(NamedTuple):
    """The process that holds a lock. here: whether it runs on this machine, as the system confirms."""

    what: str
    host: str
    pid: int
    here: bool


@contextmanager
def writing(folder: Path, what: str, name: str = ".lock", links: bool = False) -> Iterator[None]:
    """Hold the lock of a folder; an error if another process, or another thread of this process, holds it.

    what: what is written ("a run", "a comparison"), for the error of other processes. name: the lock file in the
    folder. links: whether the folder may hold links that lead out of it, because nothing is written through them.
    """
    try:
        place = folder.resolve() / name
        if place in _HELD:
            raise _refused(folder, f"{what} in this process")
        folder.mkdir(parents=True, exist_ok=True)
        if links:
            refuse_link(folder, place)
        else:
            refuse_links(folder)
        file = _taken(place)
    except OSError as error:
        raise ArnoError(f"out = {folder}", f"cannot be written ({error.strerror})", "choose another out=") from error
    except RuntimeError as error:
        raise ArnoError(f"out = {folder}", "is a link that leads to itself", "choose another out=") from error
    if file is None:
        raise _refused(folder, _holder(place))
    with file:
        _HELD.add(place)
        try:
            _sign(file, what)
            yield
        finally:
            _HELD.discard(place)
            with suppress(OSError):
                place.unlink()


def refuse_links(folder: Path) -> None:
    """Refuse links that lead out of a folder: writing through such a link would change other files."""
    for place in (folder, *(folder / name for name in ("checkpoints", "track", "tensorboard"))):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink():
                    refuse_link(folder, Path(entry.path))


def refuse_link(folder: Path, path: Path) -> None:
    """Refuse a link that leads out of a folder."""
    if path.is_symlink():
        inside(folder, path)


def holder(folder: Path, name: str = ".lock") -> Holder | None:
    """The process that holds the lock of a folder; None if no process holds it. The lock does not change.

    The file names the process that wrote it. The system tells whether the lock is held, and by which process. A killed
    process holds no lock, even if the file names it.
    """
    place = (folder / name).resolve()
    if place in _HELD:
        return Holder("a run", socket.gethostname(), os.getpid(), True)
    try:
        if not stat.S_ISREG((folder / name).lstat().st_mode):  # a link can lead to the lock of another folder
            return None
        with (folder / name).open("rb") as file:
            signed, pid = _signed(file.read(4096)), _owner(file.fileno())
    except OSError:  # the file was removed, or the file system has no locks
        return None
    if pid is None or signed is None:
        return None if pid is None else Holder("another process", "", 0, False)
    what, host, number = signed
    return Holder(what, host, number, host == socket.gethostname() and number == pid > 0)


def _owner(file: int) -> int | None:
    """The process that holds the lock of an open file; None if no process does; 0 if the system does not tell it."""
    if sys.platform not in _FLOCK:
        return 0
    import fcntl

    layout, kind, process = _FLOCK[sys.platform]
    ask = [0] * 5
    ask[kind] = fcntl.F_WRLCK
    found = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *ask)))
    return None if found[kind] == fcntl.F_UNLCK else max(found[process], 0)


def _taken(place: Path) -> TextIO | None:
    """The lock file, open and locked; None if another process holds it."""
    while True:
        file = place.open("a+")
        if not _locked(file):
            file.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), place.stat()):
                return file
        file.close()  # the last holder has removed this file after it was opened here


def _locked(file: TextIO) -> bool:
    """Take the lock; return whether this was possible. On file systems without locks, every process gets the lock."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return True


def _sign(file: TextIO, what: str) -> None:
    """Write into the file which process holds the lock, for the error of other processes."""
    with suppress(OSError):
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "what": what}) + "\n")
        file.flush()


def _signed(text: bytes) -> tuple[str, str, int] | None:
    """What is written, the machine and the process, read from the text of a lock file."""
    try:
        held = json.loads(text)
        return str(held["what"]), str(held["host"]), int(held["pid"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _holder(place: Path) -> str:
    try:
        signed = _signed(read_bytes(place, most=CONFIG))
    except ArnoError:
        signed = None
    return "another process" if signed is None else shortened(f"{signed[0]} in process {signed[2]} on {signed[1]}")


def _refused(folder: Path, holder: str) -> Busy:
    return Busy(f"{folder}", f"is being written by {holder}", "wait until it ends, or end it first")
