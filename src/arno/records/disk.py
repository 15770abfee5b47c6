"""Writing of files, completely or not at all, and flushing them to the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write(path: Path, data: bytes, sync: bool = False) -> None:
    """Write a file under a temporary name and rename it. sync: flush its content to the disk before it is renamed."""
    temporary = path.with_name(path.name + ".part")
    try:
        if temporary.is_symlink() or not temporary.is_file():  # a link leads elsewhere; opening a pipe can wait forever
            temporary.unlink(missing_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk, if the system can do this."""
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove(path: Path) -> None:
    """Remove a file; a folder in its place is set aside."""
    if path.is_dir() and not path.is_symlink():
        set_aside(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a file to an unused name with the suffix `.damaged`; return this name."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged{number}")
    path.replace(aside)
    return aside
