"""The error for a damaged file of a run; reading and checksums of the files of a run."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from ..errors import ArnoError
from ..limits import TEXT, Unreadable, inside, read_bytes, readable, regular

#: How many bytes of a file are read at a time.
PIECE = 2**20


class Damaged(ArnoError):
    """A file of a run is damaged or missing."""


def damaged(file: Path | str, rule: str, folder: Path) -> Damaged:
    """The error for a file of the run in `folder`; its remedy is `arno repair`."""
    return Damaged(f"{file}", rule, f"arno repair {folder}")


def content(file: Path, folder: Path, most: int = TEXT) -> bytes:
    """The content of a file of the run in `folder`; an error if the file is missing, or is a folder or a pipe.

    A link must not lead out of the folder. most: the largest size in bytes; a larger file is an error.
    """
    try:
        return read_bytes(inside(folder, file), most=most)
    except Unreadable:
        raise
    except ArnoError as error:
        raise damaged(file, error.args[1], folder) from error


def file_checksum(file: Path, folder: Path, size: int | None = None) -> str:
    """The checksum of a file of any size. If the file has another size than `size`: empty, and the file is not read."""
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
