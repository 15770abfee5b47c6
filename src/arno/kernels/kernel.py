"""The base class of kernels. A kernel holds a network with its weights in a flat vector, and computes its gradient."""

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
    """A network that is ready for training or for scoring in one process.

    w: the parameters, then the buffers, in one vector. p: the parameters, a view of `w`. g: the gradient.
    module: the network itself. Its parameters are views of `w`, and their gradients are views of `g`.
    written_out: whether `gradient` computes without autograd.
    draws: whether `gradient` may draw from torch's global stream of random numbers (dropout).
    trains: false: there is no memory for a gradient, and only `outputs` may be called.
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
        """Inputs of the network in the shape that the kernel reads fastest; one call may arrange several batches."""
        return x

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the network and the terms of the loss are computed."""
        return nullcontext()

    @abstractmethod
    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the network."""

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient of the mean loss into `g` and return the loss."""


class Autograd(Kernel):
    """Computes any network with autograd."""

    name = "autograd"
    written_out = False
    draws = True

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the module, with the graph from which autograd computes the gradient."""
        out: Tensor = self.module(x)
        return out

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the module."""
        return self.forward(x)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient into `g` with one backward pass of autograd, and return the loss."""
        self.g.zero_()
        loss = self.task.loss(self.forward(x), y)
        loss.backward()
        return loss.detach()


class Recorded(Autograd):
    """A kernel that computes the gradient of a recorded network without autograd.

    Autograd computes the batches of a size on which the network computes something else than on two samples.
    shape: the shape of one sample.
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
        """Write the gradient into `g` without autograd, and return the loss."""

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient into `g` with `written` or with autograd, and return the loss."""
        if self.usual(len(y)):
            return self.written(x, y)
        with torch.inference_mode(False), torch.enable_grad():
            return super().gradient(x.reshape(-1, *self.shape).clone(), y.clone())

    def usual(self, n: int) -> bool:
        """Whether the network computes on n samples the same operations as on two samples.

        The network is recorded on n samples. A network that never reads the number of samples (`Graph.blind`) needs no
        recording for n > 1.
        """
        if n not in self._usual:
            self._two = self._two or self._recorded(2)
            blind = self._two.blind and n > 1
            self._usual[n] = blind or self._recorded(n).structure() == self._two.structure()
        return self._usual[n]

    def _recorded(self, n: int) -> Graph:
        """What the network computes on n samples."""
        with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
            return record(self.module, self.w.new_zeros(n, *self.shape))
