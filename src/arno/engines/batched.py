"""Many clients in one kernel: their models are the rows of a matrix, and all of them take their step at once.

Dense networks (softmax, mlp) have their gradients written out in batched matrix products; any other network of Arno's
kind goes through `vmap`. Rows are taken in groups that fit a core's cache, by falling number of steps, so that those
still at work are the first ones; smaller batches are padded with samples of weight zero. Where there are several
groups, worker processes take them, one core each. Agrees with the serial engine to rounding, whatever the number of
workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ..core.contracts import Problem
from ..core.seeds import stream
from ..core.serial import Serial
from ..core.work import Mat, Result, Work
from ..data.dataset import Ints
from ..errors import ArnoError
from ..kernels.allocator import keep_memory
from ..kernels.stacked import Stack, stack_for
from ..models.network import Network, narrow
from ..problems.supervised import Supervised
from . import engines
from .parcel import span
from .processes import Processes

#: Rows are taken together while their vectors, or their batches' pixels, hold at most this many numbers.
GROUP = 2**20


@engines.register("batched")
def batched(problem: Problem, *, workers: int = 0) -> Batched:
    """Many clients in one kernel; for small models and many clients.

    workers: processes that take groups of clients, one core each; 0: as many as there are cores.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    torch.set_num_threads(1)
    keep_memory()
    return Batched(problem, workers or os.cpu_count() or 1)


class Batched(Serial):
    """Trains rows together; scores as the serial engine does."""

    name = "batched"
    equality = "as serial to rounding"
    together = True

    def __init__(self, problem: Problem, workers: int = 1) -> None:
        super().__init__(problem)
        self.workers = workers if problem.device.type == "cpu" else 1
        self._stacks: dict[object, Stack] = {}

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train block after block: here, or in the workers where there is more than one group for them."""
        works = iter(works)
        first = next(works, None)
        if first is None:
            return
        if reason := unsupported(self.problem, first):
            raise ArnoError("engine=batched", reason, "use engine=processes or engine=auto")
        several = self.workers > 1 and (len(first) > at_once(self.problem, first) or first.windows is not None)
        yield from (self._crew.train if several else super().train)(chain([first], works))

    def block(self, work: Work, delta: Mat) -> Result:
        """Train a block, group by group, and leave the rows' updates in `delta`."""
        began, loss = perf_counter(), torch.zeros(len(work))
        for rows in groups(self.problem, work, 1):
            self._together(work, delta, loss, rows)
        return Result(delta, loss, torch.full((len(work),), (perf_counter() - began) / len(work)))

    def close(self) -> None:
        """End the workers."""
        if "_crew" in vars(self):
            self._crew.close()

    @torch.no_grad()
    def _together(self, work: Work, delta: Mat, loss: Tensor, rows: Tensor) -> None:
        """Rows of one network shape, by falling number of steps: all of them step at once."""
        problem, sgd = self.problem, work.sgd
        assert isinstance(problem, Supervised)
        cut, mask = windows(work, rows)
        stack = self._stack(work, int(rows[0]))

        def pieces(of: Mat | None) -> list[Mat]:
            if of is None:
                return []
            if of.stride(0) == 0 and cut is None:  # one row for all: nothing to copy
                return list(of[: len(rows)].split(stack.sizes, 1))
            of = of.index_select(0, rows)
            return [piece.contiguous() for piece in (of if cut is None else of.gather(1, cut)).split(stack.sizes, 1)]

        lr, mu = work.lr[rows, None], work.mu[rows, None]
        near = bool(mu.any())
        start, drift = pieces(work.start), pieces(work.drift)
        masks = [] if mask is None else [piece.contiguous() for piece in mask.split(stack.sizes, 1)]
        bare = not (near or drift or masks or sgd.momentum or sgd.weight_decay or sgd.clip is not None)
        w = [piece.new_empty(piece.shape) for piece in start]
        if not bare:  # else the first step, which every row takes, writes them
            for piece, before in zip(w, start, strict=True):
                piece.copy_(before)
        g = [torch.empty_like(piece) for piece in w if not bare]
        velocity = [torch.zeros_like(piece) for piece in w] if sgd.momentum else []
        total = torch.zeros(len(rows), dtype=torch.float64, device=problem.device)
        for step, (x, y, weight) in enumerate(batches(problem, work, rows)):
            live = len(y)
            now, rate = [piece[:live] for piece in w], lr[:live]
            if bare:
                total[:live] += stack.descend(now if step else start, now, x, y, weight, rate)
                continue
            grads = [piece[:live] for piece in g]
            total[:live] += stack.gradient(now, grads, x, y, weight)
            if sgd.clip is not None:
                norm = torch.stack([v.square().sum(1, keepdim=True) for v in grads]).sum(0).sqrt()
                for v in grads:
                    v.mul_((sgd.clip / (norm + 1e-6)).clamp(max=1.0))
            for i, (p, v) in enumerate(zip(now, grads, strict=True)):
                if sgd.weight_decay:
                    v.add_(p, alpha=sgd.weight_decay)
                if near:
                    v.addcmul_(p - start[i][:live], mu[:live])
                if drift:
                    v.add_(drift[i][:live])
                if masks:
                    v.mul_(masks[i][:live])
                if velocity:
                    past = velocity[i][:live]
                    v = past.mul_(sgd.momentum).add_(v) if step else past.copy_(v)
                p.addcmul_(v, rate, value=-1)
        if cut is None and (side_by_side := span(rows.tolist())):
            for out, piece, before in zip(delta[side_by_side].split(stack.sizes, 1), w, start, strict=True):
                torch.sub(piece, before, out=out)
        else:
            moved = torch.cat([piece.sub_(before) for piece, before in zip(w, start, strict=True)], 1)
            if cut is not None:
                moved = moved.new_zeros(len(rows), delta.shape[1]).scatter_(1, cut, moved)
            delta.index_copy_(0, rows, moved)
        loss[rows.cpu()] = (total / work.steps[rows]).to(torch.float32).cpu()

    def _stack(self, work: Work, row: int) -> Stack:
        problem = self.problem
        assert isinstance(problem, Supervised)
        window = work.windows[row] if work.windows is not None and work.windows[row].extract else None
        shape = None if window is None else window.units
        if shape not in self._stacks:
            module = problem.module if window is None else narrow(problem.module, problem.layout, window)
            self._stacks[shape] = stack_for(module, problem.shape, problem.task)
        return self._stacks[shape]

    @cached_property
    def _crew(self) -> Processes:
        return Processes(self.problem, self.workers, kernel=Batched, cut=groups)


