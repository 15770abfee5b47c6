"""Run `arno` commands in processes that can be killed: forks of this one, which has torch at hand, or new ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from operations import Operations, install

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
#: Seconds after which a command counts as hung.
PATIENCE = 180.0
HUNG = -1000
#: Seconds that count at most between two looks: what is suspended with all its commands counts no longer time.
SLICE = 1.0


class At(NamedTuple):
    """The file operation at which something happens; see `operations`."""

    number: int
    action: str = "kill"


class Said(NamedTuple):
    """How a command ended: its status (negative: the signal; `HUNG`: it was ended), its output, its seconds."""

    status: int
    out: str
    err: str
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def refused(self) -> bool:
        """Refused as it must be: status 2 and one line, about something that a rule foresees."""
        lines = self.err.splitlines()
        return self.status == 2 and len(lines) == 1 and lines[0].startswith("error: ") and not self.broken

    @property
    def broken(self) -> bool:
        """A traceback, or an error that no rule foresees."""
        text = self.out + self.err
        return "Traceback (most recent call last)" in text or "--debug shows the traceback" in text


def preload() -> None:
    """Import what the commands need, once, and start no thread."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    import matplotlib.figure
    import pandas
    import pyarrow.parquet
    import torch

    import arno.analysis.comparison
    import arno.cli.compare
    import arno.cli.report
    import arno.engines.processes
    import arno.engines.serial
    import arno.grids.compare
    import arno.pictures.curves
    import arno.pictures.draw
    import arno.records.repair
    import arno.report.html
    import arno.report.paper_files
    import arno.runs.quadratic
    import arno.runs.run
    import arno.runs.stages
    import arno.tracking.send
    import arno.tracking.tensorboard
    from arno.methods import methods

    torch.set_num_threads(1)
    for name in methods.names():
        methods.get(name)
    assert all((matplotlib.figure, pandas, pyarrow.parquet, arno.cli.report))
    with contextlib.suppress(ImportError):
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.event_file_writer  # noqa: F401


def forked(
    words: Sequence[str],
    folder: Path,
    *,
    at: At | None = None,
    after: float | None = None,
    journal: Path | None = None,
    pictures: bool = False,
    before: Callable[[], None] | None = None,
    patience: float = PATIENCE,
) -> Said:
    """Run a command in a fork of this process, in `folder`.

    at: what happens at which file operation. after: seconds until it is killed. journal: a file that gets the names of
    the file operations. before: called first in the new process.
    """
    return ended(begun(words, folder, at=at, journal=journal, pictures=pictures, before=before), after, patience)


class Begun(NamedTuple):
    """A command that runs: its process, its two outputs, when it began."""

    pid: int
    outputs: tuple[Path, Path]
    began: float


def begun(
    words: Sequence[str],
    folder: Path,
    *,
    name: str = "",
    at: At | None = None,
    journal: Path | None = None,
    pictures: bool = False,
    before: Callable[[], None] | None = None,
) -> Begun:
    """Start a command as `forked` does; name: of its outputs, where several run in one folder."""
    outputs, began = (folder / f".out{name}", folder / f".err{name}"), time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(words, folder, outputs, at, journal, pictures, before)
    return Begun(pid, outputs, began)


def ended(command: Begun, after: float | None = None, patience: float = PATIENCE) -> Said:
    """Wait for the end of a command."""
    status = _wait(command.pid, command.began, after, patience)
    out, err = command.outputs
    return Said(status, _text(out), _text(err), time.monotonic() - command.began)


def _child(
    words: Sequence[str],
    folder: Path,
    outputs: tuple[Path, Path],
    at: At | None,
    journal: Path | None,
    pictures: bool,
    before: Callable[[], None] | None,
) -> None:
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(folder)
        for number, path in enumerate((os.devnull, *outputs)):
            opened = os.open(path, os.O_RDONLY if number == 0 else os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(opened, number)
        if not pictures:  # drawing takes longer than training here
            import arno.pictures.curves

            arno.pictures.curves.draw_curves = lambda *_: None
        if before is not None:
            before()
        if at is not None or journal is not None:
            number, action = at or (0, "kill")
            install(Operations(folder, number, action, journal))
        from arno.cli import main

        main(list(words))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def started(
    words: Sequence[str],
    folder: Path,
    *,
    at: At | None = None,
    after: float | None = None,
    patience: float = PATIENCE,
    environment: Mapping[str, str] | None = None,
) -> Said:
    """The same in a new Python process, as a user starts it."""
    paths = os.pathsep.join([str(HERE / "site"), str(SOURCE)])
    more = {"PYTHONPATH": paths, **(environment or {})}
    if at is not None:
        more["ARNO_TORTURE"] = f"{folder}:{at.number}:{at.action}"
    out, err = folder / ".out", folder / ".err"
    began = time.monotonic()
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "arno", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | more,
            process_group=0,
        )
    status = _wait(process.pid, began, after, patience)
    process.returncode = status  # it is over: `Popen` need not wait
    return Said(status, _text(out), _text(err), time.monotonic() - began)


def _wait(pid: int, began: float, after: float | None, patience: float) -> int:
    """The status of a process that leads its group; it is killed, with its group, after some seconds."""
    left, now, hung = began + (patience if after is None else after) - time.monotonic(), time.monotonic(), False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # its workers
            return HUNG if hung else os.waitstatus_to_exitcode(status)
        before, now = now, time.monotonic()
        left -= min(now - before, SLICE)
        if left <= 0:
            hung = after is None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            left = float("inf")
        time.sleep(min(max(left, 0.0), 0.005))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
