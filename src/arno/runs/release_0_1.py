"""Runs of release 0.1, in which the parts of a method acted in the order in which they were listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ..config import build
from ..core.method_part import Part, in_order
from ..errors import ArnoError

#: A part in one of the first roles, listed before a part in one of the second, gives another result than after it.
STEP, DIRECTION = frozenset({"server", "rate"}), frozenset({"window", "mean", "server"})


def refuse_order(path: Path, config: Mapping[str, Any], parts: Sequence[Part] | None = None) -> None:
    """Refuse to continue a run of release 0.1 whose parts act in another order now, with another result."""
    listed = build.method(dict(config)) if parts is None else parts
    for first, second in combinations(listed, 2):
        if first.roles & STEP and second.roles & DIRECTION and in_order([first, second])[0] is second:
            names = type(first).__name__, type(second).__name__
            rule = f"in release 0.1 {names[0]} acted before {names[1]}, as listed; now roles order them the other way"
            raise ArnoError(f"{path}", rule, "continue it with release 0.1, or start again with another out=")
