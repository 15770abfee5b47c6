"""The current folder stays the same while a run is written: the paths of the run are relative to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ArnoError

#: The folders of the runs that this process writes by relative paths.
_written: list[Path] = []


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Refuse `os.chdir` until the end of the block, where the path of the run is relative.

    Own code that changes the current folder would otherwise send the rest of the run to another place.
    """
    if path.is_absolute():
        yield
        return
    _watch_once()
    _written.append(path)
    try:
        yield
    finally:
        _written.remove(path)


@cache
def _watch_once() -> None:
    sys.addaudithook(_watch)  # Python cannot remove it again


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.chdir" and _written:
        rule = f"the run writes to {_written[-1]}, which is relative to the current folder"
        raise ArnoError(f"os.chdir({arguments[0]!r})", rule, "use absolute paths in your own code, or for out=")
