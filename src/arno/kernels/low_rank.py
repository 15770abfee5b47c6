"""Weights of many models that begin as one: a linear layer kept as its first weights and what was subtracted from them.

A step of SGD adds dᵀ x to the weights of a linear layer, with a row of d = −rate · δ for each sample. So the weights of
model k are  W_k = W + D_kᵀ X_k  with all samples that it has seen so far. As long as these are few,

    x W_kᵀ = x Wᵀ + (x X_kᵀ) D_k

takes less time: x Wᵀ is one product for all models, and no W_k is ever made. The update of a model is D_kᵀ X_k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .products import affine, turned_products


def few(samples: int, outs: int, ins: int) -> bool:
    """Whether so many samples are few for weights of this shape: the further products take a quarter of x Wᵀ at most.

    >>> few(60, 128, 784), few(60, 10, 784)
    (True, False)
    """
    return 3 * samples * (outs + ins) <= 2 * outs * ins


class LowRank:
    """The weights of a layer of many models, whose inputs need no gradient. weight: those of all models at first.

    rows: models. samples: the most that one of them will see.
    """

    def __init__(self, weight: Tensor, rows: int, samples: int) -> None:
        outs, ins = weight.shape
        self.weight, self.seen = weight, 0
        self.x, self.d = weight.new_empty(rows, samples, ins), weight.new_empty(rows, samples, outs)

    def affine(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W_kᵀ + b_k of the first rows, which all take the next step; the others have ended."""
        live, n, ins = x.shape
        y = affine(x.reshape(-1, ins), self.weight, None).view(live, n, -1)
        if bias is not None:
            y += bias[:, None]
        if self.seen:
            y.baddbmm_(torch.bmm(x, self.x[:live, : self.seen].mT), self.d[:live, : self.seen])
        here = slice(self.seen, self.seen + n)
        self.x[:live, here], self.x[live:, here] = x, 0
        return y

    def descend(self, delta: Tensor) -> None:
        """Subtract δᵀ x, for the x of the last call of `affine`."""
        live, n = delta.shape[:2]
        here = slice(self.seen, self.seen + n)
        self.d[live:, here] = 0
        torch.neg(delta, out=self.d[:live, here])
        self.seen += n

    def write(self, update: Tensor) -> None:
        """Write W_k − W of all rows."""
        turned_products(self.d[:, : self.seen], self.x[:, : self.seen], update)
