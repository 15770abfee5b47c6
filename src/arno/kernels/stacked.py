"""Gradients of many models at once: their weights are the rows of matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..core.layout import Layout, flatten
from ..core.work import Mat, Vec
from ..tasks.task import Task
from .chain import Step
from .choose import choose


class Stack(ABC):
    """Gradients of many models of one shape.

    sizes: the lengths of the pieces in which it takes the models, [rows, length] each.
    trained: which parameters are trained, as booleans [d]; None where all of them are.
    """

    sizes: list[int]
    trained: Tensor | None = None

    @abstractmethod
    def gradient(self, w: list[Mat], g: list[Mat], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Write ∇ of Σ_i weight_i · loss_i for each row into `g`, and return its value."""

    @abstractmethod
    def descend(self, w: list[Mat], to: list[Mat], x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take the step `to` ← w − rate · ∇ at once, and return the value before it."""


def stack_for(module: nn.Module, shape: Sequence[int], task: Task) -> Stack:
    """Batched products for chains of linear layers, `vmap` for other networks."""
    choice = choose(module, shape, channels_last=False)
    if choice.chain is not None and choice.name == "dense":
        return StackedDense(module, task, choice.chain)
    return Vmapped(module, task)


class StackedDense(Stack):
    """Chains of linear layers, written out: δ ← ∂loss/∂outputs, and down the layers ∇W = δᵀ h, δ ← (δ W) ∘ act′."""

    def __init__(self, module: nn.Module, task: Task, chain: Sequence[Step]) -> None:
        slots = Layout.of(module).slots
        self.task, self.tanh = task, any(step.kind == "tanh" for step in chain)
        self.sizes, self.shapes = [s.numel for s in slots], [s.shape for s in slots]

    def gradient(self, w: list[Mat], g: list[Mat], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """One forward and one backward pass in batched products."""
        losses, backward = self._pass(self._layers(w), x, y, weight)
        for (matrix, bias), (back, h) in zip(reversed(self._layers(g)), backward, strict=True):
            torch.bmm(back.mT, h, out=matrix)
            torch.sum(back, 1, out=bias)
        return losses

    def descend(self, w: list[Mat], to: list[Mat], x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """The same, subtracted from the weights layer by layer: ∇W is never stored."""
        before = self._layers(w)
        after = before if to is w else self._layers(to)
        losses, backward = self._pass(before, x, y, weight)
        for old, new, (back, h) in zip(reversed(before), reversed(after), backward, strict=True):
            back = back * rate[..., None]
            torch.baddbmm(old[0], back.mT, h, alpha=-1, out=new[0])
            torch.sub(old[1], back.sum(1), out=new[1])
        return losses

    def _pass(
        self, layers: list[tuple[Tensor, Tensor]], x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Iterator[tuple[Tensor, Tensor]]]:
        """The losses, and for each layer from the last down its δ and its input: ∇W = δᵀ h, ∇b = Σ δ."""
        inputs = [x.flatten(2)]
        for matrix, bias in layers[:-1]:
            z = affine(inputs[-1], matrix, bias)
            inputs.append(z.tanh_() if self.tanh else z.relu_())
        losses, back = self.task.row_gradients(affine(inputs[-1], *layers[-1]), y, weight)

        def backward() -> Iterator[tuple[Tensor, Tensor]]:
            delta = back
            for (matrix, _), h in zip(reversed(layers), reversed(inputs), strict=True):
                below = None if h is inputs[0] else torch.bmm(delta, matrix).mul_(1 - h * h if self.tanh else h > 0)
                yield delta, h  # the caller may change the layer now: the next δ is computed already
                if below is not None:
                    delta = below

        return losses.double(), backward()

    def _layers(self, pieces: list[Mat]) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases of every row."""
        views = [piece.unflatten(1, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return list(zip(views[::2], views[1::2], strict=True))


def affine(h: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """h Wᵀ + b of every row; the product is faster with the smaller factor on the left."""
    shape, narrow = h.shape[:2], matrix.shape[1] < h.shape[1]
    if matrix.stride(0) == 0:  # all rows are one
        h, matrix, bias = h.flatten(0, 1)[None], matrix[:1], bias[:1]
    z = torch.bmm(matrix, h.mT).mT + bias[:, None] if narrow else torch.baddbmm(bias[:, None], h, matrix.mT)
    return z.view(*shape, -1)


class Vmapped(Stack):
    """Any network, by `vmap` over the gradient of one."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        layout = Layout.of(module)
        self.sizes, self.trained = [layout.size], layout.trained

        def loss(w: Vec, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            outputs = torch.func.functional_call(module, layout.views(w), (x,))
            value = (task.loss(outputs, y, "none") * weight).sum()
            return value, value

        self._gradient = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def gradient(self, w: list[Mat], g: list[Mat], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The gradient of every row."""
        with torch.enable_grad():
            found, losses = self._gradient(w[0], x, y, weight)
        g[0].copy_(found if self.trained is None else found * self.trained.to(found))
        value: Tensor = losses.detach().double()
        return value

    def descend(self, w: list[Mat], to: list[Mat], x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """The gradient, then the step."""
        g = [torch.empty_like(to[0])]
        losses = self.gradient(w, g, x, y, weight)
        torch.addcmul(w[0], g[0], rate, value=-1, out=to[0])
        return losses


def refusal(module: nn.Module, task: Task, x: Tensor, y: Tensor) -> str:
    """Why `Vmapped` cannot compute a network, from a trial with two models and these samples; empty if it can.

    >>> from arno.tasks.classification import Classification
    >>> x, y, task = torch.ones(2, 3), torch.tensor([0, 1]), Classification(2)
    >>> refusal(nn.Linear(3, 2), task, x, y), refusal(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), task, x, y)
    ('', 'vmap: called random operation while in randomness error mode')
    """
    module = deepcopy(module).train()
    w = flatten(module).expand(2, -1)
    weight = w.new_ones(2, len(x))
    try:
        with torch.no_grad():
            g = [torch.empty_like(w)]
            Vmapped(module, task).gradient([w], g, x.expand(2, *x.shape), y.expand(2, *y.shape), weight)
    except Exception as error:  # whatever the code of a network raises
        return str(error).split(". ")[0].split("\n")[0] or type(error).__name__
    return ""
