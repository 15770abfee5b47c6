"""Details of one run or comparison, which its line in the list of runs does not show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArnoError
from ..limits import inside
from ..limits import words as split
from ..records import checksummed
from .run_entry import Entry, settings

#: How many bytes are read from the end of a log.
LOG = 2**14


@dataclass(frozen=True)
class Details:
    """Details of a run or comparison.

    scores: the labels and values of the last evaluation. settings: the settings that the user gave. log: the last
    lines of the log. about: versions and sizes.
    """

    scores: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    command: str = ""
    log: list[str] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The details as plain values."""
        return {"shown": dict(self.scores), "settings": self.settings, "command": self.command, "log": self.log}


def details(path: Path, entry: Entry) -> Details:
    """The details of an entry. What cannot be read is left out; the status of the entry is then `damaged`."""
    if entry.kind != "run":
        command = _value(path, "compare.json", "command")
        return Details(command=command, log=log(path))
    from ..records.folder import RunFolder

    folder = RunFolder(path)
    try:
        config = settings(path)
        declared = {metric.name: metric for metric in folder.metrics()} if (path / "manifest.json").exists() else {}
    except ArnoError:
        return Details(log=log(path))
    shown = [(declared[n].label, declared[n].show(value)) for n, value in entry.scores.items() if n in declared]
    names = ("arno", "python", "torch", "platform", "device", "kernel", "parameters", "client_count")
    command = _value(path, "manifest.json", "command")
    given = changed(config, command)
    found = {{"client_count": "clients"}.get(name, name): _value(path, "manifest.json", name) for name in names}
    about = {name: text for name, text in found.items() if text and given.get(name) != text}
    return Details(shown, given, command, log(path), about)


def changed(config: Mapping[str, Any], command: str) -> dict[str, str]:
    """The settings that the user gave in the command; for a run that was started from Python, all settings."""
    from ..config.settings import written

    try:
        words = [word.partition("=") for word in split(command, "the manifest")[2:]]
    except ArnoError:  # a quotation mark without its partner
        words = []
    return {k: v for k, _, v in words if k != "out"} or {k: written(v) for k, v in config.items() if k != "out"}


def _value(path: Path, file: str, name: str) -> str:
    try:
        found = checksummed.read(path / file, path, "status", "command").get(name)
    except ArnoError:
        return ""
    return "" if found is None else str(found)


def log(path: Path, lines: int = 200) -> list[str]:
    """The last lines of the log of a run; empty if it is not a regular file or is a link out of the folder."""
    file = path / "log.txt"
    try:
        if not inside(path, file).is_file():
            return []
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(size - LOG, 0))
            text = opened.read(LOG).decode(errors="replace")
    except (OSError, ArnoError):
        return []
    return text.splitlines()[1 if size > LOG else 0 :][-lines:]


def differing(paths: Sequence[Path], entries: Sequence[Entry]) -> list[list[str]]:
    """Rows of a key and its value in each run: the settings that differ, then the scores."""
    return [*_settings(paths), *_scores(entries)]


def _settings(paths: Sequence[Path]) -> Iterator[list[str]]:
    from ..config.settings import written

    configs = [settings(path) for path in paths]
    keys = {key: None for config in configs for key in config if key != "out"}
    for key in keys:
        values = [written(config[key]) if key in config else "–" for config in configs]
        if len(set(values)) > 1:
            yield [key, *values]


def _scores(entries: Sequence[Entry]) -> Iterator[list[str]]:
    yield ["status", *(entry.status for entry in entries)]
    yield ["round", *(f"{entry.round}/{entry.rounds}" for entry in entries)]
    for name in {name: None for entry in entries for name in entry.scores}:
        yield [name, *(f"{entry.scores[name]:.6g}" if name in entry.scores else "–" for entry in entries)]
