"""What a kernel is: one network whose weights are in a flat buffer, with its outputs and its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ..core.layout import Layout, bind
from ..core.work import Vec
from ..tasks.task import Task
from .record import Graph, draws_put_back, record


class Kernel(ABC):
    """A network made ready for one process.

    module: the network itself, whose parameters are views of `w` and whose gradients are views of `g`.
    written_out: whether `gradient` needs no autograd.
    draws: whether `gradient` may draw from torch's global stream (dropout).
    trains: without it there is no memory for a gradient, and only `outputs` may be called.
    """

    name: str
    written_out = True
    draws = False

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

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the network and terms of the loss are computed."""
        return nullcontext()

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
    draws = True

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the module, of which autograd knows the gradient."""
        out: Tensor = self.module(x)
        return out

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the module."""
        return self.forward(x)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """One backward pass."""
        self.g.zero_()
        loss = self.task.loss(self.forward(x), y)
        loss.backward()
        return loss.detach()


class Recorded(Autograd):
    """A kernel for what a network was recorded to compute; batches of a size that it computes otherwise run as it does.

    shape: of one sample.
    """

    written_out = True
    draws = False

    def __init__(self, module: nn.Module, task: Task, shape: Sequence[int], trains: bool = True) -> None:
        super().__init__(module, task, trains)
        self.shape = tuple(shape)
        self._two: Graph | None = None
        self._usual: dict[int, bool] = {}

    @abstractmethod
    def written(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient without autograd."""

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Written out, or by autograd."""
        if self.usual(len(y)):
            return self.written(x, y)
        with torch.inference_mode(False), torch.enable_grad():
            return super().gradient(x.reshape(-1, *self.shape).clone(), y.clone())

    def usual(self, n: int) -> bool:
        """Whether the network computes the same on n samples as on two; recorded, unless it cannot tell them apart."""
        if n not in self._usual:
            self._two = self._two or self._recorded(2)
            blind = self._two.blind and n > 1
            self._usual[n] = blind or self._recorded(n).structure() == self._two.structure()
        return self._usual[n]

    def _recorded(self, n: int) -> Graph:
        """What it computes on n samples."""
        with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
            return record(self.module, self.w.new_zeros(n, *self.shape))
