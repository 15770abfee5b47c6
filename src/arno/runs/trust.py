"""What a stored run may import and connect to.

A run folder can name files (`method.target=my_method.py:factory`), trackers and a Ray cluster, which can run code on
this machine. The author of the folder chose these names. Therefore a run that continues uses them only if this user
started the run on this machine with the same files, trackers and cluster. A note outside the folder records this: a
digest inside the folder would prove nothing, because the author of the folder could write it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ..config.settings import flat
from ..errors import ArnoError
from ..limits import TEXT, place, read_bytes, read_json, shortened

#: Settings that `arno resume` may replace before they are used.
REPLACED = ("track", "engine.address")


def targets(config: Mapping[str, Any]) -> list[str]:
    """The names in a configuration that are not part of Arno: a user's factories and trackers, addresses, a cluster.

    >>> targets({"method": {"kind": "custom", "target": "mine.py:factory"}, "model": {"kind": "mlp"}})
    ['mine.py:factory']
    >>> targets({"method.target": "mine.py:factory", "track": "wandb,mlflow@http://there:5000"})
    ['mine.py:factory', 'mlflow@http://there:5000']
    """
    return [name for key, value in flat(config) for name in _outside(key, value)]


def named(overrides: Sequence[str]) -> list[str]:
    """The names in overrides that are not part of Arno; see `targets`.

    >>> named(["rounds=5", "method.target=mine.py:factory"])
    ['mine.py:factory']
    """
    return [name for key, value in _pairs(overrides) for name in _outside(key, value)]


def replaced(overrides: Sequence[str]) -> list[str]:
    """The settings of `REPLACED` that overrides give; the values in the stored run are then not used."""
    return [key for key, _ in _pairs(overrides) if key in REPLACED]


def note(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a note outside the folder: this user started this run with these files, trackers and cluster."""
    named = targets(config)
    if not named:
        return
    with suppress(OSError):  # without the note, `arno resume` asks for --trust
        path = _note_of(folder)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"folder": str(folder.resolve()), "files": {t: digest(t) for t in named}}, indent=2)
        temporary = path.with_suffix(f".{os.getpid()}.part")
        temporary.write_text(text + "\n")
        temporary.replace(path)


def check(
    folder: Path, config: Mapping[str, Any], allowed: Collection[str] = (), unused: Collection[str] = REPLACED
) -> None:
    """Raise an error if a stored configuration names files, trackers or a cluster that this user has not used for it.

    allowed: names that are allowed in any case. unused: settings of `REPLACED` whose values are not used.
    """
    asked = [(key, name) for key, value in flat(config) if key not in unused for name in _outside(key, value)]
    odd = [(key, name) for key, name in asked if name not in allowed and not _known(folder, name)]
    if odd:
        files = ", ".join(_shown(name) for _, name in odd)
        raise ArnoError(
            f"{folder} names {', '.join(shortened(name) for _, name in odd)}",
            f"continuing it would run code from {files}, which you have not used for this run on this machine",
            f"read the code, then add --trust, or name it again ({' '.join(f'{key}={name}' for key, name in odd)})",
        )


def digest(name: str) -> str:
    """A digest of the file that a name means; empty if the file is missing; the name itself if it means no file."""
    try:
        file = _file(name)
        return name if file is None else blake2b(read_bytes(file, most=TEXT), digest_size=16).hexdigest()
    except ArnoError:
        return ""


def _outside(key: str, value: Any) -> Iterator[str]:
    """The names in the value of a setting that are not part of Arno."""
    if key.endswith(".target") and value is not None:
        yield str(value)
    elif key == "track":
        words = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
        yield from (word for word in (str(word).strip() for word in words) if ":" in word or "@" in word)
    elif key == "engine.address" and value not in (None, "local"):
        yield str(value)


def _pairs(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """The keys and values of overrides, as the configuration reads the keys."""
    words = (word.partition("=") for word in overrides)
    return [(key.strip().lstrip("+"), value) for key, _, value in words]


def _file(name: str) -> Path | None:
    """The Python file that a name means; None if it means no Python file. A module is searched, but not imported."""
    where, colon, _ = name.partition("@")[0].rpartition(":")
    if where.endswith(".py"):
        return place(where)
    if not colon or not all(part.isidentifier() for part in where.split(".")):
        return None
    path, found = [str(Path.cwd()), *sys.path], None
    for number in range(1, where.count(".") + 2):
        found = PathFinder.find_spec(".".join(where.split(".")[:number]), path)
        path = list(found.submodule_search_locations or ()) if found else []
    return Path(found.origin) if found and found.origin else Path(where)


def _shown(name: str) -> str:
    file = _file(name)
    return shortened(name if file is None else os.path.abspath(file))


def _known(folder: Path, name: str) -> bool:
    try:
        files = read_json(_note_of(folder))["files"]
    except (ArnoError, KeyError, TypeError):
        return False
    return isinstance(files, dict) and bool(digest(name)) and files.get(name) == digest(name)


def _note_of(folder: Path) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "arno" / "runs" / f"{blake2b(os.fsencode(folder.resolve()), digest_size=16).hexdigest()}.json"
