"""Reads members of archives (tar, zip, npz) in memory: nothing is extracted to disk and nothing is unpickled."""

from __future__ import annotations

import gzip
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np

from ..errors import ArnoError
from ..limits import Capped, elements, regular, shortened, unpacked

#: The exceptions for a damaged archive. RuntimeError: it is encrypted; NotImplementedError: its compression is unknown.
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def safe_name(archive: Path, name: str) -> str:
    """The name of a member; a name that points outside its archive is refused."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ArnoError(f"{archive}: member {name!r}", "it points outside the archive", "do not trust this file")
    return name


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise one kind of error for all exceptions of a damaged archive; refuse files that are not regular files."""
    regular(path)
    try:
        yield
    except DAMAGED as error:
        rule = f"damaged or truncated: {shortened(error)}"
        raise ArnoError(str(path), rule, "delete it and download it again") from error


def read_tar(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """The contents of the wanted members of a .tar.gz; they must be regular files."""
    missing = set(wanted)
    found: dict[str, bytes] = {}
    with reading(path), gzip.open(path) as content:
        stream = cast(IO[bytes], Capped(content, path.stat().st_size, str(path)))
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = safe_name(path, member.name)
                unpacked(member.size, path.stat().st_size, f"{path}: member {name!r}")
                if name in missing and member.isreg() and (file := archive.extractfile(member)) is not None:
                    found[name] = file.read()
                    missing.discard(name)
    if missing:
        raise ArnoError(str(path), f"it lacks {', '.join(sorted(missing))}", "is this the published binary archive?")
    return found


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose members have safe names and together a plausible size."""
    with reading(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            safe_name(path, info.filename)
        unpacked(sum(info.file_size for info in archive.infolist()), path.stat().st_size, str(path))
        yield archive


def read_npz(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays of an .npz file. Their sizes are checked before memory is allocated; objects are refused."""
    if not zipfile.is_zipfile(regular(path)):
        raise ArnoError(f"{path}", "it is not an .npz file", "write it with np.savez(path, x=…, y=…)")
    with open_zip(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name.removesuffix(".npy"): _member(archive, name, path) for name in names}


def read_npy(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """The array of an .npy file; it is checked as in `read_npz`."""
    with reading(path), path.open("rb") as file:
        return _array(file, path.stat().st_size, str(path))


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    with archive.open(name) as file:
        return _array(file, archive.getinfo(name).file_size, f"{name} in {path}")


def _array(file: IO[bytes], length: int, what: str) -> np.ndarray[Any, np.dtype[Any]]:
    """The array in a file of `length` bytes; its header is checked before memory is allocated."""
    shape, dtype = _header(file, what)
    size, follow = elements(shape, dtype.itemsize, what), length - file.tell()
    if size != follow:
        rule = f"its header announces {size:,} bytes and {follow:,} follow"
        raise ArnoError(what, rule, "write it again with NumPy")
    file.seek(0)
    return cast("np.ndarray[Any, np.dtype[Any]]", np.lib.format.read_array(file, allow_pickle=False))


def _header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type that the header of an array announces."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception as error:  # NumPy parses the header as Python code, so damaged text can raise many exceptions
        rule = f"its header cannot be read ({shortened(error)})"
        raise ArnoError(what, rule, "write it again with NumPy") from error
    if dtype.kind not in "biufcUS":
        raise ArnoError(what, "it holds Python objects or records", "use arrays of numbers or strings")
    return shape, dtype
