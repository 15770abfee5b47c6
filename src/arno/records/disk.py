"""Files that are written completely or not at all, and what must be on the disk before the run continues."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write(path: Path, data: bytes, sync: bool = False) -> None:
    """Write a file under a temporary name and rename it; with `sync` its content is on the disk before its name is."""
    temporary = path.with_name(path.name + ".part")
    try:
        if temporary.is_symlink() or not temporary.is_file():  # a link would be followed, and a pipe would block
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
    """Write the names in a folder to the disk; systems that cannot do this for a folder are skipped."""
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
    """Rename a file to a free name with the suffix `.damaged`; returns that name."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged{number}")
    path.replace(aside)
    return aside
