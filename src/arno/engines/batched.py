"""Many clients in one kernel: the block's models are the rows of a matrix, and all of them take their step at once.

Dense networks (softmax, mlp) have their gradients written out in batched matrix products; any other network of Arno's
kind goes through `vmap`. Clients of unequal size are sorted by their number of steps, so that those still at work are
the first rows; smaller batches are padded with samples of weight zero. Agrees with the serial engine to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.layout import Layout
from ..core.local import Problem
from ..core.work import Job, Mat, Result, Vec, Work
from ..errors import ArnoError
from ..models.linear import MLP
from ..models.network import narrow
from ..problems.classification import Classification
from . import engines
from .serial import Serial

#: Rows are taken together while their vectors, and their batches' pixels, hold at most this many numbers.
GROUP = 2**23


@engines.register("batched", equality="as serial to rounding")
def batched(problem: Problem, *, threads: int = 1) -> Batched:
    """Many clients in one kernel; for small models and many clients.

    threads: torch's threads inside a kernel; 0: one per core.
    """
    if threads < 0:
        raise ArnoError(f"engine.threads = {threads}", "it must not be negative", "use 0 for one thread per core")
    import os

    torch.set_num_threads(threads or os.cpu_count() or 1)
    return Batched(problem)


class Batched(Serial):
    """Trains rows together; scores as the serial engine does."""

    name = "batched"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._stacks: dict[object, Stack] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train block after block."""
        for work in works:
            if reason := unsupported(self.problem, work):
                raise ArnoError("engine=batched", reason, "use engine=processes or engine=auto")
            delta, loss = torch.empty_like(work.start, memory_format=torch.contiguous_format), torch.zeros(len(work))
            began, jobs = perf_counter(), list(work.jobs())
            for rows in groups(self.problem, work):
                delta[rows], loss[rows] = self._together(work, rows, [jobs[j] for j in rows.tolist()])
            seconds = torch.full((len(work),), (perf_counter() - began) / len(work))
            yield work, Result(delta, loss, seconds)

    @torch.no_grad()
    def _together(self, work: Work, rows: Tensor, jobs: Sequence[Job]) -> tuple[Mat, Tensor]:
        """Rows of one network shape, by falling number of steps: all of them step at once."""
        problem, sgd = self.problem, work.sgd
        assert isinstance(problem, Classification)
        cut, mask = windows(work, rows)
        start = work.start[rows] if cut is None else work.start[rows].gather(1, cut)
        drift = None if work.drift is None else work.drift[rows] if cut is None else work.drift[rows].gather(1, cut)
        lr, mu = work.lr[rows, None], work.mu[rows, None]
        stack = self._stack(work, int(rows[0]))
        w, total = start.clone(), torch.zeros(len(rows), dtype=torch.float64, device=start.device)
        velocity = torch.zeros_like(w) if sgd.momentum else None
        steps = work.steps[rows]
        for step, (x, y, weight) in enumerate(batches(problem, jobs)):
            live = len(y)
            p, rate = w[:live], lr[:live]
            g, losses = stack.gradient(p, x, y, weight)
            total[:live] += losses
            if sgd.clip is not None:
                g.mul_((sgd.clip / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))
            if sgd.weight_decay:
                g.add_(p, alpha=sgd.weight_decay)
            if mu.any():
                g.addcmul_(p - start[:live], mu[:live])
            if drift is not None:
                g.add_(drift[:live])
            if mask is not None:
                g.mul_(mask[:live])
            if velocity is not None:
                g = velocity[:live].mul_(sgd.momentum).add_(g) if step else velocity[:live].copy_(g)
            p.addcmul_(g, rate, value=-1)
        delta = w - start
        if cut is not None:
            delta = torch.zeros_like(work.start[rows]).scatter_(1, cut, delta)
        return delta, (total / steps).to(torch.float32).cpu()

    def _stack(self, work: Work, row: int) -> Stack:
        problem = self.problem
        assert isinstance(problem, Classification)
        window = work.windows[row] if work.windows is not None and work.windows[row].extract else None
        shape = None if window is None else window.units
        if shape not in self._stacks:
            module = problem.module if window is None else narrow(problem.module, problem.layout, window)
            self._stacks[shape] = Dense(module) if isinstance(module, MLP) else Vmapped(module)
        return self._stacks[shape]


class Stack(Protocol):
    """Gradients of many models at once."""

    def gradient(self, w: Mat, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Mat, Tensor]:
        """∇ of Σ_i weight_i · cross-entropy_i for each row, and its value."""
        ...


