"""The error that users see: the value that was given, the rule that it breaks, and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


class ArnoError(Exception):
    """Wrong input, or a condition that the user can correct. `arno` prints it on one line and ends with exit status 2.

    >>> str(ArnoError("alpha = -1", "it must be positive", "try partition.alpha=0.5"))
    'alpha = -1: it must be positive; try partition.alpha=0.5'
    """

    def __init__(self, value: str, rule: str, remedy: str = "") -> None:
        super().__init__(value, rule, remedy)

    def __str__(self) -> str:
        value, rule, remedy = self.args
        return one_line(f"{value}: {rule}" + (f"; {remedy}" if remedy else ""))


def one_line(text: str) -> str:
    """A text on one line, without control characters, which a name may contain and which would control a terminal.

    >>> one_line("a\\nb \\x1b[31mc")
    'a b ?[31mc'
    """
    text = " ".join(text.split())
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


class TooLarge(ArnoError):
    """A run needs more memory or disk than there is."""


class Diverged(ArnoError):
    """The numbers of a run are not finite. A comparison counts this as a result, other errors as a missing result."""


class Busy(ArnoError):
    """Another process writes into the folder."""


class ClientError(ArnoError):
    """The training of a client failed, in code of the user or of a library."""


class Unanswered(ArnoError):
    """A worker was lost several times, or did not answer."""


class StoppedAtOnce(KeyboardInterrupt):
    """The user asked a second time to stop the run. (A KeyboardInterrupt of a client's code is a client's error.)"""


def unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> ArnoError:
    """The error for an unknown name. Its remedy is the most similar known name, or `see` if no name is similar.

    >>> str(unknown("method", "FedPox", ["fedavg", "fedprox"]))
    "unknown method 'FedPox': the known names are fedavg, fedprox; did you mean 'fedprox'?"
    """
    from difflib import get_close_matches  # imported here, because `arno --help` must be fast

    names = sorted(known)
    name = name if len(name) <= 100 else name[:99] + "…"
    group = name.partition(".")[0] + "."
    same = len(group) * all(one.startswith(group) for one in names)  # a prefix that all names have is not compared
    small = {one[same:].lower(): one for one in names}
    near = [small[one] for one in get_close_matches(name[same:].lower(), small, n=1, cutoff=0.5)]
    few = 0 < len(names) <= 16
    rule = f"the known names are {', '.join(names)}" if few else f"{len(names)} other names are known"
    other = see or ("choose one of them" if few else "")
    return ArnoError(f"unknown {kind} {name!r}", rule, f"did you mean {near[0]!r}?" if near else other)


def need(extra: str, package: str) -> ArnoError:
    """The error for an optional library that is not installed."""
    return ArnoError(
        f"{package} is not installed", "this feature needs it", f"install it with: pip install 'arno[{extra}]'"
    )


def described(error: BaseException) -> str:
    """An exception on one line: its type, its text, and the place in the user's code where it was raised."""
    return named(error) + own_frames(error)


def named(error: BaseException) -> str:
    """The type and the text of an exception."""
    try:
        text = one_line(str(error))[:500]
    except Exception:  # `__str__` of a user's class can fail
        text = ""
    return type(error).__name__ + (f": {text}" if text else "")


def own_frames(error: BaseException, most: int = 3) -> str:
    """The lines of the user's own code in the traceback of an exception, the innermost last; empty if there are none.

    Own code is code that belongs neither to Arno nor to Python or its libraries.
    """
    others = (str(Path(__file__).parent), sys.base_prefix, sys.prefix, "<frozen")
    from traceback import extract_tb  # imported here, because it is rarely needed

    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    places = [f"{f.filename}, line {f.lineno}" + (f": {f.line}" if f.line else "") for f in frames[-most:]]
    return f" (in {'; '.join(places)})" if places else ""
