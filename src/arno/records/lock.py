"""A lock file: one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ArnoError


@contextmanager
def locked(path: Path, error: ArnoError) -> Iterator[None]:
    """Hold the lock of the file `path`; raises `error` if another process holds it. Systems without fcntl: no lock."""
    with path.open("w") as file:
        try:
            import fcntl
        except ImportError:
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise error from None
        yield
