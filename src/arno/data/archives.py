"""Read members of archives (tar, zip, npz) in memory: nothing is extracted to disk and nothing is unpickled."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import ArnoError


def safe_name(archive: Path, name: str) -> str:
    """The name of a member; a name that points outside its archive is refused."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ArnoError(f"{archive}: member {name!r}", "it points outside the archive", "do not trust this file")
    return name


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise one kind of error for all exceptions of a damaged archive."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise ArnoError(str(path), f"damaged or truncated: {error}", "delete it and download it again") from error


def read_tar(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """The contents of the wanted members of a .tar.gz; they must be regular files."""
    missing = set(wanted)
    found: dict[str, bytes] = {}
    with reading(path), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = safe_name(path, member.name)
            if name in missing and member.isreg() and (file := archive.extractfile(member)) is not None:
                found[name] = file.read()
                missing.discard(name)
    if missing:
        raise ArnoError(str(path), f"it lacks {', '.join(sorted(missing))}", "is this the published binary archive?")
    return found


def read_npz(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays of an .npz file; OSError or ValueError if it is no .npz file, is damaged or holds objects."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except TypeError:
        raise ValueError("it is a single array, not an .npz file") from None
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error
