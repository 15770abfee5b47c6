"""The one error that users see: the value that was given, the rule that it breaks, the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ArnoError(Exception):
    """Bad input, or a condition that the user can correct. The command line prints it on one line, exit status 2.

    >>> str(ArnoError("alpha = -1", "it must be positive", "try partition.alpha=0.5"))
    'alpha = -1: it must be positive; try partition.alpha=0.5'
    """

    def __init__(self, value: str, rule: str, remedy: str = "") -> None:
        super().__init__(value, rule, remedy)

    def __str__(self) -> str:
        value, rule, remedy = self.args
        return f"{value}: {rule}" + (f"; {remedy}" if remedy else "")


class Diverged(ArnoError):
    """The numbers of a run are not finite. A comparison counts this as a result, other errors as a missing result."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ArnoError:
    """The error for a name that is not registered; it offers the nearest known name.

    >>> str(unknown("method", "fedpox", ["fedavg", "fedprox"]))
    "unknown method 'fedpox': known are fedavg, fedprox; did you mean 'fedprox'?"
    """
    names = sorted(known)
    name = name if len(name) <= 100 else name[:99] + "…"
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    rule = f"known are {', '.join(names)}" if 0 < len(names) <= 16 else f"it is none of the {len(names)} known ones"
    return ArnoError(f"unknown {kind} {name!r}", rule, f"did you mean {near[0]!r}?" if near else "")


def need(extra: str, package: str) -> ArnoError:
    """The error for an optional library that is not installed."""
    return ArnoError(
        f"{package} is not installed", "this feature needs it", f"install it with: pip install 'arno[{extra}]'"
    )
