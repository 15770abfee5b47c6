"""Which files of the user a stored run may import.

A run folder names files (`method.target=my_method.py:factory`). The author of the folder chose them, so continuing a
run imports them only if this user started the run on this machine with the same files. That is noted outside the
folder: a digest inside it would prove nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..errors import ArnoError
from ..limits import TEXT, read_bytes, read_json


def targets(config: Mapping[str, Any]) -> list[str]:
    """The factories of a user's own that a configuration names.

    >>> targets({"method": {"kind": "custom", "target": "mine.py:factory"}, "model": {"kind": "mlp"}})
    ['mine.py:factory']
    """
    groups = (value for value in config.values() if isinstance(value, Mapping))
    return [str(group["target"]) for group in groups if group.get("kind") == "custom" and group.get("target")]


def note(folder: Path, config: Mapping[str, Any]) -> None:
    """Remember, outside the folder, that this user started this run with these files."""
    named = targets(config)
    if not named:
        return
    with suppress(OSError):  # without the note a resume asks for --trust
        place = _place(folder)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"folder": str(folder.resolve()), "files": {t: digest(t) for t in named}}, indent=2)
        temporary = place.with_suffix(f".{os.getpid()}.part")
        temporary.write_text(text + "\n")
        temporary.replace(place)


def named(overrides: Sequence[str]) -> list[str]:
    """The factories that overrides name.

    >>> named(["rounds=5", "method.target=mine.py:factory"])
    ['mine.py:factory']
    """
    return [value for key, _, value in (word.partition("=") for word in overrides) if key.endswith(".target")]


def check(folder: Path, config: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Refuse a stored configuration that names files which this user has not used for this run and does not allow."""
    unknown = [target for target in targets(config) if target not in allowed and not _known(folder, target)]
    if unknown:
        files = ", ".join(str(Path(t.rpartition(":")[0]).expanduser().resolve()) for t in unknown)
        raise ArnoError(
            f"{folder} names {', '.join(unknown)}",
            f"continuing it would run code from {files}, which you have not used for this run on this machine",
            "read the code, then add --trust, or name it again (GROUP.target=FILE:NAME)",
        )


def digest(target: str) -> str:
    """A digest of the file that a target names; empty for a module or a file that is gone."""
    path = Path(target.rpartition(":")[0]).expanduser()
    try:
        return blake2b(read_bytes(path, most=TEXT), digest_size=16).hexdigest() if path.suffix == ".py" else f"module {path}"
    except ArnoError:
        return ""


def _known(folder: Path, target: str) -> bool:
    try:
        files = read_json(_place(folder))["files"]
    except (ArnoError, KeyError, TypeError):
        return False
    return isinstance(files, dict) and bool(digest(target)) and files.get(target) == digest(target)


def _place(folder: Path) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "arno" / "runs" / f"{blake2b(str(folder.resolve()).encode(), digest_size=16).hexdigest()}.json"
