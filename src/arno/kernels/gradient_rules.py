"""The operations of recorded networks, there and back: a rule computes its outputs, then the gradients of its inputs.

A rule computes one model, or many models of one shape at once (`lead`): then every tensor that depends on the model or
on the samples has one axis more, the first, with a row per model. Axes are counted from the last one, so that the same
rule serves both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import pi
from typing import Any

import torch
from torch import Tensor

from .record import NotRecorded, Operation, Value

aten = torch.ops.aten
Deltas = Sequence[Tensor | None]


class Rule(ABC):
    """One operation.

    lead: whether many models are computed at once. led: which of the tensors have the axis of models. needs: for which
    of the tensors a gradient is needed. constants: whether it takes constants as they are, without the axis of models.
    passes: whether a gradient goes through. even: whether all its tensors have as many axes as the result.
    """

    outputs = 1
    constants = False
    passes = True

    def __init__(self, step: Operation, lead: bool, led: Sequence[bool], needs: Sequence[bool]) -> None:
        self.step, self.lead, self.led, self.needs = step, lead, led, needs
        self.shape, self.shapes = step.shapes[0], [value.shape for value in step.values]
        self.even = all(len(shape) == len(self.shape) for shape in self.shapes)
        self.saved: tuple[Any, ...] = ()
        self.prepare()

    def prepare(self) -> None:
        """Read the arguments; raises `NotRecorded` for those that the rule does not compute."""
        return

    @abstractmethod
    def forward(self, *tensors: Any, **_: Any) -> Any:
        """The output, or a sequence of outputs."""

    @abstractmethod
    def backward(self, *deltas: Any, **_: Any) -> Deltas:
        """The gradient with respect to each tensor, of that with respect to the outputs; None where none is needed."""

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """An argument by its position or its name."""
        return self.step.args[at] if len(self.step.args) > at else self.step.kwargs.get(name, default)

    def axis(self, at: int, of: Sequence[int] | None = None) -> int:
        """An axis of the first tensor, counted from the last one."""
        return at if at < 0 else at - len(self.shapes[0] if of is None else of)

    def whole(self, shape: Sequence[int], like: Tensor) -> tuple[int, ...]:
        """A shape, with the axis of models of `like` before it."""
        return (like.shape[0], *shape) if self.lead else tuple(shape)


def reduced(delta: Tensor, shape: Sequence[int], lead: bool) -> Tensor:
    """The gradient of a tensor of this shape that was broadcast: the sum over the axes that were added or stretched."""
    own = delta.shape[1:] if lead else delta.shape
    if own == shape:
        return delta
    more = len(own) - len(shape)
    stretched = [i for i, n in enumerate(shape) if n == 1 and own[more + i] != 1]
    axes = [i + lead for i in (*range(more), *(more + i for i in stretched))]
    if axes:
        delta = delta.sum(axes, keepdim=True)
    return delta.reshape((*delta.shape[:1], *shape) if lead else tuple(shape))


def aligned(rule: Rule, tensors: Sequence[Tensor]) -> list[Tensor]:
    """With axes of length 1 behind the axis of models, where a tensor has fewer axes than the result."""
    if not rule.lead or rule.even:
        return list(tensors)
    missing = [
        (1,) * (len(rule.shape) - len(shape)) if led else () for shape, led in zip(rule.shapes, rule.led, strict=True)
    ]
    return [t.reshape(t.shape[0], *ones, *t.shape[1:]) if ones else t for t, ones in zip(tensors, missing, strict=True)]


#: What a rule of one tensor keeps for the way back ("x": its input, "y": its output), the operation, its gradient.
Pointwise = tuple[str, Callable[..., Tensor], Callable[..., Tensor]]


def within(x: Tensor, low: float | None = None, high: float | None = None, **named: float | None) -> Tensor:
    """Where numbers are between limits, of which each may be missing, and which torch also names `min` and `max`."""
    low, high = named.get("min", low), named.get("max", high)
    there = torch.ones_like(x, dtype=torch.bool) if low is None else x >= low
    return there if high is None else there & (x <= high)


#: The constants of SELU: its α and its scale.
SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)

POINTWISE: dict[str, Pointwise] = {
    "relu": ("y", torch.relu, lambda d, y: aten.threshold_backward(d, y, 0)),
    "tanh": ("y", torch.tanh, aten.tanh_backward),
    "sigmoid": ("y", torch.sigmoid, aten.sigmoid_backward),
    "exp": ("y", torch.exp, lambda d, y: d * y),
    "neg": ("y", torch.neg, lambda d, y: -d),
    "gelu": ("x", aten.gelu, aten.gelu_backward),
    "silu": ("x", aten.silu, aten.silu_backward),
    "mish": ("x", aten.mish, aten.mish_backward),
    "hardswish": ("x", aten.hardswish, aten.hardswish_backward),
    "hardsigmoid": ("x", aten.hardsigmoid, aten.hardsigmoid_backward),
    "leaky_relu": ("x", aten.leaky_relu, lambda d, x, slope=0.01: aten.leaky_relu_backward(d, x, slope, False)),
    "hardtanh": ("x", aten.hardtanh, lambda d, x, low=-1, high=1: aten.hardtanh_backward(d, x, low, high)),
    "softplus": ("x", aten.softplus, lambda d, x, beta=1, most=20: aten.softplus_backward(d, x, beta, most)),
    "celu": ("x", aten.celu, lambda d, x, a=1: aten.elu_backward(d, a, 1, 1 / a, False, x)),
    "selu": ("x", aten.selu, lambda d, x: aten.elu_backward(d, *SELU, 1, False, x)),
    "abs": ("x", torch.abs, lambda d, x: d * x.sign()),
    "sin": ("x", torch.sin, lambda d, x: d * x.cos()),
    "cos": ("x", torch.cos, lambda d, x: -d * x.sin()),
    "log": ("x", torch.log, lambda d, x: d / x),
    "sqrt": ("y", torch.sqrt, lambda d, y: d / (2 * y)),
    "rsqrt": ("y", torch.rsqrt, lambda d, y: -0.5 * d * y**3),
    "reciprocal": ("y", torch.reciprocal, lambda d, y: -d * y * y),
    "pow": ("x", torch.pow, lambda d, x, e: d * (e * x ** (e - 1))),
    "clamp_min": ("x", torch.clamp_min, lambda d, x, low: d * (x >= low)),
    "clamp": ("x", torch.clamp, lambda d, x, *limits, **named: d * within(x, *limits, **named)),
    "hardshrink": ("x", aten.hardshrink, lambda d, x, most=0.5: aten.hardshrink_backward(d, x, most)),
    "softshrink": ("x", aten.softshrink, lambda d, x, most=0.5: aten.softshrink_backward(d, x, most)),
    "threshold": ("x", aten.threshold, lambda d, x, low, value: aten.threshold_backward(d, x, low)),
    "erf": ("x", torch.erf, lambda d, x: d * (2 / pi**0.5) * torch.exp(-x * x)),
    "log1p": ("x", torch.log1p, lambda d, x: d / (x + 1)),
    "elu": ("x", aten.elu, lambda d, x, a=1, s=1, i=1: aten.elu_backward(d, a, s, i, False, x)),
}  # fmt: skip
#: The same in the memory of the input, which nothing else reads.
IN_PLACE: dict[str, Callable[..., Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}


class Point(Rule):
    """An activation: the same function of every number."""

    def prepare(self) -> None:
        """Further numbers of the activation."""
        self.keeps, self.function, self.slope = POINTWISE[self.step.name]
        self.rest, self.named = self.step.args[1:], self.step.kwargs
        if len(self.shapes) != 1 or not isinstance(self.step.args[0], Value):
            raise NotRecorded(f"{self.step.name} of more than one tensor")

    def overwrite(self) -> None:
        """Compute in the memory of the input."""
        self.function = IN_PLACE.get(self.step.name, self.function)

    def forward(self, x: Tensor) -> Tensor:
        """f(x)."""
        y = self.function(x, *self.rest, **self.named)
        self.saved = (y if self.keeps == "y" else x,)
        return y

    def backward(self, delta: Tensor) -> Deltas:
        """δ f′(x)."""
        return (self.slope(delta, *self.saved, *self.rest, **self.named),)


#: a ∘ b, and δ times its slopes in a and in b.
ARITHMETIC: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., Tensor]]] = {
    "add": (lambda a, b: a + b, lambda d, a, b: d, lambda d, a, b: d),
    "sub": (lambda a, b: a - b, lambda d, a, b: d, lambda d, a, b: -d),
    "rsub": (lambda a, b: b - a, lambda d, a, b: -d, lambda d, a, b: d),
    "mul": (lambda a, b: a * b, lambda d, a, b: d * b, lambda d, a, b: d * a),
    "div": (lambda a, b: a / b, lambda d, a, b: d / b, lambda d, a, b: -d * (a / b / b)),
}


class Arithmetic(Rule):
    """a + b, a − b, a · b, a / b of tensors and numbers, with broadcasting."""

    constants = True

    def prepare(self) -> None:
        """Which operand is a tensor."""
        self.first, self.second = self.step.args[:2]
        alpha = self.argument(2, "alpha", 1)
        if alpha != 1 or self.step.kwargs.keys() - {"alpha"}:
            raise NotRecorded(f"{self.step.name} with a factor or a rounding mode")
        self.both = isinstance(self.first, Value) and isinstance(self.second, Value)
        if not isinstance(self.first, Value):
            raise NotRecorded(f"{self.step.name} of a number and a tensor")

    def forward(self, *tensors: Tensor) -> Tensor:
        """The result."""
        a, b = aligned(self, tensors) if self.both else (tensors[0], self.second)
        self.saved = (a, b)
        return ARITHMETIC[self.step.name][0](a, b)

    def backward(self, delta: Tensor) -> Deltas:
        """By the rules of sums, products and quotients."""
        slopes = ARITHMETIC[self.step.name][1:]
        if not self.both:
            return (slopes[0](delta, *self.saved),)
        found = [slope(delta, *self.saved) if need else None for slope, need in zip(slopes, self.needs, strict=True)]
        return [None if d is None else reduced(d, at, self.lead) for d, at in zip(found, self.shapes, strict=True)]


#: Operations that give the same numbers another shape.
RESHAPES = ("view", "_unsafe_view", "unsqueeze", "squeeze", "reshape")


class Reshape(Rule):
    """The same numbers in the same order in another shape."""

    def prepare(self) -> None:
        """Both shapes; −1 stands for the models."""
        self.there, self.back = ((-1, *shape) if self.lead else shape for shape in (self.shape, self.shapes[0]))

    def forward(self, x: Tensor) -> Tensor:
        """A view where possible."""
        return x.reshape(self.there)

    def backward(self, delta: Tensor) -> Deltas:
        """In the shape of the input."""
        return (delta.reshape(self.back),)


class Same(Rule):
    """A copy: the numbers are not changed, so none is made, except to put them into the order of the axes."""

    def forward(self, x: Tensor) -> Tensor:
        """In the order that was asked for."""
        return x.contiguous() if self.step.kwargs.get("memory_format") is torch.contiguous_format else x

    def backward(self, delta: Tensor) -> Deltas:
        """It is passed on as it is."""
        return (delta,)


class Permute(Rule):
    """Other orders of the axes."""

    def prepare(self) -> None:
        """The order, of axes counted from the last one."""
        n = len(self.shapes[0])
        order = list(range(n))
        if self.step.name == "permute":
            order = [at % n for at in self.step.args[1]]
        else:
            a, b = (at % n for at in (self.step.args[1:] or (0, 1)))
            order[a], order[b] = b, a
        self.order = self._led(order)
        self.back = self._led([order.index(i) for i in range(n)])

    def _led(self, order: list[int]) -> list[int]:
        return [0, *(i + 1 for i in order)] if self.lead else order

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        return x.permute(self.order)

    def backward(self, delta: Tensor) -> Deltas:
        """With the axes in the order of the input."""
        return (delta.permute(self.back),)


class Expand(Rule):
    """Axes of length 1 stretched, and new axes before the others."""

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        ones = (1,) * (len(self.shape) - len(self.shapes[0]))
        return x.reshape(self.whole((*ones, *self.shapes[0]), x)).expand(self.whole(self.shape, x))

    def backward(self, delta: Tensor) -> Deltas:
        """The sum over what was stretched."""
        return (reduced(delta, self.shapes[0], self.lead),)


class Part(Rule):
    """One index or a range of an axis."""

    def prepare(self) -> None:
        """Which."""
        self.at = self.axis(self.argument(1, "dim", 0))
        if self.step.name == "slice":
            first, last, step = self.argument(2, "start"), self.argument(3, "end"), self.argument(4, "step", 1)
            self.places: Any = slice(first, last, step)
        else:
            self.places = self.step.args[2]

    def _cut(self, x: Tensor) -> Tensor:
        return x[(..., self.places, *(slice(None),) * (-self.at - 1))]

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        return self._cut(x)

    def backward(self, delta: Tensor) -> Deltas:
        """Zeros elsewhere."""
        whole = delta.new_zeros(self.whole(self.shapes[0], delta))
        self._cut(whole).copy_(delta)
        return (whole,)


class Windows(Rule):
    """Windows along an axis, each of them as a new last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        at, size, step = self.step.args[1:]
        self.saved = (x.shape, x.ndim + self.axis(at), size, step)
        return x.unfold(*self.saved[1:])

    def backward(self, delta: Tensor) -> Deltas:
        """The sum over the windows that hold a number."""
        return (aten.unfold_backward(delta, *self.saved),)


