"""A model is one vector. Its layout says which slice holds which parameter, and to which units a coordinate belongs.

The vector holds the network's parameters in the order of `module.parameters()`, then its floating-point buffers (such
as the running statistics of BatchNorm). Each axis of each parameter may belong to a *group of units*: the filters of a
convolution, or the neurons of a layer. So a unit can be removed with all of its coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ArnoError

#: The group of units of an axis. A name: one entry per unit of this group. (name, repeat): `repeat` consecutive entries
#: per unit (after a flatten layer). None: no entry of the axis is ever removed.
Axis = str | tuple[str, int] | None
#: The types of normalisation layers.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Slot:
    """One parameter or buffer: its place in the vector, its shape, and the units along its axes."""

    name: str
    shape: tuple[int, ...]
    start: int
    axes: tuple[Axis, ...] | None = None
    kind: Literal["", "linear", "norm"] = ""  # of the layer that owns it
    trained: bool = True  # False for a parameter with requires_grad=False

    @property
    def layer(self) -> str:
        """The name of the layer that owns it."""
        return self.name.rpartition(".")[0]

    @property
    def numel(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def span(self) -> slice:
        """The slice of its entries in the vector."""
        return slice(self.start, self.start + self.numel)


@dataclass(frozen=True)
class Layout:
    """How a vector of `size` entries holds a network: `d` parameters, then `size - d` buffers.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> units = {"0.weight": ("h", None), "0.bias": ("h",), "2.weight": (None, "h")}
    >>> layout = Layout.of(net, units)
    >>> layout.d, layout.units, [s.name for s in layout.slots]
    (23, {'h': 3}, ['0.weight', '0.bias', '2.weight', '2.bias'])
    >>> layout.index({"h": torch.tensor([2])}).tolist()
    [8, 9, 10, 11, 14, 17, 20, 21, 22]
    """

    slots: tuple[Slot, ...]
    d: int
    size: int
    annotated: bool = True  # whether the network declares its units

    @classmethod
    def of(cls, module: nn.Module, units: Mapping[str, tuple[Axis, ...]] | None = None) -> Layout:
        """The layout of a network; `units` names the groups along the axes of its parameters."""
        slots, start = [], 0
        for name, tensor in named_tensors(module):
            kind = kind_of(module.get_submodule(name.rpartition(".")[0]))
            trained = tensor.requires_grad or not isinstance(tensor, nn.Parameter)
            slots.append(Slot(name, tuple(tensor.shape), start, (units or {}).get(name), kind, trained))
            start += tensor.numel()
        return cls(tuple(slots), sum(p.numel() for p in module.parameters()), start, units is not None)

    @classmethod
    def plain(cls, d: int) -> Layout:
        """The layout of a problem without a network; its model is a plain vector."""
        return cls((Slot("w", (d,), 0),), d, d)

    @property
    def units(self) -> dict[str, int]:
        """How many units each group has; empty if the network declares no units."""
        counts: dict[str, int] = {}
        for slot in self.slots:
            for axis, length in zip(slot.axes or (), slot.shape, strict=False):
                if axis is not None:
                    group, repeat = axis if isinstance(axis, tuple) else (axis, 1)
                    counts.setdefault(group, length // repeat)
        return counts

    @property
    def trained(self) -> Tensor | None:
        """Which parameters are trained, as booleans [d]; None if all of them are trained.

        >>> net = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
        >>> _ = net[0].requires_grad_(False)
        >>> Layout.of(net).trained.nonzero()[:, 0].tolist()
        [4, 5, 6]
        """
        if all(slot.trained for slot in self.slots):
            return None
        return torch.cat([torch.full((slot.numel,), slot.trained) for slot in self.slots])[: self.d]

    def mask(self, group: str) -> Tensor:
        """Which coordinates belong to a group, as booleans [size].

        full: all coordinates. head: the last layer with parameters, which must be linear. body: all other layers.
        norm: parameters and buffers of normalisation layers. Any other text is a pattern of names, such as `encoder.*`.

        >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        >>> Layout.of(net).mask("head").nonzero()[:, 0].tolist(), int(Layout.of(net).mask("norm").sum())
        ([10, 11, 12], 8)
        """
        chosen = torch.zeros(self.size, dtype=torch.bool)
        for slot in self._members(group):
            chosen[slot.span] = True
        return chosen

    def _members(self, group: str) -> list[Slot]:
        if group == "full":
            return list(self.slots)
        if group == "norm":
            return [slot for slot in self.slots if slot.kind == "norm"]
        if group in ("head", "body"):
            last = [slot for slot in self.slots if slot.start < self.d][-1]
            if last.kind != "linear":
                rule = f"the last layer with parameters, {last.layer or last.name}, is not linear"
                raise ArnoError(f"the group {group!r}", rule, "make the last layer of the network a linear layer")
            return [slot for slot in self.slots if (slot.layer == last.layer) == (group == "head")]
        found = [slot for slot in self.slots if fnmatchcase(slot.name, group)]
        if not found:
            known = ", ".join(dict.fromkeys(slot.layer for slot in self.slots))
            raise ArnoError(f"the group {group!r}", "no parameter has such a name", f"the layers are {known}")
        return found

    def layers(self) -> list[str]:
        """The layers that have parameters, in their order."""
        return list(dict.fromkeys(slot.layer for slot in self.slots if slot.start < self.d))

    def slot(self, name: str) -> Slot:
        """The slot called `name`."""
        return next(slot for slot in self.slots if slot.name == name)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters and buffers as views of a vector."""
        pieces = vector.split([slot.numel for slot in self.slots])
        return {slot.name: piece.view(slot.shape) for slot, piece in zip(self.slots, pieces, strict=True)}

    def index_of(self, kept: tuple[tuple[str, tuple[int, ...]], ...]) -> Tensor:
        """The same as `index`; the units are given as tuples, which are hashable."""
        return self.index({group: torch.tensor(units) for group, units in kept})

    def index(self, kept: Mapping[str, Tensor]) -> Tensor:
        """The coordinates that remain if each group keeps only its `kept` units, in the smaller network's order."""
        parts = []
        for slot in self.slots:
            at = torch.arange(slot.numel).view(slot.shape)
            for dim, axis in enumerate(slot.axes or ()):
                if axis is not None:
                    group, repeat = axis if isinstance(axis, tuple) else (axis, 1)
                    entries = (kept[group][:, None] * repeat + torch.arange(repeat)).flatten()
                    at = at.index_select(dim, entries)
            parts.append(slot.start + at.flatten())
        return torch.cat(parts)


