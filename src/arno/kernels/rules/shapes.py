"""Rules for operations that move numbers: shapes, axes, slices, joined tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rule import Deltas, Rule, reduced

aten = torch.ops.aten

#: Operations that change only the shape.
RESHAPES = ("view", "_unsafe_view", "unsqueeze", "squeeze", "reshape")


class Reshape(Rule):
    """The same numbers in the same order in another shape."""

    def prepare(self) -> None:
        """Keep both shapes; −1 is the axis of models."""
        self.there, self.back = ((-1, *shape) if self.lead else shape for shape in (self.shape, self.shapes[0]))

    def forward(self, x: Tensor) -> Tensor:
        """The numbers in the new shape; a view if possible."""
        return x.reshape(self.there)

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient in the shape of the input."""
        return (delta.reshape(self.back),)


class Permute(Rule):
    """The axes in another order."""

    def prepare(self) -> None:
        """Keep the order and its inverse."""
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
        """A view with the axes in the new order."""
        return x.permute(self.order)

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient with the axes in the order of the input."""
        return (delta.permute(self.back),)


class Expand(Rule):
    """Axes of length 1 are repeated, and new axes are added before the others."""

    def forward(self, x: Tensor) -> Tensor:
        """A view of the new shape."""
        ones = (1,) * (len(self.shape) - len(self.shapes[0]))
        return x.reshape(self.whole((*ones, *self.shapes[0]), x)).expand(self.whole(self.shape, x))

    def backward(self, delta: Tensor) -> Deltas:
        """The sum over the repeated numbers."""
        return (reduced(delta, self.shapes[0], self.lead),)


class Part(Rule):
    """One index or a range of indices of an axis."""

    def prepare(self) -> None:
        """Read the axis and the indices."""
        self.at = self.axis(self.argument(1, "dim", 0))
        if self.step.name == "slice":
            first, last, step = self.argument(2, "start"), self.argument(3, "end"), self.argument(4, "step", 1)
            self.places: Any = slice(first, last, step)
        else:
            self.places = self.step.args[2]

    def _cut(self, x: Tensor) -> Tensor:
        return x[(..., self.places, *(slice(None),) * (-self.at - 1))]

    def forward(self, x: Tensor) -> Tensor:
        """A view of this part."""
        return self._cut(x)

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient of this part, and zeros elsewhere."""
        whole = delta.new_zeros(self.whole(self.shapes[0], delta))
        self._cut(whole).copy_(delta)
        return (whole,)


class Windows(Rule):
    """Windows along an axis; the numbers of a window are a new last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """A view of the windows."""
        at, size, step = self.step.args[1:]
        self.saved = (x.shape, x.ndim + self.axis(at), size, step)
        return x.unfold(*self.saved[1:])

    def backward(self, delta: Tensor) -> Deltas:
        """For each number, the sum over the windows that contain it."""
        return (aten.unfold_backward(delta, *self.saved),)


class Parts(Rule):
    """An axis that is cut into pieces, or into single indices."""

    def prepare(self) -> None:
        """Read the axis and the lengths of the pieces."""
        self.single = self.step.name == "unbind"
        self.at = self.axis(self.argument(1 if self.single else 2, "dim", 0))
        self.outputs = len(self.step.shapes)
        self.lengths = [] if self.single else [shape[self.at] for shape in self.step.shapes]

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Views of the pieces."""
        self.saved = (x,)
        return self._cut(x)

    def _cut(self, x: Tensor) -> Sequence[Tensor]:
        return x.unbind(self.at) if self.single else x.split(self.lengths, self.at)

    def backward(self, *deltas: Tensor | None) -> Deltas:
        """The joined gradients of the pieces; zero for a piece that was not used.

        The axes in memory are those of the input.
        """
        whole = torch.empty_like(*self.saved)
        for place, delta in zip(self._cut(whole), deltas, strict=True):
            if delta is None:
                place.zero_()
            else:
                place.copy_(delta)
        return (whole,)


class Cat(Rule):
    """Tensors that are joined along an axis."""

    def prepare(self) -> None:
        """Read the axis, and the length of each tensor along it."""
        self.at = self.axis(self.argument(1, "dim", 0))
        self.lengths = [shape[self.at] for shape in self.shapes]

    def forward(self, *tensors: Tensor) -> Tensor:
        """The joined tensors."""
        return torch.cat(tensors, self.at)

    def backward(self, delta: Tensor) -> Deltas:
        """The piece of the gradient for each tensor."""
        return list(delta.split(self.lengths, self.at))


class NewAxis(Rule):
    """Tensors of one shape that are stacked along a new axis."""

    def prepare(self) -> None:
        """Read the new axis of the result."""
        self.at = self.axis(self.argument(1, "dim", 0), self.shape)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The stacked tensors."""
        return torch.stack(tensors, self.at)

    def backward(self, delta: Tensor) -> Deltas:
        """The slice of the gradient for each tensor."""
        return list(delta.unbind(self.at))


RULES: dict[str, type[Rule]] = {
    **dict.fromkeys(RESHAPES, Reshape),
    **dict.fromkeys(("t", "transpose", "permute"), Permute),
    **dict.fromkeys(("select", "slice"), Part),
    **dict.fromkeys(("unbind", "split", "split_with_sizes"), Parts),
    "expand": Expand, "unfold": Windows, "cat": Cat, "stack": NewAxis,
}  # fmt: skip
