"""What Arno asks of a network, and how a smaller one is cut from it."""

from __future__ import annotations

from copy import deepcopy
from math import gcd
from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.layout import Axis, Layout
from ..core.work import SubModel


@runtime_checkable
class Units(Protocol):
    """A network that names the units along the axes of its parameters, so that a part of it can train alone."""

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """The unit group along each axis of each parameter and buffer; an axis that is never cut has None."""
        ...


class Network(nn.Module):
    """A network that ends in a linear `head` on an embedding, with named feature levels on the way.

    A subclass writes `embed(x, levels)`: it returns the head's input and appends the output of its stem and of each
    block (before the ReLU, pooled to a vector) to `levels` when that is a list. Layers are created in the order in
    which data flows through them; one that is not a chain overrides `units` too.
    """

    head: nn.Linear

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The head's input."""
        raise NotImplementedError

    def forward(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.embed(x, levels))
        return logits

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """The unit group along each axis of each parameter and buffer; classes and inputs are never cut."""
        return chain_units(self)


def chain_units(module: nn.Module) -> dict[str, tuple[Axis, ...]]:
    """Unit groups of a network whose layers follow one another: each cuts its own outputs and its predecessor's.

    >>> chain_units(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3)))["2.weight"]
    ('2', ('0', 4))
    """
    layers = [
        (name, layer) for name, layer in module.named_modules() if any(True for _ in layer.parameters(recurse=False))
    ]
    last = next(name for name, layer in reversed(layers) if isinstance(layer, nn.Linear | nn.Conv2d))
    units: dict[str, tuple[Axis, ...]] = {}
    before: tuple[str, int] | None = None  # the group that feeds the next layer, and how many units it has
    for name, layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            out, inputs = layer.weight.shape[:2]
            own = None if name == last else name
            feeding: Axis = None
            if before is not None:
                repeat = inputs // before[1]
                feeding = before[0] if repeat == 1 else (before[0], repeat)
            units[f"{name}.weight"] = (own, feeding) + (None,) * (layer.weight.ndim - 2)
            units[f"{name}.bias"] = (own,)
            before = (name, out)
        elif before is not None:  # a norm: one entry per unit of the layer that it follows
            for leaf, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
                if tensor.ndim == 1:
                    units[f"{name}.{leaf}"] = (before[0],)
    return units


def last_linear(module: nn.Module) -> tuple[str, nn.Linear] | None:
    """The name and module of the last linear layer, or None where there is none."""
    linear = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else None


def narrow(module: nn.Module, layout: Layout, window: SubModel) -> nn.Module:
    """A new network of the window's units: the same modules with smaller tensors (their values are not set)."""
    small = deepcopy(module)
    keep = dict(window.units)
    for slot in layout.slots:
        shape = list(slot.shape)
        for dim, axis in enumerate(slot.axes or ()):
            if axis is not None:
                group, repeat = axis if isinstance(axis, tuple) else (axis, 1)
                shape[dim] = keep[group] * repeat
        owner, _, leaf = slot.name.rpartition(".")
        part = small.get_submodule(owner)
        tensor = getattr(part, leaf)
        fresh = tensor.detach().new_zeros(shape)
        if leaf in part._parameters:
            part._parameters[leaf] = nn.Parameter(fresh)
        else:
            part._buffers[leaf] = fresh
        if isinstance(part, nn.GroupNorm) and leaf == "weight":
            part.num_channels = shape[0]
            part.num_groups = gcd(part.num_groups, shape[0])  # groups stay equal in size
    return small


def pooled(x: Tensor) -> Tensor:
    """A feature map averaged to a vector per sample; vectors stay as they are."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1) if x.ndim == 4 else x
