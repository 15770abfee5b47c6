"""One writer per folder: a lock that ends with the process that holds it.

POSIX record locks (`fcntl.lockf`) work on local disks and, where the server supports them, on network file systems.
Worker processes do not inherit them, so a killed run leaves no lock behind.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ..errors import ArnoError, Busy
from ..limits import CONFIG, inside, parse_json, read_bytes, shortened

#: Lock files that this process holds: record locks do not exclude the process itself.
_HELD: set[Path] = set()


@contextmanager
def writing(folder: Path, what: str, name: str = ".lock") -> Iterator[None]:
    """Hold the lock of a folder; refused at once if another process, or another thread of this one, holds it.

    what: what is written, for the message to others: "a run", "a comparison". name: the lock file in the folder.
    """
    try:
        place = folder.resolve() / name
        if place in _HELD:
            raise _refused(folder, f"{what} in this process")
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        file = _taken(place)
    except OSError as error:
        raise ArnoError(f"out = {folder}", f"cannot be written ({error.strerror})", "choose another out=") from error
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
    """Refuse links that lead out of a folder: what is written through them would change other files."""
    for place in (folder, *(folder / name for name in ("checkpoints", "track", "tensorboard"))):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink():
                    inside(folder, Path(entry.path))


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
        file.close()  # its last holder has removed the file since it was opened


def _locked(file: TextIO) -> bool:
    """Whether the lock could be taken; on file systems without locks every process gets it."""
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
    """Write down who holds the lock, for the message to others."""
    with suppress(OSError):
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "what": what}) + "\n")
        file.flush()


def _holder(place: Path) -> str:
    try:
        held = parse_json(read_bytes(place, most=CONFIG), f"{place}")
        return shortened(f"{held['what']} in process {int(held['pid'])} on {held['host']}")
    except (ArnoError, ValueError, KeyError, TypeError):
        return "another process"


def _refused(folder: Path, holder: str) -> Busy:
    return Busy(f"{folder}", f"is being written by {holder}", "wait for it, or end it first")