class Parts(Rule):
    """An axis cut into pieces, or into its single indices."""

    def prepare(self) -> None:
        """How many there are."""
        self.single = self.step.name == "unbind"
        self.at = self.axis(self.argument(1 if self.single else 2, "dim", 0))
        self.outputs = len(self.step.shapes)
        self.lengths = [] if self.single else [shape[self.at] for shape in self.step.shapes]

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Views."""
        self.saved = (x,)
        return self._cut(x)

    def _cut(self, x: Tensor) -> Sequence[Tensor]:
        return x.unbind(self.at) if self.single else x.split(self.lengths, self.at)

    def backward(self, *deltas: Tensor | None) -> Deltas:
        """Together again, with the axes in memory as in the input; a piece that was not used has no gradient."""
        whole = torch.empty_like(*self.saved)
        for place, delta in zip(self._cut(whole), deltas, strict=True):
            if delta is None:
                place.zero_()
            else:
                place.copy_(delta)
        return (whole,)


class Cat(Rule):
    """Tensors one after another along an axis."""

    def prepare(self) -> None:
        """The axis, and the length of each tensor along it."""
        self.at = self.axis(self.argument(1, "dim", 0))
        self.lengths = [shape[self.at] for shape in self.shapes]

    def forward(self, *tensors: Tensor) -> Tensor:
        """The tensors, one after another."""
        return torch.cat(tensors, self.at)

    def backward(self, delta: Tensor) -> Deltas:
        """The piece for each tensor."""
        return list(delta.split(self.lengths, self.at))


class Reduce(Rule):
    """The sum or the mean over some axes."""

    def prepare(self) -> None:
        """Which."""
        axes = self.argument(1, "dim")
        if axes is None or self.step.kwargs.get("dtype") is not None:
            raise NotRecorded(f"{self.step.name} over all axes")
        self.axes = [self.axis(at) for at in axes] or [-1 - i for i in range(len(self.shapes[0]))]
        self.keep = self.argument(2, "keepdim", False)
        self.count = 1
        for at in self.axes:
            self.count *= self.shapes[0][at]

    def forward(self, x: Tensor) -> Tensor:
        """The sum or the mean."""
        return x.mean(self.axes, self.keep) if self.step.name == "mean" else x.sum(self.axes, self.keep)

    def backward(self, delta: Tensor) -> Deltas:
        """The same for every number."""
        shape = list(self.shapes[0])
        for at in self.axes:
            shape[at] = 1
        delta = delta / self.count if self.step.name == "mean" else delta
        return (delta.reshape(self.whole(shape, delta)).expand(self.whole(self.shapes[0], delta)),)


class Softmax(Rule):
    """softmax or its logarithm, along an axis."""

    def prepare(self) -> None:
        """Which axis."""
        self.at, self.log = self.axis(self.step.args[1]), "log" in self.step.name

    def forward(self, x: Tensor) -> Tensor:
        """The values, which the way back needs."""
        y = x.log_softmax(self.at) if self.log else x.softmax(self.at)
        self.saved = (y,)
        return y

    def backward(self, delta: Tensor) -> Deltas:
        """δ y − y Σ δ y, or δ − e^y Σ δ."""
        (y,) = self.saved
        back = aten._log_softmax_backward_data if self.log else aten._softmax_backward_data
        return (back(delta, y, self.at, y.dtype),)


class Product(Rule):
    """Products of matrices; the models are further ones of them."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """a b."""
        self.saved = (a, b)
        return a @ b

    def backward(self, delta: Tensor) -> Deltas:
        """δ bᵀ and aᵀ δ."""
        a, b = self.saved
        return (delta @ b.mT if self.needs[0] else None, a.mT @ delta if self.needs[1] else None)


class Masked(Rule):
    """A number in place of those where the mask is set."""

    constants = True

    def prepare(self) -> None:
        """The number must be known."""
        if len(self.shapes) != 2:
            raise NotRecorded("a mask with a tensor in place of numbers")

    def forward(self, *tensors: Tensor) -> Tensor:
        """The mask is broadcast."""
        x, mask = aligned(self, tensors)
        self.saved = (mask,)
        return x.masked_fill(mask, self.step.args[2])

    def backward(self, delta: Tensor) -> Deltas:
        """Zero there."""
        return (delta.masked_fill(self.saved[0], 0), None)


class LayerNorm(Rule):
    """Samples with mean 0 and variance 1 over the last axes, then a factor and a summand for each number."""

    outputs = 3

    def prepare(self) -> None:
        """The axes, and whether there are weights."""
        _, self.last, weight, bias, self.eps = self.step.args
        self.axes = [1, *range(2, len(self.shapes[0]) - len(self.last) + 1)] if self.lead else []
        self.weighted, self.biased = weight is not None, bias is not None
        self.spread = (-1, *(1,) * (len(self.shapes[0]) - len(self.last)), *self.last)

    def forward(self, x: Tensor, *weights: Tensor) -> Any:
        """One model with torch's operation; many models first without weights."""
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
        """Samples with mean 0 and variance 1, the means, and 1 over the roots of the variances.

        Torch's operation goes through short rows of numbers one by one; these take half the time.
        """
        if len(self.last) > 1:
            return torch.native_layer_norm(x, self.last, None, None, self.eps)
        mean = x.mean(-1, True)
        y = x - mean
        scale = torch.linalg.vector_norm(y, 2, -1, True).square_().div_(self.last[0]).add_(self.eps).rsqrt_()
        return y.mul_(scale), mean, scale

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """Of the samples, the factors, the summands."""
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
    """Groups of channels with mean 0 and variance 1, then a factor and a summand for each channel; one model."""

    outputs = 3

    def prepare(self) -> None:
        """The sizes."""
        if self.lead:
            raise NotRecorded("GroupNorm of many models")
        _, weight, bias, *self.sizes = self.step.args
        self.weighted, self.biased = weight is not None, bias is not None

    def forward(self, x: Tensor, *weights: Tensor) -> Any:
        """Torch's operation."""
        weight = weights[0] if self.weighted else None
        bias = weights[-1] if self.biased else None
        x = x.contiguous()
        y, mean, scale = torch.native_group_norm(x, weight, bias, *self.sizes)
        self.saved = (x, mean, scale, weight)
        return y, mean, scale

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """Torch's operation."""
        x, mean, scale, weight = self.saved
        need = [self.needs[0], self.weighted, self.biased]
        found = aten.native_group_norm_backward(delta.contiguous(), x, mean, scale, weight, *self.sizes[:-1], need)
        return [found[i] for i, there in enumerate((True, self.weighted, self.biased)) if there]