def unsupported(problem: Problem, work: Work) -> str:
    """Why this work cannot be batched; empty if it can."""
    if not isinstance(problem, Supervised):
        return "it trains networks, and this problem has none"
    if problem.layout.size != problem.layout.d:
        return "the network has buffers (BatchNorm) that change while it trains"
    if problem.kernel != "dense" and not isinstance(problem.module, Network):
        return "a network of your own may draw random numbers of its own"
    if work.terms:
        return "the method adds terms to the loss"
    if work.probe is not None:
        return "the method measures something on the clients"
    if work.sgd.augment:
        return "local.augment draws per client"
    return ""


def groups(problem: Problem, work: Work, workers: int) -> list[Tensor]:
    """Rows that fit together: of one network shape, by falling number of steps, not too many numbers at once."""
    shapes: dict[object, list[int]] = {} if work.windows else {None: list(range(len(work)))}
    for j, window in enumerate(work.windows or ()):
        shapes.setdefault(window.units if window.extract else None, []).append(j)
    found, most = list[Tensor](), at_once(problem, work)
    for rows in shapes.values():
        order = torch.tensor(rows, device=work.steps.device)
        order = order[work.steps[order].argsort(descending=True, stable=True)]
        found += order.tensor_split(-(-len(order) // most))
    return found


def at_once(problem: Problem, work: Work) -> int:
    """How many rows fit together."""
    assert isinstance(problem, Supervised)
    widest = problem.x[0].numel() * int(work.batch_size.max())
    return max(1, GROUP // max(problem.layout.size, widest))


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


def batches(problem: Supervised, work: Work, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Step by step, the batches of those still at work, padded to the largest: samples, labels, weights 1/size or 0."""
    index, sizes = plan(problem, work, rows)
    size = sizes[..., None].to(problem.dtype)
    weight = ((torch.arange(index.shape[2]) < size) / size).to(problem.device)
    index = index.to(problem.device)
    y = problem.y.index_select(0, index.flatten()).unflatten(0, index.shape)
    raw = problem.x.new_empty(index[0].numel(), *problem.x.shape[1:])
    room = raw.new_empty(raw.shape, dtype=problem.dtype)
    for step, (live, widest) in enumerate(zip((sizes > 0).sum(1).tolist(), sizes.amax(1).tolist(), strict=True)):
        now = step, slice(live), slice(widest)
        flat = index[now].flatten()
        x = torch.index_select(problem.x, 0, flat, out=raw[: len(flat)])
        x = problem.transform.normalise(x, problem.dtype, room[: len(flat)])
        yield x.unflatten(0, (live, widest)), y[now], weight[now]


def plan(problem: Supervised, work: Work, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples are taken in each step, [steps, rows, batch], drawn as for the serial engine; and how many."""
    rows = rows.cpu()
    clients, epochs, batch = (x[rows].numpy() for x in (work.clients, work.epochs, work.batch_size))
    first, size = problem.partition.offsets[clients].numpy(), problem.clients.sizes[clients].numpy()
    shape = int(work.steps[rows].max()), len(rows), int(batch.max())
    drawn, shuffle = [], torch.Generator()
    for client, n, times in zip(clients.tolist(), size.tolist(), epochs.tolist(), strict=True):
        stream(work.seed, "batches", work.round, client, generator=shuffle)
        drawn += [torch.randperm(n, generator=shuffle) if work.sgd.shuffle else torch.arange(n) for _ in range(times)]
    row, epoch = spread(epochs)  # of everything that was drawn; then of every sample in it
    drawing, place = spread(size[row])
    step, within = np.divmod(place, batch[row][drawing])
    cell = (step + (epoch * -(-size // batch)[row])[drawing]) * len(rows) + row[drawing]
    index = np.zeros(shape, dtype=np.int64)
    index.reshape(-1, shape[2])[cell, within] = problem.partition.indices.numpy()[
        first[row][drawing] + torch.cat(drawn).numpy()
    ]
    sizes = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape[:2])
    return torch.from_numpy(index), torch.from_numpy(sizes)


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Things laid end to end, so many of each kind: the kind of each, and its place among its like.

    >>> spread(np.array([2, 3]))
    (array([0, 0, 1, 1, 1]), array([0, 1, 0, 1, 2]))
    """
    kind = np.repeat(np.arange(len(counts)), counts)
    return kind, np.arange(len(kind)) - (np.cumsum(counts) - counts)[kind]
