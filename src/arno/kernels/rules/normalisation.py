"""LayerNorm and GroupNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..record import NotRecorded
from .rule import Deltas, Rule

aten = torch.ops.aten


class LayerNorm(Rule):
    """The numbers over the last axes get mean 0 and variance 1, and then a factor and a summand for each number."""

    outputs = 3

    def prepare(self) -> None:
        """Read the axes, and whether there are weights."""
        _, self.last, weight, bias, self.eps = self.step.args
        self.axes = [1, *range(2, len(self.shapes[0]) - len(self.last) + 1)] if self.lead else []
        self.weighted, self.biased = weight is not None, bias is not None
        self.spread = (-1, *(1,) * (len(self.shapes[0]) - len(self.last)), *self.last)

    def forward(self, x: Tensor, *weights: Tensor) -> Any:
        """torch's operation for one model. For many models, the weights are applied after the normalisation."""
        weight = weights[0] if self.weighted else None
        bias = weights[-1] if self.biased else None
        if not self.lead:
            y, mean, scale = torch.native_layer_norm(x, self.last, weight, bias, self.eps)
            self.saved = (x, mean, scale, weight, bias)
            return y, mean, scale
        y, mean, scale = self._unweighted(x)
        weight, bias = (t if t is None else t.view(self.spread) for t in (weight, bias))
        self.saved = (x, mean, scale, weight, y)
        if weight is not None and bias is not None:
            return torch.addcmul(bias, y, weight), mean, scale
        out = y if weight is None else y * weight
        return out if bias is None else out + bias, mean, scale

    def _unweighted(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised samples, the means, and 1 over the roots of the variances.

        torch's operation computes the numbers of short rows one by one; the operations here take half the time.
        """
        if len(self.last) > 1:
            return torch.native_layer_norm(x, self.last, None, None, self.eps)
        mean = x.mean(-1, True)
        y = x - mean
        scale = torch.linalg.vector_norm(y, 2, -1, True).square_().div_(self.last[0]).add_(self.eps).rsqrt_()
        return y.mul_(scale), mean, scale

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """The gradients of the samples, the factors and the summands."""
        need = [self.needs[0], self.weighted, self.biased]
        if not self.lead:
            x, mean, scale, weight, bias = self.saved
            found = aten.native_layer_norm_backward(delta.contiguous(), x, self.last, mean, scale, weight, bias, need)
            return [found[i] for i, there in enumerate((True, self.weighted, self.biased)) if there]
        x, mean, scale, weight, y = self.saved
        deltas = []
        if self.weighted:
            deltas.append((delta * y).sum(self.axes) if self.axes else delta * y)
        if self.biased:
            deltas.append(delta.sum(self.axes))
        if not self.needs[0]:
            return (None, *deltas)
        delta = (delta if weight is None else delta * weight).contiguous()
        below = aten.native_layer_norm_backward(delta, x, self.last, mean, scale, None, None, [True, False, False])[0]
        return (below, *deltas)


class GroupNorm(Rule):
    """Groups of channels get mean 0 and variance 1, and then a factor and a summand for each channel.

    One model only.
    """

    outputs = 3

    def prepare(self) -> None:
        """Read the sizes."""
        if self.lead:
            raise NotRecorded("GroupNorm of many models")
        _, weight, bias, *self.sizes = self.step.args
        self.weighted, self.biased = weight is not None, bias is not None

    def forward(self, x: Tensor, *weights: Tensor) -> Any:
        """The outputs of torch's operation."""
        weight = weights[0] if self.weighted else None
        bias = weights[-1] if self.biased else None
        x = x.contiguous()
        y, mean, scale = torch.native_group_norm(x, weight, bias, *self.sizes)
        self.saved = (x, mean, scale, weight)
        return y, mean, scale

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """The gradients of torch's operation."""
        x, mean, scale, weight = self.saved
        need = [self.needs[0], self.weighted, self.biased]
        found = aten.native_group_norm_backward(delta.contiguous(), x, mean, scale, weight, *self.sizes[:-1], need)
        return [found[i] for i, there in enumerate((True, self.weighted, self.biased)) if there]


RULES: dict[str, type[Rule]] = {"native_layer_norm": LayerNorm, "native_group_norm": GroupNorm}
