"""Figures for files; colours are safe for colour-blind readers (Okabe–Ito)."""

from __future__ import annotations

from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7, 4)) -> tuple[Any, Any]:
    """A matplotlib figure that needs no display, and its axes as an array of rows and columns."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(rows, columns, squeeze=False)
