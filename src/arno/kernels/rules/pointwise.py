"""Rules for operations on single numbers: activations, arithmetic, comparisons, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

import torch
from torch import Tensor

from ..record import NotRecorded, Value
from .rule import Deltas, Rule, aligned, reduced

aten = torch.ops.aten

#: For a rule of one tensor: what it keeps for the backward pass ("x": its input, "y": its output), the function that
#: computes the output, and the function that computes the gradient.
Pointwise = tuple[str, Callable[..., Tensor], Callable[..., Tensor]]


def within(x: Tensor, low: float | None = None, high: float | None = None, **named: float | None) -> Tensor:
    """Which numbers are between two limits. Each limit may be missing; torch also passes them as `min` and `max`."""
    low, high = named.get("min", low), named.get("max", high)
    there = torch.ones_like(x, dtype=torch.bool) if low is None else x >= low
    return there if high is None else there & (x <= high)


#: The constants of SELU: α and the scale.
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
#: Functions that write their output into the memory of the input; no other operation may read this input.
IN_PLACE: dict[str, Callable[..., Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}


class Point(Rule):
    """An activation: the same function of every number."""

    def prepare(self) -> None:
        """Read the further arguments of the activation."""
        self.keeps, self.function, self.slope = POINTWISE[self.step.name]
        self.rest, self.named = self.step.args[1:], self.step.kwargs
        if len(self.shapes) != 1 or not isinstance(self.step.args[0], Value):
            raise NotRecorded(f"{self.step.name} of more than one tensor")

    def overwrite(self) -> None:
        """Write the output into the memory of the input."""
        self.function = IN_PLACE.get(self.step.name, self.function)

    def forward(self, x: Tensor) -> Tensor:
        """f(x)."""
        y = self.function(x, *self.rest, **self.named)
        self.saved = (y if self.keeps == "y" else x,)
        return y

    def backward(self, delta: Tensor) -> Deltas:
        """δ f′(x)."""
        return (self.slope(delta, *self.saved, *self.rest, **self.named),)


#: The function a ∘ b, and the functions that compute the gradients of a and of b from δ.
ARITHMETIC: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., Tensor]]] = {
    "add": (lambda a, b: a + b, lambda d, a, b: d, lambda d, a, b: d),
    "sub": (lambda a, b: a - b, lambda d, a, b: d, lambda d, a, b: -d),
    "rsub": (lambda a, b: b - a, lambda d, a, b: -d, lambda d, a, b: d),
    "mul": (lambda a, b: a * b, lambda d, a, b: d * b, lambda d, a, b: d * a),
    "div": (lambda a, b: a / b, lambda d, a, b: d / b, lambda d, a, b: -d * (a / b / b)),
}


class Arithmetic(Rule):
    """a + b, a − b, a · b or a / b of tensors and numbers, with broadcasting."""

    constants = True

    def prepare(self) -> None:
        """Read which operands are tensors."""
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
        """The gradients of the operands that are tensors."""
        slopes = ARITHMETIC[self.step.name][1:]
        if not self.both:
            return (slopes[0](delta, *self.saved),)
        found = [slope(delta, *self.saved) if need else None for slope, need in zip(slopes, self.needs, strict=True)]
        return [None if d is None else reduced(d, at, self.lead) for d, at in zip(found, self.shapes, strict=True)]


class Same(Rule):
    """A copy of a tensor. The numbers are copied only to put them into the order of the axes in memory."""

    def forward(self, x: Tensor) -> Tensor:
        """The tensor in the requested order in memory."""
        return x.contiguous() if self.step.kwargs.get("memory_format") is torch.contiguous_format else x

    def backward(self, delta: Tensor) -> Deltas:
        """The same gradient."""
        return (delta,)


class Cast(Rule):
    """Numbers without a gradient in another type, for example a mask as numbers."""

    passes = False

    def prepare(self) -> None:
        """Refuse changes of anything else than the type."""
        if self.needs[0] or self.step.kwargs.keys() != {"dtype"}:
            raise NotRecorded("a change of type or device")

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers in the other type."""
        return x.to(self.step.kwargs["dtype"])

    def backward(self, delta: Tensor) -> Deltas:
        """No gradient."""
        return (None,)