def cuts_patches(step: Operation) -> bool:
    """Whether a convolution is a product with patches that do not overlap and cover the image."""
    image, weight = (step.args[i].shape for i in (0, 1))
    stride, padding, dilation, transposed, _, groups = step.args[3:]
    plain = not any(padding) and set(dilation) == {1} and not transposed and groups == 1
    return plain and list(stride) == list(weight[2:]) and not any(n % k for n, k in zip(image[2:], stride, strict=True))


class Convolution(Rule):
    """A convolution of one model; of many models only if it is a product with patches."""

    def prepare(self) -> None:
        """Its settings."""
        self.biased, self.settings = self.step.args[2] is not None, self.step.args[3:]
        if self.lead and (len(self.shape) != 4 or not cuts_patches(self.step)):
            raise NotRecorded("convolutions of many models: products of one model are faster")

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Torch's operation, or products with patches."""
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
        """Torch's operation, or products with patches."""
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
    """Window, stride, padding, dilation, and whether the windows at the edges may be cut."""
    given, defaults = step.args[1:], ((), [0, 0], [1, 1], False)
    window, stride, *rest = given + defaults[len(given) - 1 :]
    return (window, stride or window, *rest)


def by_halves(step: Operation) -> bool:
    """Whether an operation is max-pooling of images by windows of 2×2 that cover them."""
    if step.name != "max_pool2d_with_indices" or len(step.shapes[0]) != 4:
        return False
    usual = tuple(map(list, pooling(step)[:4])) == ([2, 2], [2, 2], [0, 0], [1, 1])
    return usual and not any(side % 2 for side in step.values[0].shape[2:])


