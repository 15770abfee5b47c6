"""The weighted sum of the updates of a block; for the records, the norm and the cosine of each update."""

from __future__ import annotations

import torch
from torch import Tensor

from .work import Mat, Vec

#: How many numbers fit into the cache of a core together with other data.
CACHED = 2**20


def added_up(weight: Tensor, rows: Mat, d: int) -> tuple[Vec, dict[str, Tensor]]:
    """Σ p_k Δ_k of a block; and for each row its norm and its cosine to the sum of the other rows.

    Norm and cosine use the parameters only, not the buffers. The columns are processed in pieces that fit into a cache,
    so that each number is read from memory once.
    """

    def of(some: Mat) -> tuple[Vec, Tensor, Tensor]:
        mean = weight @ some
        return mean, some @ mean, some.norm(dim=1)

    found = [of(some) for some in rows[:, :d].split(max(1, CACHED // max(1, len(rows))), 1)]
    mean, dot, norm = found[0]
    if len(found) > 1:
        means, dots, norms = zip(*found, strict=True)
        mean, dot, norm = torch.cat(means), torch.stack(dots).sum(0), torch.stack(norms).norm(dim=0)
    notes = {"delta_norm": norm, "delta_cosine": cosines(dot, weight, mean.norm(), norm)}
    return mean if rows.shape[1] == d else torch.cat([mean, weight @ rows[:, d:]]), notes


def cosines(dot: Tensor, weight: Tensor, length: Tensor, norm: Tensor) -> Tensor:
    """The cosine between each row and the weighted sum of the *other* rows.

    It is NaN if there is only one row, or if the row or the sum of the others is zero.
    dot: the product of each row with the weighted sum of all rows. norm: the norm of each row. length: the norm of
    the weighted sum.

    >>> rows, weight = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, -1.0]]), torch.tensor([0.5, 0.25, 0.25])
    >>> mean = weight @ rows
    >>> cosines(rows @ mean, weight, mean.norm(), rows.norm(dim=1))
    tensor([ 1.0000,  0.3162, -0.3162], dtype=torch.float64)
    """
    dot, weight, length, norm = dot.double(), weight.double(), length.double(), norm.double()
    own = weight * norm.square()
    others = (length.square() - weight * (2 * dot - own)).clamp(min=0).sqrt()  # ‖mean − p_k Δ_k‖
    known = (norm > 0) & (others > 1e-2 * weight * norm)  # a smaller norm is rounding error and has no direction
    return ((dot - own) / (norm * others)).clamp(-1, 1).where(known, torch.nan)
