"""Changes a network so that a CPU has less work. The callers give copies, so that the user's network does not change.

- In a network that is an `nn.Sequential`, ReLU moves behind the max-pooling that follows it. The function and its
  gradients are the same, on fewer numbers.
- In a chain, a convolution whose output goes through pooling and ReLU into the next convolution gets filters of zeros
  until their number is a multiple of eight. A vector register holds eight numbers, so pooling of six channels takes
  longer than pooling of eight.
- The gradient of the weights of a wide convolution is a product of matrices for a few images at a time, which stay in
  the cache. In channels_last, torch's own kernel for it has half the speed of torch's other kernels with AVX2. With
  AVX-512 torch's kernel is faster and is kept.
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

#: A wide convolution has at least this many channels (in, out). Measurements show no gain for narrower ones.
WIDE = (32, 64)
#: The most numbers of unfolded images in one product, unless a single image has more.
UNFOLDED = 2**18


def lean(module: nn.Module, chain: Sequence[Step] | None = None, avx512: bool | None = None) -> nn.Module:
    """Change `module` in place and return it. Its images are in channels_last. chain: its layers, if they are known."""
    if hooked(module):  # a hook reads the inputs or outputs of its layer, so they must not change
        return module
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512" if avx512 is None else avx512
    _pool_first(module)
    _pad_filters(module, chain or ())
    for part in module.modules():
        if not avx512 and type(part) is nn.Conv2d and _suits(part):
            part.__class__ = Wide
    return module


def _pool_first(module: nn.Module | None) -> None:
    """Move ReLU behind max-pooling in nested sequences only: other modules may use the output of any layer."""
    if type(module) is not nn.Sequential:
        return
    layers = module._modules
    for first, second in pairwise(list(layers)):
        if type(layers[first]) is nn.ReLU and type(layers[second]) is nn.MaxPool2d:
            layers[first], layers[second] = layers[second], layers[first]
    for layer in layers.values():
        _pool_first(layer)


def _pad_filters(module: nn.Module, chain: Sequence[Step]) -> None:
    """Pad the filters of the convolutions whose output goes to another convolution."""
    convs = [module.get_submodule(step.name) for step in chain if step.kind == "conv"]
    plain = all(type(conv) is nn.Conv2d for conv in convs)
    if not plain or not any(len(conv.weight) % 8 for conv in convs[:-1]):  # type: ignore[arg-type]
        return
    for conv in convs:
        conv.__class__ = Padded if conv is not convs[-1] else Unpadded
    for conv in convs[1:]:
        conv.before = -conv.get_parameter("weight").shape[1] % 8  # type: ignore[assignment]


class Unpadded(nn.Conv2d):
    """A convolution whose input has `before` more channels than its weights; these additional channels are zero."""

    padded = False
    before = 0

    def forward(self, x: Tensor) -> Tensor:
        """The convolution, with weights of zero for the additional channels; `Padded` also adds filters of zeros."""
        more = -len(self.weight) % 8 if self.padded else 0
        if not more and not self.before:
            return super().forward(x)
        assert self.bias is not None
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, self.before, 0, more))
        return F.conv2d(x, weight, F.pad(self.bias, (0, more)), self.stride, self.padding)


class Padded(Unpadded):
    """The same, with additional filters of zeros until their number is a multiple of eight."""

    padded = True


def _suits(conv: nn.Conv2d) -> bool:
    """Whether a convolution is wide, and has settings that `Convolution` computes."""
    plain = conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    still = set(conv.stride) == set(conv.dilation) == {1} and max(conv.kernel_size) > 1
    return plain and still and conv.in_channels >= WIDE[0] and conv.out_channels >= WIDE[1]


class Wide(nn.Conv2d):
    """A convolution whose gradient is computed by `Convolution`."""

    def forward(self, x: Tensor) -> Tensor:
        """The same outputs as those of `nn.Conv2d`."""
        if not torch.is_grad_enabled() or not x.is_contiguous(memory_format=torch.channels_last):
            return super().forward(x)
        return Convolution.apply(x, self.weight, self.bias, self.padding)  # type: ignore[no-any-return, no-untyped-call]


class Convolution(torch.autograd.Function):
    """A convolution with stride 1 and zero padding.

    torch's kernel computes ∇x. ∇W[o, ij, c] = Σ over pixels q of δ[q, o] · x[q + ij, c].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        """The convolution."""
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.biased = padding, bias is not None
        return torch.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """The gradients of input, weight and bias."""
        x, weight = ctx.saved_tensors
        (delta,) = deltas
        own = not torch.is_grad_enabled()  # for a gradient of the gradient, torch computes all
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
