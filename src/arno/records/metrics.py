"""The one reader of `metrics.jsonl`: a line of JSON per round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ArnoError

Row = dict[str, Any]
NAME = "metrics.jsonl"


class Reader:
    """The complete lines of a file that may still grow. A last line without its end is left for later."""

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._line = path, 0, 0

    def rows(self, most: int | None = None) -> Iterator[Row]:
        """Up to `most` further rows."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            while most is None or most > 0:
                line = file.readline()
                if not line.endswith(b"\n"):
                    return
                yield self._parsed(line)
                self._at, self._line = self._at + len(line), self._line + 1
                most = None if most is None else most - 1

    def more(self) -> bool:
        """Whether there is something left to read."""
        return self.path.exists() and self.path.stat().st_size > self._at

    def _parsed(self, line: bytes) -> Row:
        try:
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row["round"], int):
                return row
        except (ValueError, KeyError):
            pass
        where = f"{self.path}, line {self._line + 1}"
        raise ArnoError(where, "is no record of a round", "arno resume RUN goes back to the last checkpoint")


def read(folder: Path) -> list[Row]:
    """All rounds that a run has recorded."""
    return list(Reader(folder / NAME).rows())


def upto(folder: Path, t: int) -> str:
    """The text of the records up to round t; what follows a damaged line is left out."""
    kept: list[str] = []
    with suppress(ArnoError):
        kept.extend(json.dumps(row) + "\n" for row in Reader(folder / NAME).rows() if row["round"] <= t)
    return "".join(kept)
