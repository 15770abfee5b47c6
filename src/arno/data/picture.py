"""What a partition looks like: a picture of clients × classes, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .dataset import Labels
from .partition import Partition

BUBBLES, COLUMNS = 40, 500  # beyond so many clients: a heat map; beyond so many: only every so manyth client


def summary(partition: Partition, y: Labels, classes: Sequence[str]) -> dict[str, Any]:
    """The numbers of a partition: sizes, classes per client, heterogeneity.

    >>> halves = Partition(torch.arange(4), torch.tensor([0, 2, 4]))
    >>> summary(halves, torch.tensor([0, 0, 1, 1]), "ab")["heterogeneity"]
    0.5
    """
    sizes = partition.sizes
    held = (partition.label_counts(y, len(classes)) > 0).sum(1)
    return {
        "clients": len(partition),
        "samples": int(sizes.sum()),
        "size_min": int(sizes.min()),
        "size_median": float(sizes.double().quantile(0.5)) if len(sizes) < 10**6 else float(sizes.median()),
        "size_max": int(sizes.max()),
        "classes_min": int(held.min()),
        "classes_median": float(held.double().median()),
        "classes_max": int(held.max()),
        "heterogeneity": partition.heterogeneity(y, len(classes)),
    }


def draw_partition(partition: Partition, y: Labels, classes: Sequence[str], path: str | Path) -> Path:
    """Draw which client (across) has how many samples of which class (up), and write the picture to `path`.

    Few clients are drawn as circles with area ∝ samples, many as a heat map (white: none), of very many only some.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    counts = partition.label_counts(y, len(classes))
    shown = torch.linspace(0, len(partition) - 1, min(len(partition), COLUMNS)).round().long()
    figure = Figure(figsize=(min(14.0, 4 + 0.22 * len(shown)), min(10.0, 2 + 0.28 * len(classes))), dpi=120)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    table = counts[shown].T
    if len(shown) <= BUBBLES:
        _bubbles(axes, table)
    else:
        shades = PowerNorm(0.5, vmin=0)  # by the root, or one large cell hides the rest
        cells = table.double().where(table > 0, torch.nan).numpy()  # no samples: white
        image = axes.imshow(cells, "cividis_r", shades, aspect="auto", origin="lower", interpolation="nearest")
        figure.colorbar(image, ax=axes, label="samples")
    distance = partition.heterogeneity(y, len(classes))
    axes.set_title(f"{len(partition):,} clients, heterogeneity {distance:.3f}")
    axes.set_xlabel("client" if len(shown) == len(partition) else f"client ({len(shown)} of {len(partition):,} shown)")
    step = max(1, len(classes) // 40)
    axes.set_yticks(range(0, len(classes), step), [str(name)[:24] for name in classes[::step]])
    ticks = range(0, len(shown), max(1, len(shown) // 20))
    axes.set_xticks(ticks, [str(int(shown[i])) for i in ticks])
    figure.savefig(path)
    return Path(path)


def _bubbles(axes: Any, table: Tensor) -> None:
    rows, columns = table.nonzero(as_tuple=True)
    area = 220 * table[rows, columns].double() / table.max()
    axes.scatter(columns.numpy(), rows.numpy(), s=area.numpy(), color="#0072B2", edgecolors="none")
    axes.set(xlim=(-0.8, table.shape[1] - 0.2), ylim=(-0.8, table.shape[0] - 0.2))
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
