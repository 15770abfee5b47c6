"""Estimates of the memory that supervised learning needs: for the data, a training step, and scoring a model."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.problem import Footprint

if TYPE_CHECKING:
    from .supervised import Supervised

#: How many copies of their largest inputs and outputs convolutions and their gradients need.
COPIES = 3


def footprint(problem: Supervised, batch: int) -> Footprint:
    """The memory that a problem needs, estimated from a forward pass on two samples."""
    splits = sum(x.nbytes + y.nbytes for x, y in problem.held_out.values())
    data = problem.x.nbytes + problem.y.nbytes + splits + problem.partition.indices.nbytes
    saved, largest = saved_per_sample(problem)
    sample = problem.shape.numel() * (problem.x.element_size() + 2 * problem.dtype.itemsize)
    held = int(problem.partition.sizes.max())
    gathered = sample * min(held, max(batch, problem.chunk))
    return Footprint(
        data=data,
        step=gathered + batch * (saved + COPIES * largest),
        scoring=problem.eval_batch * (sample + COPIES * largest),
    )


def saved_per_sample(problem: Supervised) -> tuple[int, int]:
    """The bytes per sample that autograd keeps for the backward pass, and the bytes of the largest such tensor."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = problem.inputs(problem.x[:2])
    try:
        with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            module = deepcopy(problem.module).train()
            outputs = module(x)
    except (Exception, SystemExit):  # the first training step shows errors of the user's network
        return x[0].nbytes, x[0].nbytes
    own = {tensor.untyped_storage().data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    found = [size for place, size in sizes.items() if place not in own] + [outputs.nbytes, x.nbytes]
    return sum(found) // len(x), max(found) // len(x)
