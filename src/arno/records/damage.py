"""The error for a damaged file of a run, how its files are read, and their checksums."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from ..errors import ArnoError
from ..limits import TEXT, Unreadable, inside, read_bytes, readable, regular

#: Bytes of a file that are read at a time.
PIECE = 2**20


class Damaged(ArnoError):
    """A file of a run is damaged or missing."""


def damaged(file: Path | str, rule: str, folder: Path) -> Damaged:
    """The error for a file of the run in `folder`; its remedy is `arno repair`."""
    return Damaged(f"{file}", rule, f"arno repair {folder}")


def content(file: Path, folder: Path, most: int = TEXT) -> bytes:
    """The content of a file of the run in `folder`; refuses a missing file, and a folder or a pipe in its place.

    most: a larger file is refused. A link must stay in the folder.
    """
    try:
        return read_bytes(inside(folder, file), most=most)
    except Unreadable:
        raise
    except ArnoError as error:
        raise damaged(file, error.args[1], folder) from error


def file_checksum(file: Path, folder: Path, size: int | None = None) -> str:
    """The checksum of a file of any size; empty if the file does not have `size` bytes, which are then not read."""
    try:
        if size is not None and regular(inside(folder, file)).stat().st_size != size:
            return ""
        crc = 0
        with readable(inside(folder, file)).open("rb") as opened:
            while piece := opened.read(PIECE):
                crc = crc32(piece, crc)
        return f"{crc:08x}"
    except Unreadable:
        raise
    except ArnoError as error:
        raise damaged(file, error.args[1], folder) from error
    except OSError as error:
        raise damaged(file, f"cannot be read ({error.strerror})", folder) from error


def checksum(data: bytes) -> str:
    """The CRC-32 of some bytes, as eight hexadecimal digits.

    >>> checksum(b"arno")
    'd3d8c9a4'
    """
    return f"{crc32(data):08x}"