class MaxPool(Rule):
    """The largest of the numbers in a window; the first of equals gets the gradient.

    In the default layout torch's operation takes longer than a convolution; windows of 2×2 are halved twice instead.
    """

    outputs = 2

    def prepare(self) -> None:
        """Its settings."""
        self.all, self.halves = pooling(self.step), by_halves(self.step)

    def forward(self, x: Tensor) -> Any:
        """The larger of halves, or torch's operation; for all models as one."""
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
        """To the largest of each window."""
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
    """δ at the largest number of each window of 2×2, the first of equals; `rows` are the larger of its rows."""
    upper, lower = halves(x)
    above = torch.ge(upper, lower, out=torch.empty_like(rows))  # the largest of a column is in the upper row
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
        """Its settings."""
        defaults: tuple[Any, ...] = (None, [], [0, 0], False, True, None)
        self.settings = (*self.step.args[1:], *defaults[len(self.step.args) - 1 :])

    def forward(self, x: Tensor) -> Tensor:
        """Torch's operation, for all models as one."""
        self.saved = (x.flatten(0, 1) if self.lead else x,)
        y: Tensor = aten.avg_pool2d(*self.saved, *self.settings)
        return y.unflatten(0, x.shape[:2]) if self.lead else y

    def backward(self, delta: Tensor) -> Deltas:
        """Torch's operation."""
        flat = delta.flatten(0, 1) if self.lead else delta
        below = aten.avg_pool2d_backward(flat, *self.saved, *self.settings)
        return (below.unflatten(0, delta.shape[:2]) if self.lead else below,)


