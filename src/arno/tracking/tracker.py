"""The base class of trackers, and the records that they receive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..records.folder import RunFolder

#: The state that a tracker stores between its connections: plain values, stored as JSON in the run's folder.
State = dict[str, Any]
#: The suffixes of the files of a finished run that a tracker receives.
KINDS = (".yaml", ".json", ".png", ".safetensors", ".parquet", ".txt", ".npy")


class Record(NamedTuple):
    """The numbers of one round; `time` is in seconds since 1970."""

    round: int
    time: float
    values: dict[str, float]


class Tracker(ABC):
    """Receives the records of one run. It must accept the same record twice.

    uri: the address after the @ of `track=mlflow@http://localhost:5000`; empty if there is none.
    remote: whether records are sent over a network. At its end, a run waits only a few seconds for a remote tracker.
    """

    remote = False

    def __init__(self, uri: str = "") -> None:
        self.uri = uri

    @abstractmethod
    def open(self, folder: RunFolder, state: State) -> None:
        """Connect. `state` holds the values that earlier connections stored; store in it what later ones need."""

    @abstractmethod
    def send(self, records: Sequence[Record]) -> None:
        """Receive the records of some rounds."""

    @abstractmethod
    def finish(self, folder: RunFolder, status: str) -> None:
        """Receive the files of the run's folder after its end. status: done, failed or interrupted."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


def files(folder: RunFolder) -> list[Path]:
    """The files of a finished run that a tracker receives: configuration, manifest, pictures, models, tables."""
    return sorted(path for path in folder.path.iterdir() if path.is_file() and path.suffix in KINDS)
