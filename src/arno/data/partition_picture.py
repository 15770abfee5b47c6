"""A partition as a picture (clients × strata) and in numbers. Strata are classes, or deciles of the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..pictures.figure import blank
from .dataset import Labels
from .partition import Partition

#: More than BUBBLES clients are drawn as a heat map. If there are more than COLUMNS clients, only COLUMNS are drawn.
BUBBLES, COLUMNS = 40, 500


def summary(partition: Partition, strata: Labels, names: Sequence[str], kind: str = "classes") -> dict[str, Any]:
    """The numbers of a partition: sizes, strata per client, heterogeneity.

    strata: the stratum of each sample. names: one per stratum. kind: "classes" or "deciles".

    >>> halves = Partition(torch.arange(4), torch.tensor([0, 2, 4]))
    >>> summary(halves, torch.tensor([0, 0, 1, 1]), "ab")["heterogeneity"]
    0.5
    """
    sizes = partition.sizes
    held = (partition.label_counts(strata, len(names)) > 0).sum(1)
    return {
        "clients": len(partition),
        "samples": int(sizes.sum()),
        "size_min": int(sizes.min()),
        "size_median": float(sizes.double().quantile(0.5)) if len(sizes) < 10**6 else float(sizes.median()),
        "size_max": int(sizes.max()),
        f"{kind}_min": int(held.min()),
        f"{kind}_median": float(held.double().median()),
        f"{kind}_max": int(held.max()),
        "heterogeneity": partition.heterogeneity(strata, len(names)),
    }


def draw_partition(
    partition: Partition, strata: Labels, names: Sequence[str], path: str | Path, *, label: str = ""
) -> Path:
    """Write the picture of a partition to `path`; see `holdings`."""
    holdings(partition, strata, names, label=label).savefig(path)
    return Path(path)


def holdings(partition: Partition, strata: Labels, names: Sequence[str], *, label: str = "") -> Any:
    """A figure: how many samples of each stratum (y axis) each client (x axis) has.

    Few clients are drawn as circles whose area is proportional to the number of samples. Many clients are drawn as a
    heat map (white: no samples); of very many clients only some are drawn. label: the label of the y axis.
    """
    from matplotlib.colors import PowerNorm

    counts = partition.label_counts(strata, len(names))
    shown = torch.linspace(0, len(partition) - 1, min(len(partition), COLUMNS)).round().long()
    figure = blank((min(14.0, 4 + 0.22 * len(shown)), min(10.0, 2 + 0.28 * len(names))), dpi=120)
    axes = figure.add_subplot()
    table = counts[shown].T
    if len(shown) <= BUBBLES:
        _bubbles(axes, table)
    else:
        shades = PowerNorm(0.5, vmin=0)  # colours by the square root, so that one large cell does not hide the others
        cells = table.double().where(table > 0, torch.nan).numpy()  # NaN is drawn white
        image = axes.imshow(cells, "cividis_r", shades, aspect="auto", origin="lower", interpolation="nearest")
        figure.colorbar(image, ax=axes, label="samples")
    distance = partition.heterogeneity(strata, len(names))
    axes.set_title(f"{len(partition):,} clients, heterogeneity {distance:.3f}")
    axes.set_xlabel("client" if len(shown) == len(partition) else f"client ({len(shown)} of {len(partition):,} shown)")
    axes.set_ylabel(label)
    step = max(1, len(names) // 40)
    axes.set_yticks(range(0, len(names), step), [str(name)[:24] for name in names[::step]])
    ticks = range(0, len(shown), max(1, len(shown) // 20))
    own = partition.names
    labels = [str(int(shown[i])) if own is None else own[int(shown[i])][:24] for i in ticks]
    axes.set_xticks(ticks, labels, rotation=0 if own is None else 45, ha="center" if own is None else "right")
    return figure


def _bubbles(axes: Any, table: Tensor) -> None:
    rows, columns = table.nonzero(as_tuple=True)
    area = 220 * table[rows, columns].double() / table.max()
    axes.scatter(columns.numpy(), rows.numpy(), s=area.numpy(), color="#0072B2", edgecolors="none")
    axes.set(xlim=(-0.8, table.shape[1] - 0.2), ylim=(-0.8, table.shape[0] - 0.2))
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
