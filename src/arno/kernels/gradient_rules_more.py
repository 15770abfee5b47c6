"""Rules of operations that compare, pick or normalise numbers; see `gradient_rules.py` for what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradient_rules import Arithmetic, Deltas, Reduce, Rule, aligned, reduced
from .record import NotRecorded

COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne,
}  # fmt: skip


class Compare(Arithmetic):
    """Which numbers are larger, smaller or equal: no gradient goes through."""

    passes = False

    def forward(self, *tensors: Tensor) -> Tensor:
        """Booleans."""
        a, b = aligned(self, tensors) if self.both else (tensors[0], self.second)
        return COMPARISONS[self.step.name](a, b)


class Cast(Rule):
    """Numbers of another type that have no gradient, like a mask as numbers."""

    passes = False

    def prepare(self) -> None:
        """The type, and nothing else."""
        if self.needs[0] or self.step.kwargs.keys() != {"dtype"}:
            raise NotRecorded("a change of type or device")

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers in the other type."""
        return x.to(self.step.kwargs["dtype"])

    def backward(self, delta: Tensor) -> Deltas:
        """None."""
        return (None,)


class Where(Rule):
    """Numbers of one tensor where a condition holds, else of another."""

    constants = True

    def prepare(self) -> None:
        """Three tensors."""
        if len(self.shapes) != 3:
            raise NotRecorded("where of numbers")

    def forward(self, *tensors: Tensor) -> Tensor:
        """The numbers of a where the condition holds, else those of b; all three are broadcast."""
        held, a, b = aligned(self, tensors)
        self.saved = (held,)
        return torch.where(held, a, b)

    def backward(self, delta: Tensor) -> Deltas:
        """Of the one that was taken; zero for the other."""
        (held,) = self.saved
        found = (None, torch.where(held, delta, 0), torch.where(held, 0, delta))
        triples = zip(found, self.needs, self.shapes, strict=True)
        return [reduced(d, shape, self.lead) if d is not None and need else None for d, need, shape in triples]


class Extreme(Rule):
    """The largest or the smallest along an axis, and its place, which gets the gradient."""

    outputs = 2

    def prepare(self) -> None:
        """The axis."""
        at = self.argument(1, "dim")
        if not isinstance(at, int) or len(self.shapes) != 1:
            raise NotRecorded(f"{self.step.name} over all axes")
        self.at, self.keep = self.axis(at), self.argument(2, "keepdim", False)
        self.function = torch.max if self.step.name == "max" else torch.min

    def forward(self, x: Tensor) -> Any:
        """Values and places."""
        y, places = self.function(x, self.at, True)
        self.saved = (places,)
        return (y, places) if self.keep else (y.squeeze(self.at), places.squeeze(self.at))

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """Zeros elsewhere."""
        (places,) = self.saved
        delta = delta if self.keep else delta.unsqueeze(self.at)
        return (delta.new_zeros(self.whole(self.shapes[0], delta)).scatter_(self.at, places, delta),)


OVER: dict[str, Callable[..., Tensor]] = {
    "amax": torch.amax, "amin": torch.amin, "logsumexp": torch.logsumexp, "var": torch.var, "std": torch.std,
}  # fmt: skip


class Over(Reduce):
    """A function of the numbers along some axes: the largest, log Σ exp, the variance or its root."""

    def prepare(self) -> None:
        """The axes, and the correction of a variance."""
        super().prepare()
        self.more: dict[str, Any] = {}
        if self.step.name in ("var", "std"):
            self.keep = self.step.kwargs.get("keepdim", False)
            self.correction = self.step.kwargs.get("correction", 1)
            self.more = {"correction": self.correction}

    def forward(self, x: Tensor) -> Tensor:
        """The values, with the axes of length 1 for the way back."""
        y = OVER[self.step.name](x, self.axes, keepdim=True, **self.more)
        self.saved = (x, y)
        return y if self.keep else y.reshape(self.whole(self.shape, y))

    def backward(self, delta: Tensor) -> Deltas:
        """Equal numbers share the gradient of the largest."""
        x, y = self.saved
        delta, name = delta.reshape(y.shape), self.step.name
        if name in ("amax", "amin"):
            there = x == y
            return (delta / there.sum(self.axes, keepdim=True) * there,)
        if name == "logsumexp":
            return (delta * (x - y).exp(),)
        centred = x - x.mean(self.axes, keepdim=True)
        degrees = self.count - self.correction
        if name == "var":
            return (delta * centred * (2 / degrees),)
        return ((delta / (degrees * y)).masked_fill(y == 0, 0) * centred,)


class Norm(Rule):
    """The Euclidean norm along some axes."""

    def prepare(self) -> None:
        """The axes."""
        axes = self.argument(2, "dim")
        if self.argument(1, "ord", 2) != 2 or axes is None or self.step.kwargs.get("dtype") is not None:
            raise NotRecorded("another norm than the Euclidean one along axes")
        self.axes, self.keep = [self.axis(at) for at in axes], self.argument(3, "keepdim", False)

    def forward(self, x: Tensor) -> Tensor:
        """The norm."""
        y: Tensor = torch.linalg.vector_norm(x, 2, self.axes, True)
        self.saved = (x, y)
        return y if self.keep else y.reshape(self.whole(self.shape, y))

    def backward(self, delta: Tensor) -> Deltas:
        """δ x / ‖x‖, and zero where the norm is."""
        x, y = self.saved
        return (delta.reshape(y.shape) * (x / y).masked_fill(y == 0, 0),)


class Gated(Rule):
    """Half of the numbers along an axis, times the sigmoid of the other half."""

    def forward(self, x: Tensor) -> Tensor:
        """Torch's operation."""
        self.saved = (x, self.axis(self.argument(1, "dim", -1)))
        return torch.nn.functional.glu(*self.saved)

    def backward(self, delta: Tensor) -> Deltas:
        """Torch's operation."""
        return (torch.ops.aten.glu_backward(delta, *self.saved),)


class PReLU(Rule):
    """Numbers below zero times a weight."""

    constants = True

    def forward(self, *tensors: Tensor) -> Tensor:
        """The weight is broadcast."""
        x, weight = self.saved = tuple(aligned(self, tensors))
        y: Tensor = torch.ops.aten._prelu_kernel(x, weight)
        return y

    def backward(self, delta: Tensor) -> Deltas:
        """Torch's operation; the gradient of the weight is a sum."""
        found: Sequence[Tensor] = torch.ops.aten._prelu_kernel_backward(delta, *self.saved)
        return [reduced(d, shape, self.lead) for d, shape in zip(found, self.shapes, strict=True)]


class NewAxis(Rule):
    """Tensors of one shape along a new axis."""

    def prepare(self) -> None:
        """The axis, of the result."""
        self.at = self.axis(self.argument(1, "dim", 0), self.shape)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The tensors, stacked along the axis."""
        return torch.stack(tensors, self.at)

    def backward(self, delta: Tensor) -> Deltas:
        """Its slice for each tensor."""
        return list(delta.unbind(self.at))


PICKS: dict[str, type[Rule]] = {
    **dict.fromkeys(COMPARISONS, Compare),
    **dict.fromkeys(("max", "min"), Extreme),
    **dict.fromkeys(OVER, Over),
    "where": Where, "_to_copy": Cast, "linalg_vector_norm": Norm, "glu": Gated, "_prelu_kernel": PReLU,
    "stack": NewAxis,
}  # fmt: skip