class Masked(Rule):
    """A number in place of the numbers where the mask is true."""

    constants = True

    def prepare(self) -> None:
        """Refuse a tensor in place of the number."""
        if len(self.shapes) != 2:
            raise NotRecorded("a mask with a tensor in place of numbers")

    def forward(self, *tensors: Tensor) -> Tensor:
        """The numbers after masking; the mask is broadcast."""
        x, mask = aligned(self, tensors)
        self.saved = (mask,)
        return x.masked_fill(mask, self.step.args[2])

    def backward(self, delta: Tensor) -> Deltas:
        """δ, and zero where the mask is true."""
        return (delta.masked_fill(self.saved[0], 0), None)


COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne,
}  # fmt: skip


class Compare(Arithmetic):
    """Which numbers are larger, smaller or equal. The operation has no gradient."""

    passes = False

    def forward(self, *tensors: Tensor) -> Tensor:
        """The results of the comparison as booleans."""
        a, b = aligned(self, tensors) if self.both else (tensors[0], self.second)
        return COMPARISONS[self.step.name](a, b)


class Where(Rule):
    """The numbers of one tensor where a condition is true, and of another tensor elsewhere."""

    constants = True

    def prepare(self) -> None:
        """Refuse numbers in place of tensors."""
        if len(self.shapes) != 3:
            raise NotRecorded("where of numbers")

    def forward(self, *tensors: Tensor) -> Tensor:
        """The numbers of a where the condition is true, else those of b. All three tensors are broadcast."""
        held, a, b = aligned(self, tensors)
        self.saved = (held,)
        return torch.where(held, a, b)

    def backward(self, delta: Tensor) -> Deltas:
        """δ for the tensor that was chosen, zero for the other one."""
        (held,) = self.saved
        found = (None, torch.where(held, delta, 0), torch.where(held, 0, delta))
        triples = zip(found, self.needs, self.shapes, strict=True)
        return [reduced(d, shape, self.lead) if d is not None and need else None for d, need, shape in triples]


class Gated(Rule):
    """Half of the numbers along an axis, multiplied by the sigmoid of the other half."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of torch's operation."""
        self.saved = (x, self.axis(self.argument(1, "dim", -1)))
        return torch.nn.functional.glu(*self.saved)

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient of torch's operation."""
        return (torch.ops.aten.glu_backward(delta, *self.saved),)


class PReLU(Rule):
    """Numbers below zero are multiplied by a weight."""

    constants = True

    def forward(self, *tensors: Tensor) -> Tensor:
        """The outputs of torch's operation; the weight is broadcast."""
        x, weight = self.saved = tuple(aligned(self, tensors))
        y: Tensor = torch.ops.aten._prelu_kernel(x, weight)
        return y

    def backward(self, delta: Tensor) -> Deltas:
        """The gradients of torch's operation. The gradient of the weight is a sum, because the weight was broadcast."""
        found: Sequence[Tensor] = torch.ops.aten._prelu_kernel_backward(delta, *self.saved)
        return [reduced(d, shape, self.lead) for d, shape in zip(found, self.shapes, strict=True)]


RULES: dict[str, type[Rule]] = {
    **dict.fromkeys(POINTWISE, Point),
    **dict.fromkeys(ARITHMETIC, Arithmetic),
    **dict.fromkeys(COMPARISONS, Compare),
    **dict.fromkeys(("clone", "alias"), Same),
    "_to_copy": Cast, "masked_fill": Masked, "where": Where, "glu": Gated, "_prelu_kernel": PReLU,
}  # fmt: skip
