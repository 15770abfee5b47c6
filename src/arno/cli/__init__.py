"""The command line. Every command is a module of this package, which is imported only when the command runs."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from ..config.meanings import command as meant
from ..errors import ArnoError, described, one_line, own_frames, unknown
from ..version import __version__
from .parser import Parser

if TYPE_CHECKING:
    import threading

#: The name of every command, which is also the name of its module, and one line of help.
COMMANDS = {
    "run": "train a federation",
    "plan": "print what a run would take: memory, disk, traffic, seconds",
    "resume": "continue a run that was stopped or killed",
    "repair": "rebuild what can be rebuilt of a damaged run",
    "compare": "run methods × settings × seeds; tables with intervals and paired tests",
    "tune": "search each method's settings with equal budgets, then compare the methods",
    "reproduce": "repeat a published figure, and compare our values with the published ones",
    "runs": "list, find, show, compare, tag and remove runs and comparisons",
    "watch": "follow a run or a comparison in the terminal",
    "ui": "open a local web page about all runs: live curves, clients, stop and resume",
    "report": "write one HTML file about runs: tables, curves, clients, drift",
    "methods": "list the methods; `arno methods NAME` prints formula, paper, settings and a command",
    "data": "list data sets; `arno data show …` describes a partition and draws it",
    "conform": "replay conformance cases (the packaged ones by default)",
    "quadratic": "simulate client selection on quadratics, 15,000 rounds in seconds",
    "track": "send a run's records to a tracker: arno track RUN --to mlflow",
    "doctor": "print versions, cores, memory, devices, and which optional packages are missing",
    "completion": 'print a completion script for your shell: eval "$(arno completion bash)"',
}

#: The garbage collector runs after this many new objects. With Python's default (700), it takes a sixth of the time to
#: start: imports create a million objects that are never freed, and the collector visits them many times.
COLLECT_AFTER = 50_000

#: The system's errors for a disk that is full or read-only, a quota that is used up and a file that is too large.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

EXAMPLES = """\
examples
  arno run                                              FedAvg on the embedded digits
  arno run method=fedprox method.mu=0.1 partition.alpha=0.1 rounds=100 seed=1
  arno run data=fashion_mnist model=lenet5 clients=100 participation=0.1 local.lr=0.05
  arno plan model=lenet5 data=fashion_mnist clients=1000 method=scaffold   what that would take
  arno compare method=fedavg,fedprox partition.alpha=0.1,1.0 seed=0..4
  arno report compare                                   the comparison as one HTML file
  arno resume runs/20260131-120000-fedavg-1a2b          continue a run that was stopped
  arno runs method=scaffold 'score>0.9' since=7d        find runs again
  arno methods                                          all methods; NAME for details, --family personal
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: run a command and exit with its status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    gc.set_threshold(COLLECT_AFTER)
    if isinstance(sys.stdout, TextIOWrapper):  # paths and texts may hold characters that cannot be printed
        sys.stdout.reconfigure(errors="backslashreplace")
    if not debug and "--help" not in arguments:
        import threading  # imported here, because `--help` must be fast

        threading.excepthook = _failed_thread
    try:
        status = dispatch([a for a in arguments if a != "--debug"])
    except ArnoError as error:
        if debug:
            raise
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # stdout is a closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except BaseException as error:  # the user's own code may raise any exception
        exits = isinstance(error, SystemExit) and not own_frames(error)  # with own frames: the user's code called exit
        if debug or exits:
            raise
        print(f"error: {one_line(refused_by_disk(error) or unexpected(error))}", file=sys.stderr)
        status = 2
    sys.exit(status)


def _failed_thread(failed: threading.ExceptHookArgs) -> None:
    """Print one line about an exception in a thread of a library or of the user's own code; the command continues."""
    if issubclass(failed.exc_type, SystemExit):
        return  # as in Python, it ends the thread and is not an error
    error = failed.exc_value or failed.exc_type()
    print(f"warning: a thread failed: {one_line(refused_by_disk(error) or unexpected(error))}", file=sys.stderr)


def refused_by_disk(error: BaseException) -> str:
    """The line for a file that the system refuses; empty for another error.

    >>> refused_by_disk(PermissionError(errno.EACCES, "Permission denied", "run/metrics.jsonl"))
    'run/metrics.jsonl: Permission denied; change its permissions, then repeat the command'
    """
    if not isinstance(error, OSError):
        return ""
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename}: {error.strerror}; change its permissions, then repeat the command"
    if error.errno == errno.EROFS:
        return f"cannot write {error.filename or 'a file'}: {error.strerror}; give another path"
    if error.errno in FULL:
        return f"cannot write {error.filename or 'a file'}: {error.strerror}; free some space, then repeat the command"
    return f"{error.filename}: {error.strerror}; give another path" if error.filename and not own_frames(error) else ""


def unexpected(error: BaseException) -> str:
    """One line for an exception that is not an `ArnoError`: its text, lines of the user's own code, and its notes."""
    if "torch" in sys.modules:
        from ..core.resources import exhausted

        if (short := exhausted(error)) is not None:
            return str(short)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if "\n" not in note)
    return f"{described(error)}{notes}; --debug shows the traceback"


def dispatch(arguments: list[str]) -> int:
    """Run the command that the arguments name."""
    parser = Parser(
        prog="arno",
        description="Which federated learning method works on data split like mine, and am I sure?",
        epilog="commands\n" + "".join(f"  {name:<12}{text}\n" for name, text in COMMANDS.items()) + "\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="arno COMMAND [key=value ...] [--help]",
    )
    parser.add_argument("--version", action="version", version=f"arno {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
        parser.print_help()
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        raise meant(command) or unknown("command", command, COMMANDS, "see arno --help")
    status: int = import_module(f"{__name__}.{command}").main(rest)
    return status
