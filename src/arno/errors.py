"""The one error that users see: the value that was given, the rule that it breaks, the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


class ArnoError(Exception):
    """Bad input, or a condition that the user can correct. The command line prints it on one line, exit status 2.

    >>> str(ArnoError("alpha = -1", "it must be positive", "try partition.alpha=0.5"))
    'alpha = -1: it must be positive; try partition.alpha=0.5'
    """

    def __init__(self, value: str, rule: str, remedy: str = "") -> None:
        super().__init__(value, rule, remedy)

    def __str__(self) -> str:
        value, rule, remedy = self.args
        return one_line(f"{value}: {rule}" + (f"; {remedy}" if remedy else ""))


def one_line(text: str) -> str:
    """A text on one line, without characters that a terminal would obey: a name may hold any.

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
    """A worker was lost again and again, or did not answer."""


class StoppedAtOnce(KeyboardInterrupt):
    """The user asked a second time to stop the run. A client's own KeyboardInterrupt is an error of the client."""


def unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> ArnoError:
    """The error for a name that is not registered; it offers the nearest known name, or `see` if there is none.

    >>> str(unknown("method", "FedPox", ["fedavg", "fedprox"]))
    "unknown method 'FedPox': known are fedavg, fedprox; did you mean 'fedprox'?"
    """
    from difflib import get_close_matches  # on demand: `arno --help` must answer at once

    names = sorted(known)
    name = name if len(name) <= 100 else name[:99] + "…"
    group = name.partition(".")[0] + "."
    same = len(group) * all(one.startswith(group) for one in names)  # the `data.` of all keys of a group says nothing
    small = {one[same:].lower(): one for one in names}
    near = [small[one] for one in get_close_matches(name[same:].lower(), small, n=1, cutoff=0.5)]
    rule = f"known are {', '.join(names)}" if 0 < len(names) <= 16 else f"it is none of the {len(names)} known ones"
    other = see or ("choose one of them" if rule.startswith("known are") else "")
    return ArnoError(f"unknown {kind} {name!r}", rule, f"did you mean {near[0]!r}?" if near else other)


def need(extra: str, package: str) -> ArnoError:
    """The error for an optional library that is not installed."""
    return ArnoError(
        f"{package} is not installed", "this feature needs it", f"install it with: pip install 'arno[{extra}]'"
    )


def described(error: BaseException) -> str:
    """An exception on one line: its type, its text, and where it was raised."""
    return named(error) + own_frames(error)


def named(error: BaseException) -> str:
    """The type and the text of an exception."""
    try:
        text = one_line(str(error))[:500]
    except Exception:  # a class of the user's own
        text = ""
    return type(error).__name__ + (f": {text}" if text else "")


def own_frames(error: BaseException, most: int = 3) -> str:
    """The places in the user's own code through which an exception came, the innermost last; empty if there are none.

    Own code is what belongs neither to Arno nor to Python or its libraries.
    """
    others = (str(Path(__file__).parent), sys.base_prefix, sys.prefix, "<frozen")
    from traceback import extract_tb  # on demand

    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    places = [f"{f.filename}, line {f.lineno}" + (f": {f.line}" if f.line else "") for f in frames[-most:]]
    return f" (in {'; '.join(places)})" if places else ""
