"""The same network with less work on a CPU: applied to copies; the given module stays as it is.

- In a network that is an `nn.Sequential`, ReLU moves behind the max-pooling that follows it: the same function with the
  same gradients, on fewer numbers.
- In a chain, a convolution whose output goes through pooling and ReLU into the next convolution gets filters of zeros
  up to a multiple of eight: a vector register holds eight numbers, so pooling six channels takes longer than eight.
- The weights' gradient of a wide convolution is one matrix product per few images, which stay in the cache: in
  channels_last, torch's own kernel for it reaches half the speed of its other kernels (with AVX2; with AVX-512 torch's
  kernel is faster and is kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .chain import Step
from .side_effects import hooked

#: Convolutions are wide from so many channels (in, out) on; measured, narrower ones gain nothing.
WIDE = (32, 64)
#: Numbers of unfolded images in one product.
UNFOLDED = 2**18


def lean(module: nn.Module, chain: Sequence[Step] | None = None, avx512: bool | None = None) -> nn.Module:
    """Change `module`, whose images come in channels_last, and return it; `chain` are its layers, where known."""
    if hooked(module):  # a hook sees what goes through its layer
        return module
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512" if avx512 is None else avx512
    _pool_first(module)
    _pad_filters(module, chain or ())
    for part in module.modules():
        if not avx512 and type(part) is nn.Conv2d and _suits(part):
            part.__class__ = Wide
    return module


def _pool_first(module: nn.Module | None) -> None:
    """Only in nested sequences: any other module may use the output of a layer in the middle."""
    if type(module) is not nn.Sequential:
        return
    layers = module._modules
    for first, second in pairwise(list(layers)):
        if type(layers[first]) is nn.ReLU and type(layers[second]) is nn.MaxPool2d:
            layers[first], layers[second] = layers[second], layers[first]
    for layer in layers.values():
        _pool_first(layer)


def _pad_filters(module: nn.Module, chain: Sequence[Step]) -> None:
    """Pad the filters of convolutions that feed another convolution."""
    convs = [module.get_submodule(step.name) for step in chain if step.kind == "conv"]
    plain = all(type(conv) is nn.Conv2d for conv in convs)
    if not plain or not any(len(conv.weight) % 8 for conv in convs[:-1]):  # type: ignore[arg-type]
        return
    for conv in convs:
        conv.__class__ = Padded if conv is not convs[-1] else Unpadded
    for conv in convs[1:]:
        conv.before = -conv.get_parameter("weight").shape[1] % 8  # type: ignore[assignment]


class Unpadded(nn.Conv2d):
    """A convolution that takes `before` more channels than it has weights for; the further channels are zeros."""

    padded = False
    before = 0

    def forward(self, x: Tensor) -> Tensor:
        """The convolution, with zero weights for the further channels and zero filters up to a multiple of eight."""
        more = -len(self.weight) % 8 if self.padded else 0
        if not more and not self.before:
            return super().forward(x)
        assert self.bias is not None
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, self.before, 0, more))
        return F.conv2d(x, weight, F.pad(self.bias, (0, more)), self.stride, self.padding)


class Padded(Unpadded):
    """The same with filters of zeros up to a multiple of eight."""

    padded = True


def _suits(conv: nn.Conv2d) -> bool:
    """Whether it is wide, and has the settings that `Convolution` computes."""
    plain = conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    still = set(conv.stride) == set(conv.dilation) == {1} and max(conv.kernel_size) > 1
    return plain and still and conv.in_channels >= WIDE[0] and conv.out_channels >= WIDE[1]


class Wide(nn.Conv2d):
    """A convolution whose gradient is `Convolution`."""

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers as those of `nn.Conv2d`."""
        if not torch.is_grad_enabled() or not x.is_contiguous(memory_format=torch.channels_last):
            return super().forward(x)
        return Convolution.apply(x, self.weight, self.bias, self.padding)  # type: ignore[no-any-return, no-untyped-call]


class Convolution(torch.autograd.Function):
    """Stride 1, zero padding. ∇x by torch's kernel, ∇W[o, ij, c] = Σ over pixels q of δ[q, o] · x[q + ij, c]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        """The convolution."""
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.biased = padding, bias is not None
        return torch.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Of input, weight and bias."""
        x, weight = ctx.saved_tensors
        (delta,) = deltas
        own = not torch.is_grad_enabled()  # torch makes the graph of a gradient of the gradient
        dx, dw, db = torch.ops.aten.convolution_backward(
            delta, x, weight, [len(weight)], [1, 1], ctx.padding, [1, 1], False, [0, 0], 1,
            (ctx.needs_input_grad[0], not own, not own and ctx.biased),
        )  # fmt: skip
        if own:
            dw, db = of_weight(x, delta, weight.shape, ctx.padding), delta.sum((0, 2, 3)) if ctx.biased else None
        return dx, dw, db, None


def of_weight(x: Tensor, delta: Tensor, shape: torch.Size, padding: tuple[int, int]) -> Tensor:
    """∇W of a convolution of `x` with stride 1."""
    outs, ins, height, width = shape
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0])).contiguous()
    deltas = delta.permute(0, 2, 3, 1).contiguous()
    image, row, pixel, _ = pixels.stride()
    _, rows, columns, _ = deltas.shape
    some = max(1, UNFOLDED // (rows * columns * height * width * ins))
    total = x.new_zeros(outs, height * width * ins)
    for a, b in zip(pixels.split(some), deltas.split(some), strict=True):
        patches = a.as_strided((len(a), rows, columns, height, width * ins), (image, row, pixel, row, 1))
        total.addmm_(b.view(-1, outs).t(), patches.reshape(-1, height * width * ins))
    return total.view(outs, height, width, ins).permute(0, 3, 1, 2)
