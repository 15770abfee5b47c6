"""Rules for convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..record import NotRecorded, Operation
from .rule import Deltas, Rule

aten = torch.ops.aten


def cuts_patches(step: Operation) -> bool:
    """Whether a convolution is a product with patches that cover the image and do not overlap."""
    image, weight = (step.args[i].shape for i in (0, 1))
    stride, padding, dilation, transposed, _, groups = step.args[3:]
    plain = not any(padding) and set(dilation) == {1} and not transposed and groups == 1
    return plain and list(stride) == list(weight[2:]) and not any(n % k for n, k in zip(image[2:], stride, strict=True))


class Convolution(Rule):
    """A convolution of one model; of many models, only if it is a product with patches."""

    def prepare(self) -> None:
        """Read the settings."""
        self.biased, self.settings = self.step.args[2] is not None, self.step.args[3:]
        if self.lead and (len(self.shape) != 4 or not cuts_patches(self.step)):
            raise NotRecorded("convolutions of many models: products of one model are faster")

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The outputs of torch's operation; for many models, of products with patches."""
        if not self.lead:
            self.saved = (x, weight)
            return torch.convolution(x, weight, bias, *self.settings)
        rows, n, channels = x.shape[:3]
        outs, (high, wide), (k, j) = weight.shape[1], self.shape[2:], weight.shape[3:]
        patches = x.reshape(rows, n, channels, high, k, wide, j).permute(0, 1, 3, 5, 2, 4, 6)
        patches, matrix = patches.reshape(rows, n * high * wide, -1), weight.reshape(rows, outs, -1)
        self.saved = (patches, matrix)
        y = patches @ matrix.mT if bias is None else torch.baddbmm(bias[:, None], patches, matrix.mT)
        return y.view(rows, n, high, wide, outs).permute(0, 1, 4, 2, 3)

    def backward(self, delta: Tensor) -> Deltas:
        """The gradients of torch's operation; for many models, of products with patches."""
        if self.lead:
            return self._backward(delta)
        x, weight = self.saved
        found = aten.convolution_backward(
            delta, x, weight, [len(weight)] if self.biased else None, *self.settings,
            [self.needs[0], self.needs[1], self.biased],
        )  # fmt: skip
        return list(found[: 2 + self.biased])

    def _backward(self, delta: Tensor) -> Deltas:
        patches, matrix = self.saved
        rows, n, outs, high, wide = delta.shape
        delta = delta.permute(0, 1, 3, 4, 2).reshape(rows, n * high * wide, outs)
        _, channels, k, j = self.shapes[1]
        found: list[Tensor | None] = [None, (delta.mT @ patches).view(rows, *self.shapes[1])]
        if self.needs[0]:
            below = (delta @ matrix).view(rows, n, high, wide, channels, k, j).permute(0, 1, 4, 2, 5, 3, 6)
            found[0] = below.reshape(rows, *self.shapes[0])
        return [*found, delta.sum(1)] if self.biased else found


def pooling(step: Operation) -> tuple[Any, ...]:
    """Window, stride, padding, dilation, and whether windows may exceed the edges of the image (`ceil_mode`)."""
    given, defaults = step.args[1:], ((), [0, 0], [1, 1], False)
    window, stride, *rest = given + defaults[len(given) - 1 :]
    return (window, stride or window, *rest)


def by_halves(step: Operation) -> bool:
    """Whether an operation is max-pooling of images with windows of 2×2 that cover the whole image."""
    if step.name != "max_pool2d_with_indices" or len(step.shapes[0]) != 4:
        return False
    usual = tuple(map(list, pooling(step)[:4])) == ([2, 2], [2, 2], [0, 0], [1, 1])
    return usual and not any(side % 2 for side in step.values[0].shape[2:])