class AdaptivePool(Rule):
    """Means over as many windows as asked for."""

    def forward(self, x: Tensor) -> Tensor:
        """Torch's operation, for all models as one."""
        self.saved = (x.flatten(0, 1) if self.lead else x,)
        y: Tensor = aten._adaptive_avg_pool2d(*self.saved, self.step.args[1])
        return y.unflatten(0, x.shape[:2]) if self.lead else y

    def backward(self, delta: Tensor) -> Deltas:
        """Torch's operation."""
        below = aten._adaptive_avg_pool2d_backward(delta.flatten(0, 1) if self.lead else delta, *self.saved)
        return (below.unflatten(0, delta.shape[:2]) if self.lead else below,)


class Embedding(Rule):
    """A row of the table for each token."""

    def prepare(self) -> None:
        """The row that is not trained; without the options that change the gradient further."""
        self.padding = self.argument(2, "padding_idx", -1)
        if self.argument(3, "scale_grad_by_freq", False) or self.argument(4, "sparse", False):
            raise NotRecorded("an embedding with scaled or sparse gradients")

    def forward(self, table: Tensor, tokens: Tensor) -> Tensor:
        """The tables of many models are one long table."""
        if self.lead:
            rows = torch.arange(len(table), device=table.device).view(-1, *(1,) * (tokens.ndim - 1))
            tokens, table = tokens + rows * table.shape[1], table.flatten(0, 1)
        self.saved = (tokens, table.shape)
        return table.index_select(0, tokens.reshape(-1)).view(*tokens.shape, -1)

    def backward(self, delta: Tensor) -> Deltas:
        """Sums over the places of each token."""
        tokens, shape = self.saved
        table = delta.new_zeros(shape).index_add_(0, tokens.reshape(-1), delta.reshape(-1, shape[-1]))
        table = table.view(-1, *self.shapes[0]) if self.lead else table
        if self.padding >= 0:
            table[..., self.padding, :] = 0
        return (table, None)


