"""The one entrance to the kernels: which one computes a network, and why."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

from torch import nn

from ..errors import ArnoError
from ..tasks.task import Task
from .chain import MODULES, Step, chain_of
from .dense import Dense, activation_of
from .kernel import Autograd, Kernel
from .lean import lean
from .strips import ConvStrips, suits


@dataclass(frozen=True)
class Choice:
    """How a network is computed, before anything is made ready.

    name: of the kernel. chain: its layers, where it is a chain of known ones. reason: why this kernel is taken.
    """

    name: str
    chain: tuple[Step, ...] | None
    reason: str


def choose(module: nn.Module, shape: Sequence[int], channels_last: bool) -> Choice:
    """The kernel for a network on inputs of this shape.

    dense: a chain of linear layers. strips: narrow convolutions with pooling in channels_last on a CPU, then linear
    layers. autograd: any other network.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        remedy = "give it a parameter with requires_grad=True"
        raise ArnoError(f"the network {type(module).__name__}", "it has no parameter that is trained", remedy)
    chain = chain_of(module)
    if chain is None:
        return Choice("autograd", None, not_a_chain(module))
    flat = chain[0].kind == "flatten" or len(shape) == 1
    if flat and activation_of(chain) is not None:
        return Choice("dense", chain, "the network is a chain of linear layers with one activation")
    cpu = next(module.parameters()).device.type == "cpu"
    if channels_last and cpu and suits(module, chain, shape):
        return Choice("strips", chain, "the network is narrow convolutions with pooling, then linear layers")
    rule = "no chain of linear layers only, and no narrow convolutions with pooling on images of this size"
    where = rule if channels_last and cpu else "no chain of linear layers only, and not in channels_last on a CPU"
    return Choice("autograd", chain, where)


def not_a_chain(module: nn.Module) -> str:
    """Why no kernel with written-out gradients computes a network that is no chain of known layers."""
    leaves = [part for part in module.modules() if not part._modules and not isinstance(part, nn.ModuleList)]
    odd = sorted({type(part).__name__ for part in leaves if type(part) not in MODULES})
    if odd:
        return f"no written-out gradients for {', '.join(odd)}"
    return "its layers have other settings than the kernels know, or are not applied one after the other, each once"


def for_training(module: nn.Module, shape: Sequence[int], task: Task, channels_last: bool) -> Kernel:
    """A kernel with weights and gradient of its own; `module` becomes a part of it."""
    choice = choose(module, shape, channels_last)
    module = (lean(module, choice.chain) if channels_last else module).train()
    if choice.chain is not None and choice.name == "dense":
        return Dense(module, task, choice.chain)
    if choice.chain is not None and choice.name == "strips":
        return ConvStrips(module, task, choice.chain, shape)
    return Autograd(module, task)


def for_scoring(module: nn.Module, shape: Sequence[int], task: Task, channels_last: bool) -> Kernel:
    """A kernel of a copy in evaluation mode, for outputs only."""
    module = deepcopy(module).eval()
    choice = choose(module, shape, channels_last)
    if choice.chain is not None and choice.name == "strips":
        return ConvStrips(module, task, choice.chain, shape, trains=False)
    return Autograd(lean(module, choice.chain) if channels_last else module, task, trains=False)


def wants_channels_last(module: nn.Module, asked: bool | None) -> bool:
    """Whether images come with the channels of a pixel side by side: as asked, else where convolutions gain from it.

    It rounds differently, so it is part of a run.
    """
    kinds = {type(m) for m in module.modules()}
    if asked and nn.GroupNorm in kinds:
        raise ArnoError(
            "model.channels_last = true with GroupNorm",
            "torch's backward pass writes past its buffers there for some numbers of channels",
            "leave model.channels_last out",
        )
    return nn.Conv2d in kinds and nn.GroupNorm not in kinds if asked is None else asked
