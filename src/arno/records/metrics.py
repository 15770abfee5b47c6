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
    """Reads a file that may still grow. It leaves a last line without its end, which a later call may find complete.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, NAME)
    ...     _ = path.write_text('{"round": 1}\\n{"rou')
    ...     reader = Reader(path)
    ...     first = list(reader.rows())
    ...     _ = path.write_text('{"round": 1}\\n{"round": 2}\\n')
    ...     first, list(reader.rows())
    ([{'round': 1}], [{'round': 2}])
    """

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._line = path, 0, 0

    def rows(self, most: int | None = None) -> Iterator[Row]:
        """The next rows, at most `most`; nothing while the file does not exist."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            while most is None or most > 0:
                line = file.readline()
                if not line.endswith(b"\n"):
                    return
                row = self._parsed(line)
                self._at, self._line = self._at + len(line), self._line + 1
                most = None if most is None else most - 1
                yield row

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


def up_to(folder: Path, t: int) -> str:
    """The text of the records up to round `t`, without a damaged line and what follows it."""
    kept: list[str] = []
    with suppress(ArnoError):
        for row in Reader(folder / NAME).rows():
            if row["round"] <= t:
                kept.append(json.dumps(row) + "\n")  # noqa: PERF401  `extend` need not keep rows before an error
    return "".join(kept)
