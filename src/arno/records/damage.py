"""The error for a damaged file of a run, how its files are read, and their checksum."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from ..errors import ArnoError
from ..limits import read_bytes


class Damaged(ArnoError):
    """A file of a run is damaged or missing."""


def damaged(file: Path | str, rule: str, folder: Path) -> Damaged:
    """The error for a file of the run in `folder`; its remedy is `arno repair`."""
    return Damaged(f"{file}", rule, f"arno repair {folder}")


def content(file: Path, folder: Path) -> bytes:
    """The content of a file of the run in `folder`; refuses a missing file, and a folder or a pipe in its place."""
    try:
        return read_bytes(file)
    except ArnoError as error:
        raise damaged(file, error.args[1], folder) from error


def checksum(data: bytes) -> str:
    """The CRC-32 of some bytes, as eight hexadecimal digits.

    >>> checksum(b"arno")
    'd3d8c9a4'
    """
    return f"{crc32(data):08x}"
