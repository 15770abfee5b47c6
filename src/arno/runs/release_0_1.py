"""Runs of release 0.1, in which parts of a method acted in the order of the user's list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ..config import build
from ..core.method_part import Part, in_order
from ..errors import ArnoError

#: The order matters for two parts of which one has a role of STEP and the other a role of DIRECTION.
STEP, DIRECTION = frozenset({"server", "rate"}), frozenset({"window", "mean", "server"})


def refuse_order(path: Path, config: Mapping[str, Any], parts: Sequence[Part] | None = None) -> None:
    """Refuse to continue a run of release 0.1 if its parts now act in another order, which changes the result."""
    listed = build.method(dict(config)) if parts is None else parts
    for first, second in combinations(listed, 2):
        if first.roles & STEP and second.roles & DIRECTION and in_order([first, second])[0] is second:
            names = type(first).__name__, type(second).__name__
            rule = f"in release 0.1 {names[0]} acted before {names[1]}, as listed; now it acts after it"
            raise ArnoError(f"{path}", rule, "continue it with release 0.1, or start again with another out=")
