"""The format of `metrics.jsonl` and its reader. A line is the JSON record of a round, and begins with its checksum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ArnoError
from ..limits import Unreadable, regular
from .damage import Damaged, checksum, damaged

Row = dict[str, Any]
NAME = "metrics.jsonl"
#: The beginning of a line: the checksum of the rest of the line; in release 0.1, the round.
BEGIN, EARLIER = b'{"crc": "', b'{"round": '
DIGITS = len(BEGIN) + 8
#: The largest number of bytes of a line.
LONGEST = 2**24
#: The most seconds of a round: times are added up and shown as hours.
LONGEST_ROUND = 1e9


def line(row: Row, mark: str = "") -> str:
    """The line of a round. mark: the mark of the run, see `RunFolder.mark`.

    >>> line({"round": 1, "gap": 0.5})
    '{"crc": "cf3d9d62", "round": 1, "gap": 0.5}\\n'
    """
    text = json.dumps({"run": mark, **row} if mark else row)[1:] + "\n"
    return f'{{"crc": "{checksum(text.encode())}", {text}'


class Reader:
    """Reads a file that can still grow. An incomplete last line is left for a later call, when it may be complete.

    Reading ends before a line that is too long. Every line must have its checksum and the mark of the run, and the
    rounds of the lines must follow each other.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, NAME)
    ...     _ = path.write_text(line({"round": 1}) + '{"rou')
    ...     reader = Reader(path)
    ...     first = list(reader.rows())
    ...     _ = path.write_text(line({"round": 1}) + line({"round": 2}))
    ...     first, list(reader.rows())
    ([{'round': 1}], [{'round': 2}])
    """

    def __init__(self, path: Path, mark: str = "") -> None:
        self.path, self.mark, self.at, self._line = path, mark, 0, 0
        self._round: int | None = None

    def rows(self, most: int | None = None) -> Iterator[Row]:
        """The next rows, at most `most`; none if the file does not exist. `at` becomes the byte after the last row."""
        if not self.path.exists():
            return
        try:
            regular(self.path)  # reading from a pipe can wait without end
        except Unreadable:
            raise
        except ArnoError as error:
            raise damaged(self.path, error.args[1], self.path.parent) from error
        with self.path.open("rb") as file:
            file.seek(self.at)
            while most is None or most > 0:
                text = file.readline(LONGEST)
                if not text.endswith(b"\n"):
                    return
                row = self._checked(text)
                self.at, self._line, self._round = self.at + len(text), self._line + 1, row["round"]
                most = None if most is None else most - 1
                yield row

    def _checked(self, text: bytes) -> Row:
        where, folder = f"{self.path}, line {self._line + 1}", self.path.parent
        row = parsed(text)
        if row is None:
            raise damaged(where, "is no record of a round", folder)
        mark = row.pop("run", "")
        self.mark = self.mark or mark
        if mark not in ("", self.mark):
            raise damaged(where, "belongs to another run", folder)
        if self._round is not None and row["round"] != self._round + 1:
            raise damaged(where, f"holds round {row['round']} after round {self._round}", folder)
        return row


def parsed(text: bytes) -> Row | None:
    """The row of a line without its checksum; None if the line is damaged.

    >>> parsed(line({"round": 3}).encode()), parsed(b'{"round": 3}'), parsed(line({"round": 3}).encode()[:-3])
    ({'round': 3}, {'round': 3}, None)
    """
    if text.startswith(BEGIN):
        text, found = text[DIGITS + 3 :], text[len(BEGIN) : DIGITS + 3]
        if found != f'{checksum(text)}", '.encode():
            return None
        text = b"{" + text
    elif not text.startswith(EARLIER):
        return None
    try:
        row = json.loads(text)
        whole = type(row["round"]) is int and isinstance(row.get("run", ""), str)
        numbers = all(_number(row[k]) for k in row if k != "run")
        return row if whole and numbers and 0 <= row.get("seconds", 0) <= LONGEST_ROUND else None
    except (ValueError, KeyError, RecursionError):
        return None


def _number(value: Any) -> bool:
    """Whether a value is a number that a table can hold. (Whole numbers in JSON can have any size.)"""
    return isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def read(folder: Path) -> list[Row]:
    """All rounds that a run has recorded."""
    return list(Reader(folder / NAME).rows())


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file of records, up to a line that is too long."""
    with path.open("rb") as file:
        while (text := file.readline(LONGEST)) and (text.endswith(b"\n") or len(text) < LONGEST):
            yield text


def up_to(folder: Path, t: int) -> bytes:
    """The lines of the records up to round `t`; they end before a damaged line."""
    reader, end = Reader(folder / NAME), 0
    with suppress(Damaged):
        for row in reader.rows():
            if row["round"] > t:
                break
            end = reader.at
    if not end:
        return b""
    with (folder / NAME).open("rb") as file:
        return file.read(end)
