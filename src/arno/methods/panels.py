"""The functions with which the file of a method registers what a run shows about its part.

A run can show panels (pictures as data) and messages (lines of text) about a part. The functions that make them are
outside the part, in the file of the method:

    @panels.register
    def _(part: MyPart, run: Records) -> list[Panel]:
        return [Chart("Drift", "How far clients move.", curves_of(run.rows, {"drift": "mean"}))]

A run computes its panels when it ends, and writes them into its folder. A reader of this folder does not call these
functions, so it does not need the code of the method.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any, Protocol

from ..pictures.panel_types import Chart, HeatMap, Line, Panel, band, curves_of, from_json, over_seeds, points, to_json

if TYPE_CHECKING:
    import pandas as pd

    from ..core.method_part import Part

__all__ = ["Chart", "HeatMap", "Line", "Panel", "Records", "band", "curves_of", "from_json", "headlines", "messages"]
__all__ += ["over_seeds", "panels", "points", "to_json"]


class Records(Protocol):
    """The records of a run."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The record of each round."""
        ...

    @property
    def history(self) -> pd.DataFrame:
        """The records of the rounds as a table, one row per round."""
        ...

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client and round."""
        ...

    @property
    def counts(self) -> Any:
        """Samples of each class at each client, [clients, classes], or None."""
        ...


@singledispatch
def panels(part: Part, run: Records) -> list[Panel]:
    """The panels about a part of a finished run."""
    return []


@singledispatch
def headlines(part: Part) -> list[str]:
    """The lines that a user should see before the round that begins now."""
    return []


@singledispatch
def messages(part: Part) -> list[str]:
    """The lines that a user should see after the round that has just ended."""
    return []
