"""The one entrance to the kernels: which one computes a network, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor, nn

from ..core.layout import copied
from ..errors import ArnoError
from ..tasks.task import Task
from .bfloat16 import BFloat16
from .chain import Step, chain_of
from .checked_program import Written, program_of
from .cpu_rewrites import lean
from .dense import Dense, activation_of
from .kernel import Autograd, Kernel
from .record import Graph, Operation
from .rules.images import by_halves, cuts_patches
from .strips import ConvStrips, suits

#: A network is small up to so many parameters, and so many multiplications for a sample (`benchmarks/kernels.py`).
SMALL = 500_000
#: Networks with more parameters are not recorded: nearly all their time is in products, and recording copies them.
LARGE = 2**25


@dataclass(frozen=True)
class Choice:
    """How a network is computed, before anything is made ready.

    name: of the kernel. reason: why this kernel is taken, and why not a faster one. graph: what the network computes,
    where that could be recorded and checked. chain: its layers, where it is a chain of known ones. small: whether a
    step takes so little time that many models are best computed at once. channels_last: whether images come with the
    channels of a pixel side by side. multiplications: for one sample, where many models can be computed at once.
    """

    name: str
    reason: str
    graph: Graph | None = None
    chain: tuple[Step, ...] | None = None
    small: bool = False
    channels_last: bool = False
    multiplications: int = 0


def choose(
    module: nn.Module,
    shape: Sequence[int],
    channels_last: bool | None,
    x: Tensor | None = None,
    *,
    bfloat16: bool = False,
) -> Choice:
    """The kernel for a network on inputs of this shape, of which `x` are a few; they are made up where none are given.

    dense: a chain of linear layers. strips: narrow convolutions with pooling in channels_last on a CPU, then linear
    layers. program: a network of known operations. autograd: any other network. channels_last: as asked; None where
    what the network computes decides. bfloat16: autograd with products in bfloat16, whatever the network is.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        remedy = "give it a parameter with requires_grad=True"
        raise ArnoError(f"the network {type(module).__name__}", "it has no parameter that is trained", remedy)
    like = next(module.parameters())
    if bfloat16:
        last = wants_channels_last(module, channels_last, None)
        return Choice("bfloat16", "model.bfloat16 = true", channels_last=last)
    if sum(p.numel() for p in module.parameters()) > LARGE:
        last = wants_channels_last(module, channels_last, None)
        return Choice("autograd", f"the network has more than {LARGE:,} parameters", channels_last=last)
    if x is None:
        x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(like)
    names = [name for name, _ in module.named_parameters()]
    graph, why = program_of(
        module, x, lambda graph: unchained(graph, names, wants_channels_last(module, channels_last, graph))
    )
    last = wants_channels_last(module, channels_last, graph)
    if graph is None or why:
        return Choice("autograd", f"the network runs as it is: {why}", channels_last=last)
    most = multiplications(graph)
    small = max(most, sum(p.numel() for p in module.parameters())) <= SMALL
    chain = chain_of(graph, names)
    if chain is not None and activation_of(chain) is not None:
        reason = "the network is a chain of linear layers with one activation"
        return Choice("dense", reason, graph, chain, small, last)
    if chain is not None and last and like.device.type == "cpu" and suits(module, chain, shape):
        reason = "the network is narrow convolutions with pooling, then linear layers"
        return Choice("strips", reason, graph, chain, channels_last=last)
    if last:
        reason = "convolutions in channels_last, and no narrow ones with pooling on images of this size"
        return Choice("autograd", reason, graph, chain, channels_last=last)
    reason = "all operations of the network have written-out gradients"
    return Choice("program", reason, graph, chain, small, multiplications=0 if most == inf else int(most))


def unchained(graph: Graph, parameters: Sequence[str], channels_last: bool) -> str:
    """Why a network that convolves images is left to autograd; empty for chains of known layers and other networks.

    Nearly all its time is in the convolutions, which are the same operations for autograd and for a program. So a
    program is not faster, and to check one takes several passes forward and back before the first round. In the default
    layout a program is faster where it pools, because torch's max-pooling takes longer than a small convolution there.
    """
    pools = not channels_last and any(map(by_halves, graph.operations))
    left = any(map(convolves, graph.operations)) and not pools and chain_of(graph, parameters) is None
    return "nearly all its time is in convolutions of images, which autograd computes as fast" if left else ""


def multiplications(graph: Graph) -> float:
    """Of the matrix products for one sample; without limit where there are convolutions that are never stacked."""
    total, samples = 0, graph.output.shape[0]
    for step in graph.operations:
        if step.name == "convolution":
            if len(step.shapes[0]) != 4 or not cuts_patches(step):
                return inf
            total += prod(step.shapes[0]) * prod(step.values[1].shape[1:])
        if step.name in ("mm", "addmm", "bmm", "baddbmm"):
            total += prod(step.shapes[0]) * step.values[-1].shape[-2]
    return total / samples


def for_training(
    module: nn.Module,
    shape: Sequence[int],
    task: Task,
    channels_last: bool,
    x: Tensor | None = None,
    *,
    bfloat16: bool = False,
) -> Kernel:
    """A kernel with weights and gradient of its own; `module` becomes a part of it."""
    if bfloat16:
        return BFloat16(module.train(), task)
    choice = choose(module.train(), shape, channels_last, x)
    module = lean(module, choice.chain) if channels_last else module
    if choice.chain is not None and choice.name == "dense":
        return Dense(module, task, choice.chain, shape)
    if choice.chain is not None and choice.name == "strips":
        return ConvStrips(module, task, choice.chain, shape)
    if choice.graph is not None and choice.name == "program":
        return Written(module, task, choice.graph)
    return Autograd(module, task)


def for_scoring(
    module: nn.Module, shape: Sequence[int], task: Task, channels_last: bool, x: Tensor | None = None
) -> Kernel:
    """A kernel of a copy in evaluation mode, for outputs only."""
    module = copied(module).eval()
    if not channels_last:
        return Autograd(module, task, trains=False)
    choice = choose(module, shape, channels_last, x)
    if choice.chain is not None and choice.name == "strips":
        return ConvStrips(module, task, choice.chain, shape, trains=False)
    return Autograd(lean(module, choice.chain), task, trains=False)


def wants_channels_last(module: nn.Module, asked: bool | None, graph: Graph | None) -> bool:
    """Whether images come with the channels of a pixel side by side: as asked, else where convolutions gain from it.

    It rounds differently, so it is part of a run. What a network computes says whether it convolves; its layers say so
    where that is not known.
    """
    kinds = {type(m) for m in module.modules()}
    names = set[str]() if graph is None else {step.name for step in graph.operations}
    grouped = nn.GroupNorm in kinds or "native_group_norm" in names
    if asked and grouped:
        raise ArnoError(
            "model.channels_last = true with GroupNorm",
            "torch's backward pass writes past its buffers there for some numbers of channels",
            "leave model.channels_last out",
        )
    if asked is not None:
        return asked
    return not grouped and (nn.Conv2d in kinds if graph is None else any(map(convolves, graph.operations)))


def convolves(step: Operation) -> bool:
    """Whether an operation is a convolution of images that is more than a product with patches."""
    return step.name == "convolution" and len(step.shapes[0]) == 4 and not step.args[6] and not cuts_patches(step)