def kind_of(layer: nn.Module) -> Literal["", "linear", "norm"]:
    """The kind of a layer: linear, norm (normalisation), or empty for any other layer."""
    if isinstance(layer, nn.Linear):
        return "linear"
    return "norm" if isinstance(layer, NORMS) else ""


def named_tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """The tensors that the vector holds: parameters in their order, then floating-point buffers."""
    yield from module.named_parameters()
    yield from ((name, b) for name, b in module.named_buffers() if b.is_floating_point())


def parameter_hooks(parameter: Tensor) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of a parameter, by the name of the function that registers such a hook."""
    held = {
        "register_hook": parameter._backward_hooks,
        "register_post_accumulate_grad_hook": parameter._post_accumulate_grad_hooks,
    }
    return {how: list(hooks.values()) for how, hooks in held.items() if hooks}


def copied(module: nn.Module) -> nn.Module:
    """A copy of a network and of the hooks of its parameters; `deepcopy` alone does not copy these hooks.

    >>> layer = nn.Linear(1, 1)
    >>> _ = layer.weight.register_hook(lambda delta: 2 * delta)
    >>> parameter_hooks(deepcopy(layer).weight), [*parameter_hooks(copied(layer).weight)]
    ({}, ['register_hook'])
    """
    other = deepcopy(module)
    for given, parameter in zip(module.parameters(), other.parameters(), strict=True):
        for how, hooks in parameter_hooks(given).items():
            for hook in hooks:
                getattr(parameter, how)(hook)
    return other


def flatten(module: nn.Module) -> Tensor:
    """The network's parameters and buffers as one new vector."""
    return torch.cat([t.detach().reshape(-1) for _, t in named_tensors(module)])


def bind(module: nn.Module, vector: Tensor, gradient: Tensor | None = None) -> None:
    """Make the network's parameters, buffers and gradients views of two vectors, so that they share memory."""
    start = 0
    for name, tensor in list(named_tensors(module)):
        stop = start + tensor.numel()
        view = vector[start:stop].view(tensor.shape)
        if isinstance(tensor, nn.Parameter):
            tensor.data = view
            if gradient is not None:
                tensor.grad = gradient[start:stop].view(tensor.shape)
        else:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = view
        start = stop
