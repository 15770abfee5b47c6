"""Softmax regression, linear regression and perceptrons: the gradient is computed by products of matrices.

δ ← ∂loss/∂outputs; then for each layer, from the last to the first: ∇W = δᵀ h, ∇b = Σ δ, δ ← (δ W) ∘ act′
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.layout import Layout
from ..tasks.task import Task
from .chain import Step
from .kernel import Recorded
from .products import affine, product, turned_product


def activation_of(chain: Sequence[Step]) -> str | None:
    """The activation between the linear layers of a chain.

    The answer is "" if there is only one layer, and None if the chain is not a perceptron.

    >>> linear, tanh = Step("linear"), Step("tanh")
    >>> activation_of([Step("flatten"), linear, tanh, linear]), activation_of([linear]), activation_of([linear, tanh])
    ('tanh', '', None)
    """
    kinds = [step.kind for step in chain]
    kinds = kinds[1:] if kinds[:1] == ["flatten"] else kinds
    between = set(kinds[1::2])
    if len(kinds) % 2 == 0 or set(kinds[::2]) != {"linear"} or len(between) > 1 or not between <= {"relu", "tanh"}:
        return None
    return next(iter(between), "")


class Dense(Recorded):
    """Computes a chain of linear layers."""

    name = "dense"

    def __init__(self, module: nn.Module, task: Task, chain: Sequence[Step], shape: Sequence[int]) -> None:
        super().__init__(module, task, shape)
        self.layers = Layers(self.layout, chain, self.w, self.g)

    def arranged(self, x: Tensor) -> Tensor:
        """The inputs as a matrix with one row per sample."""
        return x.flatten(1)

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the last layer."""
        return self.layers.outputs(x.flatten(1))

    def written(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient into `g` with one forward and one backward pass, and return the loss."""
        inputs: list[Tensor] = []
        loss, delta = self.task.gradient(self.layers.outputs(x, inputs), y)
        self.layers.backward(delta, inputs)
        return loss


class Layers:
    """The linear layers of a chain. Weights are read from the flat vector `w`, and gradients are written into `g`.

    first: the weight of the first layer.
    """

    def __init__(self, layout: Layout, chain: Sequence[Step], w: Tensor, g: Tensor) -> None:
        names = [step.name for step in chain if step.kind == "linear"]
        self.tanh = chain[-2].kind == "tanh" if len(names) > 1 else False
        of, into = layout.views(w), layout.views(g)
        *self.hidden, self.head = [(of[f"{name}.weight"], of[f"{name}.bias"]) for name in names]
        self.first: Tensor = of[f"{names[0]}.weight"]
        *self.below, self.top = [(into[f"{name}.weight"], into[f"{name}.bias"]) for name in names]

    def outputs(self, x: Tensor, inputs: list[Tensor] | None = None) -> Tensor:
        """The outputs of the last layer. If the list `inputs` is given, the input of every layer is added to it."""
        for weight, bias in self.hidden:
            if inputs is not None:
                inputs.append(x)
            z = affine(x, weight, bias)
            x = z.tanh_() if self.tanh else z.relu_()
        if inputs is not None:
            inputs.append(x)
        weight, bias = self.head
        return affine(x, weight, bias)

    def backward(self, delta: Tensor, inputs: list[Tensor]) -> Tensor:
        """Write the gradients of all layers; return δ with respect to the outputs of the first layer."""
        h, (weight, _) = inputs.pop(), self.head
        to, to_bias = self.top
        while True:
            turned_product(delta, h, to)
            torch.sum(delta, 0, out=to_bias)
            if not inputs:
                return delta
            delta = product(delta, weight).mul_(1 - h * h if self.tanh else h > 0)
            h = inputs.pop()
            weight, _ = self.hidden[len(inputs)]
            to, to_bias = self.below[len(inputs)]
