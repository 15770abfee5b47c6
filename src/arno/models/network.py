"""The base class of networks, the units of their parameters, and smaller networks that consist of some units."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import deepcopy
from math import gcd
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.layout import Axis, Layout, copied
from ..core.work import SubModel
from ..errors import ArnoError


class Shape(tuple[int, ...]):
    """The shape of one sample, and what its numbers mean.

    vocabulary: the number of different tokens; 0 if samples are not sequences of tokens. padding: the token that fills
    short sequences. positions: whether the network returns outputs for every position of a sequence. categories: for
    each feature the number of its categories; 0 if the feature is a number.

    >>> shape = Shape((80,), vocabulary=67, positions=True)
    >>> shape == (80,), shape.vocabulary, shape.padding
    (True, 67, None)
    """

    vocabulary: int
    padding: int | None
    positions: bool
    categories: tuple[int, ...]

    def __new__(
        cls,
        shape: Iterable[int],
        *,
        vocabulary: int = 0,
        padding: int | None = None,
        positions: bool = False,
        categories: tuple[int, ...] = (),
    ) -> Shape:
        """A tuple with these attributes."""
        made = super().__new__(cls, shape)
        made.vocabulary, made.padding, made.positions, made.categories = vocabulary, padding, positions, categories
        return made


@runtime_checkable
class Units(Protocol):
    """A network that declares the units along the axes of its parameters, so that clients can train sub-models."""

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """The unit group along each axis of each parameter and buffer; an axis that is never cut has None."""
        ...


class Network(nn.Module):
    """A network that ends in a linear layer, the `head`, and that can return the features of its levels.

    A subclass defines `embed(x, levels)`, which returns the input of the head. If `levels` is a list, `embed` appends
    to it the output of the stem and of each block (before the ReLU, averaged to a vector). Layers must be created in
    the order in which they are applied. A network that is not a chain of layers must also override `units`.
    """

    head: nn.Linear

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The input of the head."""
        raise NotImplementedError

    def forward(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The outputs."""
        outputs: Tensor = self.head(self.embed(x, levels))
        return outputs

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """The unit group along each axis of each parameter and buffer; inputs and outputs are never cut."""
        return chain_units(self)


def chain_units(module: nn.Module) -> dict[str, tuple[Axis, ...]]:
    """Unit groups of a chain of layers: the rows of a layer are its units, its columns the units of the previous layer.

    >>> chain_units(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3)))["2.weight"]
    ('2', ('0', 4))
    """
    layers = [
        (name, layer) for name, layer in module.named_modules() if any(True for _ in layer.parameters(recurse=False))
    ]
    last = next(name for name, layer in reversed(layers) if isinstance(layer, nn.Linear | nn.Conv2d))
    units: dict[str, tuple[Axis, ...]] = {}
    before: tuple[str, int] | None = None  # the group of the previous layer, and the number of its units
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
        elif before is not None:  # a normalisation layer: one entry per unit of the previous layer
            for leaf, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
                if tensor.ndim == 1:
                    units[f"{name}.{leaf}"] = (before[0],)
    return units


def last_linear(module: nn.Module) -> tuple[str, nn.Linear] | None:
    """The name and module of the last linear layer; None if there is none."""
    linear = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else None


def network_of(given: Callable[..., Any], shape: Shape, outputs: int, **settings: Any) -> Any:
    """The network that a user gave: a copy of an instance, or what a class or function returns.

    A class or function gets the shape of a sample and the number of outputs, unless it has no parameters for them.

    >>> network_of(nn.Linear(2, 1), Shape((2,)), 1), network_of(lambda: nn.Linear(2, 1), Shape((2,)), 1)
    (Linear(in_features=2, out_features=1, bias=True), Linear(in_features=2, out_features=1, bias=True))
    """
    if isinstance(given, nn.Module):
        return copied(given)
    return given(shape, outputs, **settings) if takes_shape(given) else given(**settings)


def takes_shape(factory: Callable[..., Any]) -> bool:
    """Whether a class or function takes shape and outputs: it has required parameters, or parameters of these names.

    >>> takes_shape(lambda shape, outputs: 0), takes_shape(lambda: 0), takes_shape(lambda width=3, depth=2: 0)
    (True, False, False)
    """
    parameters = [p for p in inspect.signature(factory).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    known = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    return any(p.default is p.empty or p.name in ("shape", "outputs") for p in known)


def ends(z: Tensor, x: Tensor, padding: int | None) -> Tensor:
    """The features at the last token of each sequence, without padding. z: [n, length, width]. x: [n, length]."""
    if padding is None:
        return z[:, -1]
    at = ((x != padding) * torch.arange(x.shape[1], device=x.device)).amax(1)
    return z.gather(1, at[:, None, None].expand(-1, 1, z.shape[2]))[:, 0]


def need_tokens(shape: Shape, name: str) -> None:
    """Refuse samples that are not sequences of tokens."""
    if len(shape) != 1 or not shape.vocabulary:
        what = f"model={name} on samples of shape {tuple(shape)}"
        raise ArnoError(what, "it needs sequences of tokens", "use data=text, or whole numbers [n, length]")


def need_sizes(**sizes: int) -> None:
    """Refuse settings of a network that are not positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ArnoError(f"model.{name} = {size}", "it must be at least 1", f"leave out model.{name}")


def narrow(module: nn.Module, layout: Layout, window: SubModel) -> nn.Module:
    """A new network with the units of a window: the same modules with smaller tensors, which are zero."""
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
            part._parameters[leaf] = nn.Parameter(fresh, tensor.requires_grad)
        else:
            part._buffers[leaf] = fresh
        if isinstance(part, nn.GroupNorm) and leaf == "weight":
            part.num_channels = shape[0]
            part.num_groups = gcd(part.num_groups, shape[0])  # all groups must have the same size
    return small


def pooled(x: Tensor) -> Tensor:
    """A feature map averaged to a vector per sample; vectors are returned unchanged."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1) if x.ndim == 4 else x