class MaxPool(Rule):
    """The largest number in each window; the first one of equal numbers gets the gradient.

    In the default layout torch's operation takes longer than a convolution. For windows of 2×2, the maximum of two
    halves is computed twice instead.
    """

    outputs = 2

    def prepare(self) -> None:
        """Read the settings."""
        self.all, self.halves = pooling(self.step), by_halves(self.step)

    def forward(self, x: Tensor) -> Any:
        """The maximum of halves, or the outputs of torch's operation. All models are computed as one batch."""
        flat = x.flatten(0, 1) if self.lead else x
        if self.halves and flat.is_contiguous() and flat.device.type == "cpu":
            upper, lower = halves(flat)
            rows = torch.maximum(upper, lower)
            y, index = torch.maximum(rows[..., ::2], rows[..., 1::2]), rows
        else:
            y, index = aten.max_pool2d_with_indices(flat, *self.all)
        self.saved = (flat, index)
        return (y.unflatten(0, x.shape[:2]) if self.lead else y), index

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """The gradient goes to the largest number of each window."""
        x, index = self.saved
        flat = delta.flatten(0, 1) if self.lead else delta
        if index.dtype == torch.int64:
            below = aten.max_pool2d_with_indices_backward(flat, x, *self.all, index)
        else:
            below = to_largest(flat, x, index)
        return (below.unflatten(0, delta.shape[:2]) if self.lead else below,)


def halves(x: Tensor) -> Sequence[Tensor]:
    """The upper and the lower row of each pair of rows of images, [n, channels, height / 2, width]."""
    n, channels, height, width = x.shape
    return x.view(n, channels, height // 2, 2, width).unbind(3)


def to_largest(delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    """δ at the largest number of each window of 2×2, the first one of equal numbers.

    rows: for each pair of rows of `x`, the maximum of the two.
    """
    upper, lower = halves(x)
    above = torch.ge(upper, lower, out=torch.empty_like(rows))  # the largest number of a column is in the upper row
    left, right = rows[..., ::2], rows[..., 1::2]
    first = (left >= right) & ~((left == right) & (above[..., ::2] < above[..., 1::2]))
    columns, below = torch.empty_like(rows), torch.empty_like(x)
    torch.mul(delta, first, out=columns[..., ::2])
    torch.sub(delta, columns[..., ::2], out=columns[..., 1::2])
    to_upper, to_lower = halves(below)
    torch.mul(columns, above, out=to_upper)
    torch.sub(columns, to_upper, out=to_lower)
    return below


class AvgPool(Rule):
    """The mean of the numbers in a window."""

    def prepare(self) -> None:
        """Read the settings."""
        defaults: tuple[Any, ...] = (None, [], [0, 0], False, True, None)
        self.settings = (*self.step.args[1:], *defaults[len(self.step.args) - 1 :])

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of torch's operation. All models are computed as one batch."""
        self.saved = (x.flatten(0, 1) if self.lead else x,)
        y: Tensor = aten.avg_pool2d(*self.saved, *self.settings)
        return y.unflatten(0, x.shape[:2]) if self.lead else y

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient of torch's operation."""
        flat = delta.flatten(0, 1) if self.lead else delta
        below = aten.avg_pool2d_backward(flat, *self.saved, *self.settings)
        return (below.unflatten(0, delta.shape[:2]) if self.lead else below,)


class AdaptivePool(Rule):
    """The means over a given number of windows."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of torch's operation. All models are computed as one batch."""
        self.saved = (x.flatten(0, 1) if self.lead else x,)
        y: Tensor = aten._adaptive_avg_pool2d(*self.saved, self.step.args[1])
        return y.unflatten(0, x.shape[:2]) if self.lead else y

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient of torch's operation."""
        below = aten._adaptive_avg_pool2d_backward(delta.flatten(0, 1) if self.lead else delta, *self.saved)
        return (below.unflatten(0, delta.shape[:2]) if self.lead else below,)


RULES: dict[str, type[Rule]] = {
    "convolution": Convolution, "max_pool2d_with_indices": MaxPool, "avg_pool2d": AvgPool,
    "_adaptive_avg_pool2d": AdaptivePool,
}  # fmt: skip
