"""Rules for operations over an axis: sums, means, extremes, norms, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..record import NotRecorded
from .rule import Deltas, Rule

aten = torch.ops.aten


class Reduce(Rule):
    """The sum or the mean over some axes."""

    def prepare(self) -> None:
        """Read the axes."""
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
        """All numbers along the axes get the same gradient."""
        shape = list(self.shapes[0])
        for at in self.axes:
            shape[at] = 1
        delta = delta / self.count if self.step.name == "mean" else delta
        return (delta.reshape(self.whole(shape, delta)).expand(self.whole(self.shapes[0], delta)),)


OVER: dict[str, Callable[..., Tensor]] = {
    "amax": torch.amax, "amin": torch.amin, "logsumexp": torch.logsumexp, "var": torch.var, "std": torch.std,
}  # fmt: skip


class Over(Reduce):
    """A function of the numbers along some axes: the largest or smallest, log Σ exp, the variance or its root."""

    def prepare(self) -> None:
        """Read the axes, and the correction of a variance."""
        super().prepare()
        self.more: dict[str, Any] = {}
        if self.step.name in ("var", "std"):
            self.keep = self.step.kwargs.get("keepdim", False)
            self.correction = self.step.kwargs.get("correction", 1)
            self.more = {"correction": self.correction}

    def forward(self, x: Tensor) -> Tensor:
        """The values. They are kept with axes of length 1 for the backward pass."""
        y = OVER[self.step.name](x, self.axes, keepdim=True, **self.more)
        self.saved = (x, y)
        return y if self.keep else y.reshape(self.whole(self.shape, y))

    def backward(self, delta: Tensor) -> Deltas:
        """The gradient of the function. Equal largest numbers share the gradient."""
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


class Extreme(Rule):
    """The largest or the smallest number along an axis, and its position.

    The number at this position gets the gradient.
    """

    outputs = 2

    def prepare(self) -> None:
        """Read the axis."""
        at = self.argument(1, "dim")
        if not isinstance(at, int) or len(self.shapes) != 1:
            raise NotRecorded(f"{self.step.name} over all axes")
        self.at, self.keep = self.axis(at), self.argument(2, "keepdim", False)
        self.function = torch.max if self.step.name == "max" else torch.min

    def forward(self, x: Tensor) -> Any:
        """The values and their positions."""
        y, places = self.function(x, self.at, True)
        self.saved = (places,)
        return (y, places) if self.keep else (y.squeeze(self.at), places.squeeze(self.at))

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """The gradient at the positions, and zeros elsewhere."""
        (places,) = self.saved
        delta = delta if self.keep else delta.unsqueeze(self.at)
        return (delta.new_zeros(self.whole(self.shapes[0], delta)).scatter_(self.at, places, delta),)


class Norm(Rule):
    """The Euclidean norm along some axes."""

    def prepare(self) -> None:
        """Read the axes."""
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
        """δ x / ‖x‖, and zero if the norm is zero."""
        x, y = self.saved
        return (delta.reshape(y.shape) * (x / y).masked_fill(y == 0, 0),)


class Softmax(Rule):
    """softmax or its logarithm along an axis."""

    def prepare(self) -> None:
        """Read the axis."""
        self.at, self.log = self.axis(self.step.args[1]), "log" in self.step.name

    def forward(self, x: Tensor) -> Tensor:
        """The values; the backward pass needs them."""
        y = x.log_softmax(self.at) if self.log else x.softmax(self.at)
        self.saved = (y,)
        return y

    def backward(self, delta: Tensor) -> Deltas:
        """δ y − y Σ δ y, or δ − e^y Σ δ."""
        (y,) = self.saved
        back = aten._log_softmax_backward_data if self.log else aten._softmax_backward_data
        return (back(delta, y, self.at, y.dtype),)


RULES: dict[str, type[Rule]] = {
    **dict.fromkeys(("mean", "sum"), Reduce),
    **dict.fromkeys(OVER, Over),
    **dict.fromkeys(("max", "min"), Extreme),
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), Softmax),
    "linalg_vector_norm": Norm,
}  # fmt: skip
