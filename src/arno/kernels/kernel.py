"""What a kernel is: one network whose weights are in a flat buffer, with its outputs and its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ..core.layout import Layout, bind
from ..core.work import Vec
from ..tasks.task import Task


class Kernel(ABC):
    """A network made ready for one process.

    module: the network itself, whose parameters are views of `w` and whose gradients are views of `g`.
    written_out: whether `gradient` needs no autograd.
    trains: without it there is no memory for a gradient, and only `outputs` may be called.
    """

    name: str
    written_out = True

    def __init__(self, module: nn.Module, task: Task, trains: bool = True) -> None:
        self.module, self.task, self.layout = module, task, Layout.of(module)
        like = next(module.parameters())
        self.w: Vec = torch.zeros(self.layout.size, device=like.device, dtype=like.dtype)
        self.p = self.w[: self.layout.d]
        self.g = torch.zeros_like(self.p) if trains else self.p
        bind(module, self.w, self.g if trains else None)

    def arranged(self, x: Tensor) -> Tensor:
        """Inputs of the network in the shape that the kernel reads fastest; called once for many batches."""
        return x

    @abstractmethod
    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the network."""

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient of the mean loss into `g` and return the loss."""


class Autograd(Kernel):
    """Any network, by autograd."""

    name = "autograd"
    written_out = False

    def outputs(self, x: Tensor) -> Tensor:
        """The module's own."""
        out: Tensor = self.module(x)
        return out

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """One backward pass."""
        self.g.zero_()
        loss = self.task.loss(self.module(x), y)
        loss.backward()
        return loss.detach()
