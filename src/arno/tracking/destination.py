"""The trackers that `track=` names, and which rounds of a run each of them has."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArnoError, need, unknown
from ..records import checksummed, disk
from ..records.damage import Damaged
from . import trackers
from .tracker import State, Tracker


class Destination(NamedTuple):
    """A tracker that a setting names.

    word: the setting, e.g. `mlflow@http://localhost:5000`. name: the name of its files in `track/`.
    tracker: the tracker, which is not connected yet.
    """

    word: str
    name: str
    tracker: Tracker

    def file(self, run: Path, suffix: str = "json") -> Path:
        """A file of this tracker in the run's folder."""
        return run / "track" / f"{self.name}.{suffix}"

    def state(self, run: Path) -> State:
        """The state of the tracker; empty before its first connection, and if the file of the state is damaged."""
        try:
            return checksummed.read(self.file(run), run, "uri", "described", "run", "sent", "error")
        except Damaged:
            return {}

    def write_state(self, run: Path, state: State) -> None:
        """Write the state of the tracker, completely or not at all."""
        if self.file(run).is_dir():
            disk.set_aside(self.file(run))
        disk.write(self.file(run), checksummed.text(state).encode())


def asked(track: Any) -> list[Destination]:
    """The trackers that a setting names, with or without an address; an error if one of them cannot work.

    >>> asked(None), [tracker.name for tracker in asked("mlflow@sqlite:///a.db, tensorboard")]
    ([], ['mlflow', 'tensorboard'])
    """
    words = track.split(",") if isinstance(track, str) else list(track or [])
    return [_destination(str(word).strip()) for word in words]


def _destination(word: str) -> Destination:
    name, _, uri = word.partition("@")
    if ":" in name:  # a user's own tracker: file.py:name or module:name
        where, _, attribute = name.rpartition(":")
        short = f"{Path(where).name.removesuffix('.py')}.{attribute}"
        tracker = trackers.get("custom", name)(uri)
        lacks = [part for part in ("remote", "open", "send", "finish", "close") if not hasattr(tracker, part)]
        if lacks:
            what = f"track = {word} returned an object of type {type(tracker).__name__}"
            rule = f"it lacks {', '.join(lacks)}, which a tracker has"
            raise ArnoError(what, rule, "derive its class from arno.tracking.tracker.Tracker")
        return Destination(word, short, tracker)
    if name not in trackers.names():
        raise unknown("tracker", name, trackers.names())
    for package in trackers.info(name)["needs"]:
        if find_spec(package) is None:
            raise need(name, package)
    return Destination(word, name, trackers.get(name)(uri))


def single(word: str) -> Destination:
    """The tracker of a setting that must name exactly one tracker."""
    found = asked(word)
    if len(found) != 1:
        raise ArnoError(f"--to {word}", "it must name one tracker", "call arno track once for each of them")
    return found[0]
