"""Stop and resume runs from the page, with the same rules as in a terminal."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from .. import limits
from ..analysis.run_entry import Entry, settings
from ..errors import ArnoError
from ..records import checksummed
from ..records.lock import holder
from ..runs.trust import check

#: The last part of the names of settings that can run code which is not part of Arno.
CODE = ("target", "track", "address")
#: Options of `arno compare` and `arno tune`; none of them names a file.
OPTIONS = ("--trials", "--search-seeds", "--no-pruning", "--jobs", "--tuned", "--retry")


class Control:
    """Sends signals, and starts processes and watches how they end."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    def stop(self, path: Path, entry: Entry) -> str:
        """Send SIGTERM to the process that holds the lock; an error if it does not run on this machine.

        The process then saves the run and ends.
        """
        held = holder(path)
        if held is None:
            raise ArnoError(entry.name, "no process works on it", "it has stopped already")
        if not held.here:
            raise ArnoError(entry.name, f"it runs on {held.host or 'another machine'}", "stop it there")
        if entry.part_of:
            raise ArnoError(entry.name, f"it is part of {entry.part_of}", "stop that one")
        try:
            os.kill(held.pid, signal.SIGTERM)
        except OSError as error:
            raise ArnoError(
                entry.name,
                f"process {held.pid} takes no signal ({error.strerror})",
                "stop it as the user who started it",
            ) from error
        return "The round ends, then the run is saved."

    def resume(self, path: Path, entry: Entry) -> str:
        """Start `arno resume`, or the command of a comparison, as a process that continues when the server ends."""
        if holder(path) is not None:
            raise ArnoError(entry.name, "a process works on it", "wait for it, or stop it first")
        if entry.part_of:
            raise ArnoError(entry.name, f"it is part of {entry.part_of}", "resume that one")
        if entry.kind == "run":
            check(path, settings(path), unused=())
            words = ["resume", str(path), "--quiet"]
        else:
            words = same_command(path)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
        command = [sys.executable, "-m", "arno", *words]
        # As for the command `arno`, no module is imported from the current folder, which may be a run of another user.
        safe = os.environ | {"PYTHONSAFEPATH": "1"}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors, "env": safe}
        self._started[entry.name] = subprocess.Popen(command, start_new_session=True, **quiet), errors  # type: ignore[call-overload]
        return f"Started: arno {shlex.join(words)}"

    def failures(self) -> dict[str, str]:
        """For each process that ended with an error since the last call: the last line that it printed."""
        found = {}
        for name, (process, errors) in list(self._started.items()):
            status = process.poll()
            if status is None:
                continue
            del self._started[name]
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            errors.close()
            if status not in (0, 130) and lines:
                found[name] = lines[-1]
        return found


def same_command(path: Path) -> list[str]:
    """The words of the command that continues a comparison; an error if they name code or another folder.

    The folder may come from another user: its command must not run code that is not part of Arno.
    """
    command = str(checksummed.read(path / "compare.json", path, "command").get("command", ""))
    remedy = f"run it yourself: {command}"
    said = limits.words(command, str(path))
    program, name, words = said[:1], said[1:2], said[2:]
    if program != ["arno"] or name not in (["compare"], ["tune"]):
        raise ArnoError(f"{path}", "its command is not known", "continue it as you started it")
    settings = [(word.partition("=")[0].strip().lstrip("+"), word.partition("=")[2]) for word in words]
    for key, value in settings:
        file = (key.startswith("-") and key not in OPTIONS) or key.split(".")[-1] in CODE
        if file or "custom" in value or "python" in value:
            raise ArnoError(f"{path}", f"its command has {key}={value}, which may run code", remedy)
    places = [value for key, value in settings if key == "out"]
    if len(places) != 1 or Path(places[0]).resolve() != path.resolve():
        raise ArnoError(f"{path}", f"its command writes to {', '.join(places) or 'another folder'}", remedy)
    return [*name, *words]
