"""Small problems on which the laws run, and how a method runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arno.core.federation import Federation, Local
from arno.core.method_part import Part
from arno.core.work import SGD
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.methods import methods
from arno.models.linear import MLP
from arno.problems.quadratic import Quadratic
from arno.problems.supervised import Supervised

torch.set_num_threads(1)
HALF = [[0, 2, 5, 7], [1, 2, 3, 6], [0, 4, 5, 6], [1, 3, 4, 7]]


def quadratic(n: int = 8, d: int = 6) -> Quadratic:
    """Heterogeneous curvatures and optima: local steps drift apart."""
    g = torch.Generator().manual_seed(3)
    q = torch.randn(n, d, d, generator=g, dtype=torch.float64)
    h = q @ q.mT / d + 0.3 * torch.eye(d, dtype=torch.float64)
    return Quadratic(h, torch.randn(n, d, generator=g, dtype=torch.float64))


def network(n: int = 8, hidden: Sequence[int] = (7,), classes: int = 3, balanced: bool = False) -> Supervised:
    """A small network on clients of unequal size, without normalisation; balanced: each holds all classes equally."""
    g = torch.Generator().manual_seed(5)
    sizes = torch.tensor([0, *(4 + 2 * k for k in range(n))])
    x = torch.randn(int(sizes.sum()), 5, generator=g, dtype=torch.float64)
    y = torch.randint(0, classes, (len(x),), generator=g)
    if balanced:
        sizes[1:] = 6
        x, y = x[: 6 * n], torch.arange(6 * n) % classes
    return Supervised(
        x,
        y,
        Partition(torch.arange(len(x)), sizes.cumsum(0)),
        lambda: MLP(5, hidden, classes, "tanh"),
        transform=Transform((0.0,), (1.0,), 1.0),
        dtype=torch.float64,
    )


def federate(problem: Any, parts: Sequence[Part], times: int, **settings: Any) -> Federation:
    """Some rounds of a method."""
    local = Local(
        epochs=settings.pop("epochs", 5),
        batch_size=settings.pop("batch_size", 4),
        lr=settings.pop("lr", 0.05),
        lr_decay=settings.pop("lr_decay", 1.0),
        sgd=settings.pop("sgd", SGD()),
    )
    fed = Federation(problem, parts, local=local, weighting=settings.pop("weighting", "uniform"), **settings)
    for _ in range(times):
        fed.round()
    return fed


def make(name: str, **settings: Any) -> list[Part]:
    """A method by its name."""
    parts: list[Part] = methods.get(name)(**settings)
    return parts


def same(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    """Equal to rounding."""
    error = float((a - b).abs().max())
    assert error <= tolerance, f"differ by {error:.2e}"
