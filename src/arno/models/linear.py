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
    `w`, gradients are written into `g`.
    """

    def __init__(self, module: MLP, w: Tensor, g: Tensor) -> None:
        layout, self.tanh = Layout.of(module), module.activation == "tanh"
        names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        of, into = layout.views(w), layout.views(g)
        self.layers = [(of[f"{name}.weight"], of[f"{name}.bias"]) for name in names]
        self.gradients = [(into[f"{name}.weight"], into[f"{name}.bias"]) for name in names]
        self.minus: dict[int, Tensor] = {}

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient and return the loss."""
        n, inputs = y.shape[0], [x if x.ndim == 2 else x.flatten(1)]
        for matrix, bias in self.layers[:-1]:
            z = torch.addmm(bias, inputs[-1], matrix.t())
            inputs.append(z.tanh_() if self.tanh else z.relu_())
        matrix, bias = self.layers[-1]
        log_p = torch.addmm(bias, inputs[-1], matrix.t()).log_softmax(1)
        loss = F.nll_loss(log_p, y)
        if n not in self.minus:
            self.minus[n] = log_p.new_full((n, 1), -1.0)
        delta = log_p.exp_().scatter_add_(1, y.unsqueeze(1), self.minus[n]).div_(n)
        for (matrix, _), (to, to_bias), h in zip(
            reversed(self.layers), reversed(self.gradients), reversed(inputs), strict=True
        ):
            torch.mm(delta.t(), h, out=to)
            torch.sum(delta, 0, out=to_bias)
            if h is not inputs[0]:
                delta = (delta @ matrix).mul_(1 - h * h if self.tanh else h > 0)
        return loss
