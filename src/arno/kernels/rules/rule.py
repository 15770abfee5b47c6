"""The base class of rules, and functions that several rules use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..record import Operation

Deltas = Sequence[Tensor | None]


class Rule(ABC):
    """Computes one operation: its outputs, and the gradients of its inputs.

    outputs: the number of outputs of the operation.
    lead: whether many models are computed at once.
    led: which of the tensors have the axis of models.
    needs: which of the tensors need a gradient.
    constants: whether the rule takes constants without the axis of models.
    passes: whether the operation has a gradient.
    even: whether all tensors have as many axes as the result.
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
        """Read the arguments; raise `NotRecorded` for arguments that the rule does not compute."""
        return

    @abstractmethod
    def forward(self, *tensors: Any, **_: Any) -> Any:
        """The output, or a sequence of outputs."""

    @abstractmethod
    def backward(self, *deltas: Any, **_: Any) -> Deltas:
        """The gradient with respect to each tensor; None if it is not needed.

        deltas: the gradients with respect to the outputs.
        """

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """An argument of the operation, by its position or its name."""
        return self.step.args[at] if len(self.step.args) > at else self.step.kwargs.get(name, default)

    def axis(self, at: int, of: Sequence[int] | None = None) -> int:
        """An axis of the first tensor, counted from the last axis.

        of: the shape, if it is not the shape of the first tensor.
        """
        return at if at < 0 else at - len(self.shapes[0] if of is None else of)

    def whole(self, shape: Sequence[int], like: Tensor) -> tuple[int, ...]:
        """A shape; with `lead`, the axis of models of `like` comes first."""
        return (like.shape[0], *shape) if self.lead else tuple(shape)


def reduced(delta: Tensor, shape: Sequence[int], lead: bool) -> Tensor:
    """The gradient of a tensor of this shape that was broadcast: the sum over the added and the expanded axes."""
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
    """The tensors; a tensor with fewer axes than the result gets axes of length 1 after the axis of models."""
    if not rule.lead or rule.even:
        return list(tensors)
    missing = [
        (1,) * (len(rule.shape) - len(shape)) if led else () for shape, led in zip(rule.shapes, rule.led, strict=True)
    ]
    return [t.reshape(t.shape[0], *ones, *t.shape[1:]) if ones else t for t, ones in zip(tensors, missing, strict=True)]
