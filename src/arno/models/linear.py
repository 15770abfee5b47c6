"""Softmax regression and the multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.layout import Axis, Layout
from ..errors import ArnoError
from . import models
from .network import Network

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


@models.register("softmax")
def softmax(shape: Sequence[int], classes: int) -> Network:
    """Softmax regression: one linear layer."""
    return MLP(prod(shape), (), classes, "relu")


@models.register("mlp")
def mlp(
    shape: Sequence[int],
    classes: int,
    *,
    hidden: tuple[int, ...] = (128,),
    activation: Literal["relu", "tanh"] = "relu",
) -> Network:
    """A multi-layer perceptron.

    hidden: neurons of each hidden layer.
    activation: relu or tanh.
    """
    if any(h < 1 for h in hidden):
        raise ArnoError(f"model.hidden = {list(hidden)}", "every layer needs a neuron", "try model.hidden=[128]")
    return MLP(prod(shape), hidden, classes, activation)


class MLP(Network):
    """Linear layers with an activation between them; no hidden layer makes it softmax regression."""

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int, activation: str) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)
        self.activation = activation

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The last hidden layer after its activation."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x)
            if levels is not None:
                levels.append(x)
            x = ACTIVATIONS[self.activation](x)
        return x

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """A chain, whose first layer's inputs are pixels and are never cut."""
        return super().units() if len(self.hidden) else {}


class Backprop:
    """The gradient of an `MLP`'s mean cross-entropy, written out: what autograd keeps book of takes longer.

    δ ← (p − 1_y) / n, and down the layers ∇W = δᵀ h, ∇b = Σ δ, δ ← (δ W) ∘ act′. Weights are read from the flat buffer
    `w`, gradients are written into `g`; without it there are only `logits`.
    """

    def __init__(self, module: nn.Module, w: Tensor, g: Tensor | None = None) -> None:
        layout, self.tanh = Layout.of(module), getattr(module, "activation", "relu") == "tanh"
        names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        of, into = layout.views(w), layout.views(w if g is None else g)
        *self.hidden, self.head = [(of[f"{name}.weight"].t(), of[f"{name}.bias"]) for name in names]
        *self.below, self.top = [(into[f"{name}.weight"], into[f"{name}.bias"]) for name in names]
        self.one = torch.eye(len(self.head[1]), dtype=w.dtype, device=w.device)  # row y: 1_y

    def logits(self, x: Tensor, inputs: list[Tensor] | None = None) -> Tensor:
        """What the last layer says; every layer's input is added to `inputs`."""
        for matrix, bias in self.hidden:
            if inputs is not None:
                inputs.append(x)
            z = torch.addmm(bias, x, matrix)
            x = z.tanh_() if self.tanh else z.relu_()
        if inputs is not None:
            inputs.append(x)
        matrix, bias = self.head
        return torch.addmm(bias, x, matrix)

    def __call__(self, x: Tensor, y: Tensor, below: Tensor | None = None) -> Tensor:
        """Write the gradient and return the loss; the gradient of `x` goes into `below`."""
        inputs: list[Tensor] = []
        log_p = self.logits(x, inputs).log_softmax(1)
        h, (matrix, _) = inputs.pop(), self.head
        loss = F.nll_loss(log_p, y)
        delta = log_p.exp_().sub_(self.one.index_select(0, y)).div_(len(y))
        to, to_bias = self.top
        while True:
            torch.mm(delta.t(), h, out=to)
            torch.sum(delta, 0, out=to_bias)
            if not inputs:
                if below is not None:
                    torch.mm(delta, matrix.t(), out=below)
                return loss
            delta = (delta @ matrix.t()).mul_(1 - h * h if self.tanh else h > 0)
            h = inputs.pop()
            matrix, _ = self.hidden[len(inputs)]
            to, to_bias = self.below[len(inputs)]
