"""A network as a chain of known layers, found by tracing it; None for any other network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Kind = Literal["flatten", "linear", "conv", "pool", "relu", "tanh"]

FUNCTIONS: dict[Callable[..., Any] | str, Kind] = {
    torch.relu: "relu", F.relu: "relu", "relu": "relu", torch.tanh: "tanh", F.tanh: "tanh", "tanh": "tanh",
    torch.flatten: "flatten", "flatten": "flatten", F.max_pool2d: "pool", torch.max_pool2d: "pool",
}  # fmt: skip
MODULES: dict[type[nn.Module], Kind] = {
    nn.Linear: "linear", nn.Conv2d: "conv", nn.ReLU: "relu", nn.Tanh: "tanh", nn.Flatten: "flatten",
    nn.MaxPool2d: "pool",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One layer of a chain; `name` is the name of the module that holds its weights."""

    kind: Kind
    name: str = ""


def chain_of(module: nn.Module) -> tuple[Step, ...] | None:
    """The layers of a network that applies them one after the other, each once.

    >>> [step.kind for step in chain_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))]
    ['flatten', 'linear', 'tanh', 'linear']
    >>> chain_of(nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2))) is None
    True
    """
    if any(_odd(part) for part in module.modules()):
        return None
    optional = {p.name: p.default for p in list(signature(module.forward).parameters.values())[1:]}
    try:
        graph = fx.Tracer().trace(module, concrete_args=optional)
    except Exception:  # control flow that depends on data, arguments without a default, code that fx cannot follow
        return None
    layers = dict(module.named_modules())
    steps: list[Step] = []
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            before = before or node
            continue
        if node.op == "output":
            whole = node.args[0] is before
            return tuple(steps) if whole and _each_once(module, steps) else None
        if node.op == "call_function" and not node.users and "_assert" in node.name:
            continue  # fx checks that optional arguments keep their defaults
        step = _step(node, layers)
        if step is None or node.all_input_nodes != [before] or len(node.users) != 1:
            return None
        steps.append(step)
        before = node
    return None


def _odd(part: nn.Module) -> bool:
    """Whether a module is an unknown layer with weights or state, or carries hooks or a `forward` of its own."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    own = bool(part._parameters or part._buffers) and type(part) not in MODULES
    unknown_leaf = not part._modules and type(part) not in MODULES and not isinstance(part, nn.ModuleList)
    changed = "forward" in vars(part)
    return any(map(len, hooks)) or own or changed or (unknown_leaf and type(part).__module__.startswith("torch.nn"))


def _step(node: fx.Node, layers: dict[str, nn.Module]) -> Step | None:
    if node.op == "call_module":
        layer = layers[str(node.target)]
        kind = MODULES.get(type(layer))
        return Step(kind, str(node.target)) if kind is not None and _plain(layer) else None
    kind = FUNCTIONS.get(node.target)
    rest = node.args[1:]
    if kind == "flatten":
        dims = dict(zip(("start_dim", "end_dim"), rest, strict=False)) | node.kwargs
        return Step("flatten") if dims in ({"start_dim": 1}, {"start_dim": 1, "end_dim": -1}) else None
    if kind == "pool" and rest in ((2,), (2, 2), ((2, 2),)):
        usual = {"stride": (None, 2, (2, 2)), "padding": (0, (0, 0)), "dilation": (1, (1, 1)), "ceil_mode": (False,)}
        odd = [key for key, value in node.kwargs.items() if value not in usual.get(key, (False,))]
        return None if odd else Step("pool")
    return Step(kind) if kind in ("relu", "tanh") and not rest and not node.kwargs.get("inplace") else None


def _plain(layer: nn.Module) -> bool:
    """Whether a layer has the settings that the kernels compute."""
    if isinstance(layer, nn.Conv2d):
        still = set(layer.stride) == set(layer.dilation) == {1} and layer.padding == (0, 0)
        return still and layer.groups == 1 and layer.bias is not None
    if isinstance(layer, nn.MaxPool2d):
        sizes = (layer.kernel_size, layer.stride)
        plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.ceil_mode
        return plain and all(size in (2, (2, 2)) for size in sizes) and not layer.return_indices
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    return not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)


def _each_once(module: nn.Module, steps: list[Step]) -> bool:
    """Whether the chain uses all parameters, each once, in the order of the vector, and trains them all."""
    weighted = [step.name for step in steps if step.kind in ("linear", "conv")]
    names = [f"{name}.{leaf}" for name in weighted for leaf in ("weight", "bias")]
    held: list[tuple[str, Tensor]] = list(module.named_parameters(remove_duplicate=False))
    apart = len({id(tensor) for _, tensor in held}) == len(held)
    return names == [name for name, _ in held] and apart and all(tensor.requires_grad for _, tensor in held)
