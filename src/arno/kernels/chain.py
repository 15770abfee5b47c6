"""Finds out whether a network is a chain of a few known layers; the recorded operations show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from .program import with_linear
from .record import Graph, Operation, Value

Kind = Literal["flatten", "linear", "conv", "pool", "relu", "tanh"]


@dataclass(frozen=True)
class Step:
    """One layer of a chain. name: the name of the module that holds its weights; empty for a layer without weights."""

    kind: Kind
    name: str = ""


def chain_of(graph: Graph, parameters: Sequence[str]) -> tuple[Step, ...] | None:
    """The layers of a network that applies known layers one after another; None for any other network.

    Each layer is used once, in the order of the parameters.

    >>> import torch
    >>> from torch import nn
    >>> from arno.kernels.record import record
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> names = [name for name, _ in net.named_parameters()]
    >>> [step.kind for step in chain_of(record(net, torch.ones(2, 2, 2)), names)]
    ['flatten', 'linear', 'tanh', 'linear']
    >>> chain_of(record(nn.Sequential(*net, nn.Dropout()), torch.ones(2, 2, 2)), names) is None
    True
    """
    steps, held = list[Step](), list[str]()
    before: object = "input"
    for number, step in enumerate(with_linear(graph.operations, set(parameters))):
        if not step.values:  # a transposed matrix that `linear` replaces, or a result that nothing uses
            continue
        first, *weights = step.values
        kind = _kind(step)
        if kind is None or first.of != before or (len(weights) != 2 if kind in ("linear", "conv") else weights):
            return None
        names = [str(value.of) for value in weights]
        owner = names[0].rpartition(".")[0] if names else ""
        if names and names != [f"{owner}.weight", f"{owner}.bias"]:
            return None
        steps.append(Step(kind, owner))
        held += names
        before = (number, 0)
    return tuple(steps) if graph.output.of == before and held == list(parameters) else None


def _kind(step: Operation) -> Kind | None:
    """The kind of layer of an operation; None if the operation or one of its settings is not known."""
    if step.name in ("relu", "tanh", "linear"):
        return step.name  # type: ignore[return-value]
    if step.name in ("view", "_unsafe_view"):
        n, *rest = step.values[0].shape
        return "flatten" if step.shapes[0] == (n, prod(rest)) else None
    if step.name == "convolution":
        return "conv" if list(step.args[3:]) == [[1, 1], [0, 0], [1, 1], False, [0, 0], 1] else None
    if step.name == "max_pool2d_with_indices":
        usual = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        given = [value for value in step.args if not isinstance(value, Value)]
        return "pool" if given == list(usual[: len(given)]) else None
    return None
