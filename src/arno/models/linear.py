"""One linear layer (softmax regression, linear regression) and the multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.layout import Axis
from ..errors import ArnoError
from . import models
from .network import Network

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


@models.register("softmax")
def softmax(shape: Sequence[int], outputs: int, *, bias: bool = True) -> Network:
    """One linear layer: softmax regression for classes, linear regression for numbers.

    bias: whether a learned number is added to every output.
    """
    return MLP(prod(shape), (), outputs, "relu", bias)


@models.register("mlp")
def mlp(
    shape: Sequence[int],
    outputs: int,
    *,
    hidden: tuple[int, ...] = (128,),
    activation: Literal["relu", "tanh"] = "relu",
) -> Network:
    """A multi-layer perceptron.

    hidden: neurons of each hidden layer.
    activation: relu or tanh.
    """
    if any(h < 1 for h in hidden):
        rule = "every layer needs at least one neuron"
        raise ArnoError(f"model.hidden = {list(hidden)}", rule, "try model.hidden=[128]")
    return MLP(prod(shape), hidden, outputs, activation)


class MLP(Network):
    """Linear layers with an activation between them; without hidden layers it is a linear model."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], outputs, bias=bias)
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
        """The units of a chain of layers. Without hidden layers there are none: inputs and outputs are never cut."""
        return super().units() if len(self.hidden) else {}
