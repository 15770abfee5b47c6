"""Reads the folder repeatedly while a page is open, and keeps its entries."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from ..analysis.run_entry import Entry
from ..analysis.run_index import Catalogue

#: Seconds between two readings. The whole folder is read less often: this takes at most 1/SHARE of the time.
PAUSE, SHARE = 0.6, 10


def public(name: str) -> str:
    """The name of an entry on the page: bytes that are not text become \\udcff, which an address can hold.

    >>> public("runs/a"), public("a\\udcff")
    ('runs/a', 'a\\\\udcff')
    """
    return name.encode(errors="backslashreplace").decode()


class Watcher:
    """The entries of a folder as they are now; several connections share one."""

    def __init__(self, folder: Path) -> None:
        self.catalogue = Catalogue(folder)
        self._lock, self._whole, self._cost = Lock(), 0.0, 0.0

    def look(self, names: Iterable[str] = (), fresh: bool = False) -> dict[str, Entry]:
        """The entries. The named and the running ones are read again; all others only after some time.

        fresh: read all entries again.
        """
        with self._lock:
            now = time.monotonic()
            if fresh or not self._whole or now - self._whole >= max(PAUSE, SHARE * self._cost):
                entries = self.catalogue.read()
                self._whole = time.monotonic()
                self._cost = self._whole - now
                return entries
            running = [name for name, entry in self.catalogue.entries.items() if entry.status == "running"]
            known = [name for name in names if name in self.catalogue.entries]
            return self.catalogue.again({*running, *known})

    def called(self, names: Iterable[str]) -> list[str]:
        """The names of the entries whose names on the page are these; an unknown name stays as it is."""
        odd = {public(name): name for name in self.catalogue.entries if not name.isascii()}
        return [odd.get(name, name) for name in names]

    def paths(self, names: Iterable[str]) -> list[Path]:
        """The folders of the named entries. Other names are left out, so a request cannot name another folder."""
        return [self.catalogue.path(name) for name in names if name in self.catalogue.entries]