#: The longest sequence for which attention of many models is written as products and a softmax: torch's operation
#: works on blocks that short sequences do not fill.
SHORT = 32


class Attention(Rule):
    """Scaled dot-product attention as one operation."""

    outputs = 2

    def prepare(self) -> None:
        """Without dropout, which would draw inside the operation."""
        names = ("dropout_p", "is_causal")
        self.dropout, self.causal = (self.argument(3 + i, name, 0) for i, name in enumerate(names))
        self.scale = self.step.kwargs.get("scale")
        if self.dropout or len(self.shapes) > 3:
            raise NotRecorded("attention with dropout or a mask in one operation")
        queries, keys = self.shapes[0], self.shapes[1]
        self.short = self.lead and not self.causal and max(queries[-2], keys[-2]) <= SHORT
        self.factor = queries[-1] ** -0.5 if self.scale is None else self.scale

    def forward(self, *tensors: Tensor) -> Any:
        """Torch's operation, for all models as one, or softmax(s Q Kᵀ) V."""
        if self.short:
            q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in tensors)
            share = self._times(q, k.mT).softmax(-1)
            self.saved = (q, k, v, share)
            return torch.bmm(share, v).view(*tensors[0].shape[:-1], -1), None
        flat = [self._rows(t) for t in tensors]
        y, sums = aten._scaled_dot_product_flash_attention_for_cpu(*flat, 0.0, bool(self.causal), scale=self.scale)
        self.saved = (*flat, y, sums)
        return (y.unflatten(0, tensors[0].shape[:2]) if self.lead else y), sums

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """Torch's operation, or the products."""
        if self.short:
            return self._backward(delta)
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = back(self._rows(delta), *self.saved, 0.0, bool(self.causal), scale=self.scale)
        return [d.unflatten(0, delta.shape[:2]) for d in found] if self.lead else found

    def _backward(self, delta: Tensor) -> Deltas:
        q, k, v, share = self.saved
        lead, delta = delta.shape[:-2], delta.reshape(-1, *delta.shape[-2:])
        score = aten._softmax_backward_data(torch.bmm(delta, v.mT), share, -1, share.dtype)
        found = (self._times(score, k), self._times(score.mT, q), torch.bmm(share.mT, delta))
        return [d.view(*lead, *d.shape[-2:]) for d in found]

    def _times(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of matrices times the factor of the scores."""
        return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=self.factor)

    def _rows(self, tensor: Tensor) -> Tensor:
        """Torch's operation needs the numbers of a row side by side, and does not check it."""
        tensor = tensor.flatten(0, 1) if self.lead else tensor
        return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


RULES: dict[str, type[Rule]] = {
    **dict.fromkeys(POINTWISE, Point),
    **dict.fromkeys(ARITHMETIC, Arithmetic),
    **dict.fromkeys(RESHAPES, Reshape),
    **dict.fromkeys(("t", "transpose", "permute"), Permute),
    **dict.fromkeys(("select", "slice"), Part),
    **dict.fromkeys(("unbind", "split", "split_with_sizes"), Parts),
    **dict.fromkeys(("mean", "sum"), Reduce),
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), Softmax),
    **dict.fromkeys(("mm", "bmm"), Product),
    **dict.fromkeys(("clone", "alias"), Same),
    "expand": Expand, "unfold": Windows, "cat": Cat, "masked_fill": Masked, "native_layer_norm": LayerNorm,
    "native_group_norm": GroupNorm, "convolution": Convolution, "max_pool2d_with_indices": MaxPool,
    "avg_pool2d": AvgPool, "_adaptive_avg_pool2d": AdaptivePool, "embedding": Embedding,
    "_scaled_dot_product_flash_attention_for_cpu": Attention,
}  # fmt: skip
