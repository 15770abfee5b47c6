"""Chooses the kernel that computes a network, and gives the reason."""

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

#: A small network has at most this many parameters, and at most this many multiplications for one sample
#: (`benchmarks/kernels.py`).
SMALL = 500_000
#: Networks with more parameters are not recorded. They spend nearly all their time in products of matrices, and a
#: recording makes a copy of the network.
LARGE = 2**25


@dataclass(frozen=True)
class Choice:
    """The kernel of a network; the kernel itself is not made yet.

    name: the name of the kernel.
    reason: why this kernel is chosen and not a faster one.
    graph: what the network computes, if its recording was checked.
    chain: the layers of the network, if it is a chain of known layers.
    small: whether a step takes so little time that the steps of many models are best computed at once.
    channels_last: whether images are stored with the channels of a pixel next to each other.
    multiplications: for `program`, the number for one sample if many models can be computed at once; otherwise 0.
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
    """The kernel for a network on inputs of this shape. x: a few inputs; without them, random numbers are used.

    The names of the kernels:

    dense: a chain of linear layers with one activation.
    strips: narrow convolutions with pooling in channels_last on a CPU, then linear layers.
    program: a network of operations that all have a rule in `rules`.
    autograd: any other network.
    bfloat16: any network, if `bfloat16` is set: autograd computes its products in bfloat16.

    channels_last: the user's setting; None: the operations of the network decide.
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
    """Why autograd computes a network that convolves images; empty for chains of known layers and for other networks.

    Such a network spends nearly all its time in the convolutions, and autograd and a program run the same operations
    for them. So a program is not faster, and to check a program takes several forward and backward passes before the
    first round. In the default layout a program is faster if the network has 2×2 max-pooling: there torch's max-pooling
    takes longer than a small convolution.
    """
    pools = not channels_last and any(map(by_halves, graph.operations))
    left = any(map(convolves, graph.operations)) and not pools and chain_of(graph, parameters) is None
    return "nearly all its time is in convolutions of images, which autograd computes as fast" if left else ""


def multiplications(graph: Graph) -> float:
    """The multiplications in the matrix products for one sample.

    Infinite if the network has a convolution that is not computed for many models at once.
    """
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
    """A kernel with weights and a gradient of its own. The kernel keeps `module` and may change it."""
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
    """A kernel that holds a copy of the network in evaluation mode and computes outputs only."""
    module = copied(module).eval()
    if not channels_last:
        return Autograd(module, task, trains=False)
    choice = choose(module, shape, channels_last, x)
    if choice.chain is not None and choice.name == "strips":
        return ConvStrips(module, task, choice.chain, shape, trains=False)
    return Autograd(lean(module, choice.chain), task, trains=False)


def wants_channels_last(module: nn.Module, asked: bool | None, graph: Graph | None) -> bool:
    """Whether images are stored with the channels of a pixel next to each other.

    The user's setting `asked` decides; an error if it asks for this layout and the network has GroupNorm. Without the
    setting, the answer is yes if the network has convolutions and no GroupNorm. The layout changes rounding, so it is
    part of a run. The recorded operations say whether the network has convolutions; without a recording, its layers say
    it.
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
    """Whether an operation is a convolution of images that is neither transposed nor a product with patches."""
    return step.name == "convolution" and len(step.shapes[0]) == 4 and not step.args[6] and not cuts_patches(step)
