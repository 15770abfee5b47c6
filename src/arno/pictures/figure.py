"""Figures for files and notebooks. Colour-blind readers can distinguish the colours (Okabe–Ito)."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")


@cache
def _figure_class() -> Any:
    """A matplotlib figure that notebooks show as a PNG; they show other figures only after an import of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            return png(self)

    return Picture


def blank(size: tuple[float, float], dpi: int = 100) -> Any:
    """A matplotlib figure that needs no display, without axes."""
    return _figure_class()(figsize=size, dpi=dpi, layout="constrained")


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7, 4)) -> tuple[Any, Any]:
    """A matplotlib figure that needs no display, and its axes as an array of rows and columns."""
    fig = blank(size)
    return fig, fig.subplots(rows, columns, squeeze=False)


def png(fig: Any) -> bytes:
    """The bytes of a PNG file."""
    file = BytesIO()
    fig.savefig(file, format="png", dpi=90)
    return file.getvalue()
