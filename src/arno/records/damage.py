"""The error for a damaged file of a run, and the checksum of its text files."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from ..errors import ArnoError


class Damaged(ArnoError):
    """A file of a run is damaged or missing."""


def damaged(file: Path | str, rule: str, folder: Path) -> Damaged:
    """The error for a file of the run in `folder`; its remedy is `arno repair`."""
    return Damaged(f"{file}", rule, f"arno repair {folder}")


def checksum(data: bytes) -> str:
    """The CRC-32 of some bytes, as eight hexadecimal digits.

    >>> checksum(b"arno")
    'd3d8c9a4'
    """
    return f"{crc32(data):08x}"