class Dense:
    """Softmax regression and perceptrons, written out: δ ← p − 1_y, and down the layers ∇W = δᵀ h, δ ← (δ W) ∘ act′."""

    def __init__(self, module: MLP) -> None:
        self.layout, self.tanh = Layout.of(module), module.activation == "tanh"

    def gradient(self, w: Mat, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Mat, Tensor]:
        """One forward and one backward pass in batched products."""
        g = torch.empty_like(w)
        layers, grads = self._layers(w), self._layers(g)
        inputs = [x.flatten(2)]
        for matrix, bias in layers[:-1]:
            z = torch.baddbmm(bias[:, None], inputs[-1], matrix.mT)
            inputs.append(z.tanh_() if self.tanh else z.relu_())
        matrix, bias = layers[-1]
        logits = torch.baddbmm(bias[:, None], inputs[-1], matrix.mT)
        logits -= logits.logsumexp(-1, keepdim=True)
        picked = y[..., None]
        losses = -(logits.gather(-1, picked)[..., 0] * weight).sum(1)
        back = logits.exp_().scatter_add_(-1, picked, -torch.ones_like(picked, dtype=w.dtype)).mul_(weight[..., None])
        for i in reversed(range(len(layers))):
            grads[i][0].copy_(torch.bmm(back.mT, inputs[i]))
            grads[i][1].copy_(back.sum(1))
            if i:
                h = inputs[i]
                back = torch.bmm(back, layers[i][0]).mul_(1 - h * h if self.tanh else h > 0)
        return g, losses.double()

    def _layers(self, rows: Mat) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases of every row as views."""
        slots, n = self.layout.slots, len(rows)
        views = [rows[:, slot.span].unflatten(1, slot.shape) for slot in slots]
        assert all(len(view) == n for view in views)
        return list(zip(views[::2], views[1::2], strict=True))


class Vmapped:
    """Any network, by `vmap` over the gradient of one."""

    def __init__(self, module: nn.Module) -> None:
        layout = Layout.of(module)

        def loss(w: Vec, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            logits = torch.func.functional_call(module, layout.views(w), (x,))
            value = (F.cross_entropy(logits, y, reduction="none") * weight).sum()
            return value, value

        self._gradient = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def gradient(self, w: Mat, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Mat, Tensor]:
        """The gradient of every row."""
        with torch.enable_grad():
            g, losses = self._gradient(w, x, y, weight)
        return g.detach(), losses.detach().double()


def unsupported(problem: Problem, work: Work) -> str:
    """Why this work cannot be batched; empty if it can."""
    if not isinstance(problem, Classification):
        return "it trains networks, and this problem has none"
    if problem.layout.size != problem.layout.d:
        return "the network has buffers (BatchNorm) that change while it trains"
    if not hasattr(problem.module, "embed"):
        return "a network of your own may draw random numbers of its own"
    if work.terms:
        return "the method adds terms to the loss"
    if work.probe is not None:
        return "the method measures something on the clients"
    if work.sgd.augment:
        return "local.augment draws per client"
    return ""


def groups(problem: Problem, work: Work) -> Iterator[Tensor]:
    """Rows that fit together: of one network shape, by falling number of steps, not too many numbers at once."""
    assert isinstance(problem, Classification)
    shapes: dict[object, list[int]] = {}
    for j in range(len(work)):
        window = work.windows[j] if work.windows is not None and work.windows[j].extract else None
        shapes.setdefault(None if window is None else window.units, []).append(j)
    widest = problem.x[0].numel() * int(work.batch_size.max())
    at_once = max(1, GROUP // max(work.start.shape[1], widest))
    for rows in shapes.values():
        order = torch.tensor(rows, device=work.steps.device)
        order = order[work.steps[order].argsort(descending=True, stable=True)]
        yield from order.split(at_once)


def windows(work: Work, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The coordinates that extracted rows keep, or the mask of masked ones."""
    if work.windows is None:
        return None, None
    chosen = [work.windows[int(j)] for j in rows]
    if chosen[0].extract:
        return torch.stack([window.index for window in chosen]).to(work.start.device), None
    mask = torch.zeros(len(rows), work.start.shape[1], dtype=work.start.dtype, device=work.start.device)
    for row, window in zip(mask, chosen, strict=True):
        row[window.index] = 1
    return None, mask


def batches(problem: Classification, jobs: Sequence[Job]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Step by step, the batches of those still at work, padded to the largest: samples, labels, weights 1/size or 0."""
    plans = [plan(problem, job) for job in jobs]
    for step in range(max((len(p) for p in plans), default=0)):
        now = [p[step] for p in plans if step < len(p)]
        size = max(len(rows) for rows in now)
        if all(len(rows) == size for rows in now):
            index = torch.stack(now)
            weight = torch.full(index.shape, 1 / size, dtype=problem.dtype, device=problem.device)
        else:
            lengths = torch.tensor([len(rows) for rows in now])[:, None]
            index = nn.utils.rnn.pad_sequence(now, batch_first=True)
            real = torch.arange(size) < lengths
            weight = (real.to(problem.dtype) / lengths).to(problem.device)
        index = index.to(problem.device)
        flat = index.flatten()
        x = problem.transform.normalise(problem.x[flat], problem.dtype).unflatten(0, index.shape)
        yield x, problem.y[flat].view(index.shape), weight


def plan(problem: Classification, job: Job) -> list[Tensor]:
    """A client's batches as sample indices: the order that the serial engine draws."""
    rows, shuffle = problem.partition[job.client], job.stream("batches")
    found: list[Tensor] = []
    for _ in range(job.epochs):
        order = rows[torch.randperm(len(rows), generator=shuffle)] if job.sgd.shuffle else rows
        found += order.split(job.batch_size)
    return found
