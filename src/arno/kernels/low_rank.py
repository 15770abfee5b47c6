"""Weights of many models that start equal: a linear layer is stored as the first weights and the changes of each model.

A step of SGD adds dᵀ x to the weights of a linear layer; d has a row −rate · δ for each sample. So the weights of
model k are  W_k = W + D_kᵀ X_k  with all samples that model k has seen so far. As long as these samples are few,

    x W_kᵀ = x Wᵀ + (x X_kᵀ) D_k

takes less time: x Wᵀ is one product for all models, and no W_k is ever computed. The update of a model is D_kᵀ X_k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .products import affine, turned_products


def few(samples: int, outs: int, ins: int) -> bool:
    """Whether a model that sees this many samples is best stored in this form, for weights of this shape.

    On average over the steps, the two additional products then take less than a third of the time of x Wᵀ.

    >>> few(60, 128, 784), few(60, 10, 784)
    (True, False)
    """
    return 3 * samples * (outs + ins) <= 2 * outs * ins


class LowRank:
    """The weights of a layer of many models. The inputs of the layer need no gradient.

    weight: the weights with which all models start. rows: the number of models. samples: the most samples that one
    model will see.
    """

    def __init__(self, weight: Tensor, rows: int, samples: int) -> None:
        outs, ins = weight.shape
        self.weight, self.seen = weight, 0
        self.x, self.d = weight.new_empty(rows, samples, ins), weight.new_empty(rows, samples, outs)

    def affine(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W_kᵀ + b_k for the first rows of the models, which take the next step; the other models have ended."""
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
        """Take the step − δᵀ x, where x is the input of the last call of `affine`."""
        live, n = delta.shape[:2]
        here = slice(self.seen, self.seen + n)
        self.d[live:, here] = 0
        torch.neg(delta, out=self.d[:live, here])
        self.seen += n

    def write(self, update: Tensor) -> None:
        """Write the updates W_k − W of all models."""
        turned_products(self.d[:, : self.seen], self.x[:, : self.seen], update)
