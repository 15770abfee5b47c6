"""Narrow convolutional networks: the gradient is computed by products with banded matrices.

A strip of s columns in a row of a convolution's output depends on k rows and s + k − 1 columns of its input. These
numbers, and a one for the bias, are a row of a matrix P. The strip is then a row of Z = P T. T holds the filters s
times: each copy is one pixel further than the copy before it, and all other entries are zero. So ∇T = Pᵀ δ and ∇P = δ
Tᵀ. About half of the entries of T are zero, but the products run at full speed, which narrow convolutions do not. The
even and the odd rows and columns of Z are stored apart, so that 2×2 max-pooling is the maximum of two halves, computed
twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..tasks.task import Task
from .chain import Step
from .dense import Layers, activation_of
from .kernel import Recorded
from .products import product, turned_product

#: The most numbers in a strip. Wider strips have more zeros, and narrower strips make shorter products.
STRIP = 64
#: How many images are scored together: their strips fit into the cache of a core.
FEW = 64


def suits(module: nn.Module, chain: Sequence[Step], shape: Sequence[int]) -> bool:
    """Whether a chain is narrow convolutions, each with pooling and ReLU, and then a perceptron with ReLU.

    On images of this shape, the outputs of every convolution must have an even height and width.
    """
    convs, dense = split(chain)
    if not convs or len(shape) != 3 or not dense or dense[0].kind != "flatten":
        return False
    if activation_of(dense) not in ("", "relu"):
        return False
    sides = list(shape[1:])
    for step in convs:
        weight = module.get_submodule(step.name).weight
        assert isinstance(weight, Tensor)
        sides = [side - k + 1 for side, k in zip(sides, weight.shape[2:], strict=True)]
        if len(weight) > STRIP // 2 or any(side % 2 or side < 2 for side in sides):
            return False
        sides = [side // 2 for side in sides]
    return True


def split(chain: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """The convolutions at the start, each followed by pooling and ReLU in any order, and the rest of the chain."""
    convs, at = [], 0
    while [step.kind for step in chain[at : at + 3]] in (["conv", "pool", "relu"], ["conv", "relu", "pool"]):
        convs.append(chain[at])
        at += 3
    return convs, list(chain[at:])


class ConvStrips(Recorded):
    """Computes a network for which `suits` is true, on images in channels_last."""

    name = "strips"

    def __init__(
        self, module: nn.Module, task: Task, chain: Sequence[Step], shape: Sequence[int], trains: bool = True
    ) -> None:
        super().__init__(module, task, shape, trains)
        convs, dense = split(chain)
        of, into = self.layout.views(self.w), self.layout.views(self.g if trains else self.w)
        self.convs: list[Strips] = []
        for name in (step.name for step in convs):
            views = (of[f"{name}.weight"], of[f"{name}.bias"], into[f"{name}.weight"], into[f"{name}.bias"])
            self.convs.append(Strips(*views, *(self.convs[-1].out if self.convs else shape[1:])))
        self.dense = Layers(self.layout, dense, self.w, self.g if trains else self.w)

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the last layer, computed for a few images at a time, which stay in the cache."""
        if not self.usual(len(x)):
            return super().outputs(x)
        return torch.cat([self.dense.outputs(self.embed(some).flatten(1)) for some in x.split(FEW)])

    def written(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient into `g` with one forward and one backward pass, and return the loss."""
        h = self.embed(x)
        inputs: list[Tensor] = []
        flat = h.flatten(1)
        loss, delta = self.task.gradient(self.dense.outputs(flat, inputs), y)
        delta = product(self.dense.backward(delta, inputs), self.dense.first)
        delta = delta.view(h.shape).permute(0, 2, 3, 1).contiguous()
        for conv in reversed(self.convs[1:]):
            delta = conv.backward(delta)
        self.convs[0].weights(delta)
        return loss

    def embed(self, x: Tensor) -> Tensor:
        """The output of the last convolution, [n, channels, height, width]."""
        x = x.permute(0, 2, 3, 1)
        for conv in self.convs:
            x = conv.forward(x)
        return x.permute(0, 3, 1, 2)


class Strips:
    """A convolution, then 2×2 max-pooling and ReLU, on images [n, height, width, channels]: outputs and gradients."""

    def __init__(self, weight: Tensor, bias: Tensor, to: Tensor, to_bias: Tensor, height: int, width: int) -> None:
        self.weight, self.bias, self.to, self.to_bias = weight, bias, to, to_bias
        filters, channels, k, across = weight.shape
        rows, columns = height - k + 1, width - across + 1
        fit = [s for s in range(2, columns + 1, 2) if columns % s == 0 and s * filters <= STRIP]
        self.s, self.half, self.out = max(fit), rows // 2, (rows // 2, columns // 2)
        self.height, self.width, self.strips = height, width, columns // self.s
        self.run = (self.s + across - 1) * channels  # the numbers of one row of the input on which a strip depends
        wide = self.s * filters
        self.t, self.dt = (weight.new_zeros(k * self.run + 1, wide) for _ in range(2))
        # The places of the filters in T: [pair of columns, left or right, filter, channel, row, column]
        shape = (self.s // 2, 2, filters, channels, k, across)
        step = channels * wide
        place = (2 * step + filters, step + wide // 2, 1, wide, self.run * wide, step)
        self.band = self.t.as_strided(shape, place)
        self.bands = [copy for pair in self.dt.as_strided(shape, place) for copy in pair]
        self.p = self.t.new_ones(0, len(self.t))

    def forward(self, x: Tensor) -> Tensor:
        """relu(maxpool(conv(x))). Intermediate results are kept for `weights` and `backward`."""
        n, channels, k = len(x), self.weight.shape[1], self.weight.shape[2]
        self.band.copy_(self.weight)
        self.t[-1].view(self.s, -1).copy_(self.bias)
        line, image, m = self.width * channels, self.height * self.run, 2 * n * self.half * self.strips
        if len(self.p) < m:
            self.p = self.t.new_ones(m, len(self.t))
        # First the parts of all rows for a strip next to each other, then k of them as one run:
        # [odd, image, pair of rows, strip, run]
        cut = x.as_strided((n, self.strips, self.height, self.run), (self.height * line, self.s * channels, line, 1))
        shape = (2, n, self.half, self.strips, k * self.run)
        patches = cut.contiguous().as_strided(shape, (self.run, self.strips * image, 2 * self.run, image, 1))
        self.p[:m].view(*shape[:-1], -1)[..., :-1].copy_(patches)
        self.z = product(self.p[:m], self.t).view(2, m // 2, 2, -1)
        self.c = torch.maximum(*self.z.unbind(2))
        self.h = torch.maximum(*self.c).relu_()
        return self.h.view(n, *self.out, -1)

    def weights(self, delta: Tensor) -> Tensor:
        """Write ∇W and ∇b; return δ before pooling, in strips.

        The gradient of a pooled number goes to the largest number of its window, the first one of equal numbers.
        """
        (upper, lower), (left, right) = self.c, self.z.unbind(2)
        delta = delta.view(self.h.shape) * self.h.gt_(0)
        torch.sub(delta, upper.ge_(lower).mul_(delta), out=lower)
        torch.sub(self.c, left.ge_(right).mul_(self.c), out=right)
        z = self.z.view(-1, self.t.shape[1])
        turned_product(self.p[: len(z)], z, self.dt)
        self.to.copy_(self.bands[0])
        for copy in self.bands[1:]:
            self.to.add_(copy)
        torch.sum(self.dt[-1].view(self.s, -1), 0, out=self.to_bias)
        return z

    def backward(self, delta: Tensor) -> Tensor:
        """Write ∇W and ∇b; return δ with respect to the input."""
        z = self.weights(delta)
        k, step = self.weight.shape[2], self.s * self.weight.shape[1]
        patches = product(z, self.t[:-1].t()).view(2, -1, self.half, self.strips, k, self.run)
        x = patches.new_zeros(patches.shape[1], self.height, self.width * self.weight.shape[1])
        for i in range(k):
            rows = x[:, i : i + 2 * self.half].unflatten(1, (-1, 2)).permute(2, 0, 1, 3)
            for j in range(self.strips):
                rows[..., j * step : j * step + self.run] += patches[:, :, :, j, i]
        return x
