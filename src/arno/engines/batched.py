"""Trains many clients at once: their models are the rows of a matrix, and all of them take their step together.

What a network computes is recorded, and rules compute its gradients for many models; `vmap` computes networks with
other operations. Rows are trained in groups that fit into the cache of a core. Within a group the rows are sorted by
decreasing number of steps, so that the rows that still train are always the first ones. Several groups are trained in
parallel in worker processes. The result agrees with the serial engine up to rounding and does not depend on the number
of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ..core.engine import Caller
from ..core.problem import Problem
from ..core.serial import Serial
from ..core.work import Mat, Result, Work
from ..errors import ArnoError
from ..kernels.glibc_memory import keep_memory
from ..kernels.stacked import Batch, Stack, stack_for
from ..models.network import narrow
from ..problems.supervised import Supervised
from . import engines
from .packing import span
from .pool import Pool
from .processes import Processes
from .stacked_batches import batches
from .timing import TIMEOUT, checked

#: A group of rows may have this size without being divided. There are three limits. Its models have at most this many
#: numbers. The samples of one step have at most this many numbers. The third limit is for networks that use a weight
#: several times for one sample (attention) and so do additional multiplications. For one sample of each model, the
#: group does at most this many additional ones with two cores, and fewer with more cores, because otherwise a cohort of
#: few clients would be one group on one core.
GROUP = 2**20
#: If there would be more groups than cores, groups may be this many times as large, because each call of an operation,
#: and each message, then serves more models. This holds only for rows whose gradients are not stored (`alike`): with
#: the gradients, such groups do not fit into the cache that the cores share (`benchmarks/groups.py`).
MORE = 4
#: Up to this many groups get about equal amounts of work. If there are more groups, each one holds rows with similar
#: numbers of steps, and the groups are trained one after another by the workers.
FEW = 4


@engines.register("batched")
def batched(problem: Problem, *, workers: int = 0, timeout: float = TIMEOUT) -> Batched:
    """Many clients in one kernel; for small models and many clients.

    workers: processes that train groups of clients, one core each; 0: one per core.
    timeout: seconds that a worker may take for a group before it is replaced; 0: no limit.
    """
    if workers < 0:
        raise ArnoError(f"engine.workers = {workers}", "it must not be negative", "use 0 for one worker per core")
    torch.set_num_threads(1)
    keep_memory()
    return Batched(problem, workers or os.cpu_count() or 1, timeout)


class Batched(Serial):
    """Trains rows together, and scores as the serial engine does."""

    name = "batched"
    equality = "as serial to rounding"

    def __init__(self, problem: Problem, workers: int = 1, timeout: float = TIMEOUT, cores: int = 2) -> None:
        """cores: how many cores a cohort should use. It is part of the run, because other groups round differently."""
        super().__init__(problem)
        self.cores = cores
        self.workers, self.timeout = workers if problem.device.type == "cpu" else 1, checked(timeout)
        self._stacks: dict[object, Stack] = {}
        self._pool: Pool | None = None

    def attach(self, caller: Caller) -> None:
        """Set the run that uses this engine and its workers."""
        self.caller = caller
        if self._pool is not None:
            self._pool.attach(caller)

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train block after block: in this process, or in worker processes if there is more than one group."""
        works = iter(works)
        first = next(works, None)
        if first is None:
            return
        if reason := unsupported(self.problem, first):
            raise ArnoError("engine=batched", reason, "use engine=processes or engine=auto")
        works = chain([first], works)
        if self.workers_for(first)[1]:
            if self._pool is None:
                transport = Processes(self.problem, self.workers, kernel=OneGroup)
                self._pool = Pool(self.problem, transport, self.timeout, cut=partial(groups, cores=self.cores))
                self._pool.attach(self.caller)
            yield from self._pool.rows(works)
        else:
            yield from super().train(works)

    def workers_for(self, work: Work) -> tuple[str, int]:
        """The name of the engine and the number of its worker processes; 0 if there is one group or one worker."""
        if self.workers == 1 or unsupported(self.problem, work):
            return self.name, 0
        several = len(work) > at_once(self.problem, work, self.cores) or work.windows is not None
        return self.name, self.workers if several else 0

    def block(self, work: Work, delta: Mat) -> Result:
        """Train a block, group by group, and write the rows' updates into `delta`."""
        return self._grouped(work, delta, groups(self.problem, work, self.cores))

    def _grouped(self, work: Work, delta: Mat, found: Iterable[Tensor]) -> Result:
        began, loss = perf_counter(), torch.zeros(len(work))
        for rows in found:
            self._together(work, delta, loss, rows)
        return Result(delta, loss, torch.full((len(work),), (perf_counter() - began) / len(work)))

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()

    @torch.no_grad()
    def _together(self, work: Work, delta: Mat, loss: Tensor, rows: Tensor) -> None:
        """Train rows of one network shape, sorted by falling number of steps."""
        problem = self.problem
        assert isinstance(problem, Supervised)
        stack = self._stack(work, int(rows[0]))
        group = Group(work, rows, stack, int(work.steps[rows[0]]) * widest(problem, work, rows))
        total = torch.zeros(len(rows), dtype=torch.float64, device=problem.device)
        for step, batch in enumerate(batches(problem, work, rows, stack)):
            total[: len(batch.y)] += group.step(batch, first=step == 0)
        group.write(delta)
        loss[rows.cpu()] = (total / work.steps[rows]).to(torch.float32).cpu()

    def _stack(self, work: Work, row: int) -> Stack:
        problem = self.problem
        assert isinstance(problem, Supervised)
        window = work.windows[row] if work.windows is not None and work.windows[row].extract else None
        shape = None if window is None else window.units
        if shape not in self._stacks:
            if window is None and not isinstance(problem.stack, str):
                self._stacks[shape] = problem.stack
            else:
                module = problem.module if window is None else narrow(problem.module, problem.layout, window)
                self._stacks[shape] = stack_for(module, problem.task, problem.some)
        return self._stacks[shape]


class OneGroup(Batched):
    """In a worker: the rows that it receives are one group, in its order."""

    def block(self, work: Work, delta: Mat) -> Result:
        """Train the rows together, and write their updates into `delta`."""
        return self._grouped(work, delta, [torch.arange(len(work))])


class Group:
    """Rows that take their steps together.

    Its lists hold one matrix [rows, length] for each piece of a model (`Stack.sizes`).
    """

    def __init__(self, work: Work, rows: Tensor, stack: Stack, samples: int) -> None:
        """samples: the most samples that one row will see, including those that fill up batches."""
        self.rows, self.stack, self.sgd = rows, stack, work.sgd
        self.cut, mask = windows(work, rows)
        self.lr, self.mu = work.lr[rows, None], work.mu[rows, None]
        self.near = bool(self.mu.any())
        self.start, self.drift = self._pieces(work.start), self._pieces(work.drift)
        if stack.trained is not None:
            trained = stack.trained.to(self.start[0]).expand(len(rows), -1)
            mask = trained if mask is None else mask * trained
        self.masks = [] if mask is None else [piece.contiguous() for piece in mask.split(stack.sizes, 1)]
        changed = self.near or self.drift or self.masks
        self.plain = not (changed or self.sgd.momentum or self.sgd.weight_decay or self.sgd.clip is not None)
        self.w = [piece.new_empty(piece.shape) for piece in self.start]
        if not self.plain:  # otherwise the first step writes `w`, because all rows take it
            for piece, start in zip(self.w, self.start, strict=True):
                piece.copy_(start)
        self.g = [torch.empty_like(piece) for piece in self.w if not self.plain]
        self.velocity = [torch.zeros_like(piece) for piece in self.w] if self.sgd.momentum else []
        together = self.plain and self.cut is None and work.start.stride(0) == 0 and len(rows) > 1
        self.low = stack.low_rank(len(rows), samples, self.start) if together else {}
        self._live(len(rows))

    def _live(self, live: int) -> None:
        """Continue with the first `live` rows; the other rows have taken all their steps."""
        self.live, self.rate = live, self.lr[:live]
        self.now, self.grads = [piece[:live] for piece in self.w], [piece[:live] for piece in self.g]
        self.models, self.slopes = self.stack.views(self.now), self.stack.views(self.grads) if self.grads else {}

    def step(self, batch: Batch, first: bool) -> Tensor:
        """Take one step of the first rows, as many as the batch has; return the losses of these rows."""
        if len(batch.y) < self.live:
            self._live(len(batch.y))
        live, rate, now, grads = self.live, self.rate, self.now, self.grads
        if self.plain:
            before = self.stack.views(self.start) if first else self.models
            return self.stack.descend(before, self.models, batch, rate, self.low)
        losses = self.stack.gradient(self.models, self.slopes, batch)
        self._clip(grads)
        for i, (p, v) in enumerate(zip(now, grads, strict=True)):
            if self.sgd.weight_decay:
                v.add_(p, alpha=self.sgd.weight_decay)
            if self.near:
                v.addcmul_(p - self.start[i][:live], self.mu[:live])
            if self.drift:
                v.add_(self.drift[i][:live])
            if self.masks:
                v.mul_(self.masks[i][:live])
            if self.velocity:
                past = self.velocity[i][:live]
                v = past.copy_(v) if first else past.mul_(self.sgd.momentum).add_(v)
            p.addcmul_(v, rate, value=-1)
        return losses

    def write(self, delta: Mat) -> None:
        """Write the updates of the rows into `delta`."""
        consecutive = span(self.rows.tolist()) if self.cut is None else None
        moved = delta.new_empty(len(self.rows), sum(self.stack.sizes)) if consecutive is None else delta[consecutive]
        pieces = moved.split(self.stack.sizes, 1)
        names = self.stack.views(pieces)
        for name, out, piece, start in zip(names, pieces, self.w, self.start, strict=True):
            if name in self.low:
                self.low[name].write(names[name])
            else:
                torch.sub(piece, start, out=out)
        if consecutive is not None:
            return
        if self.cut is not None:
            moved = moved.new_zeros(len(self.rows), delta.shape[1]).scatter_(1, self.cut, moved)
        delta.index_copy_(0, self.rows, moved)

    def _clip(self, grads: list[Mat]) -> None:
        if self.sgd.clip is None:
            return
        norm = torch.stack([v.square().sum(1, keepdim=True) for v in grads]).sum(0).sqrt()
        for v in grads:
            v.mul_((self.sgd.clip / (norm + 1e-6)).clamp(max=1.0))

    def _pieces(self, of: Mat | None) -> list[Mat]:
        """The rows of a matrix, cut to their windows and into the pieces of the stack."""
        if of is None:
            return []
        if of.stride(0) == 0 and self.cut is None:  # all rows are equal: no copy is needed
            return list(of[: len(self.rows)].split(self.stack.sizes, 1))
        of = of.index_select(0, self.rows)
        of = of if self.cut is None else of.gather(1, self.cut)
        return [piece.contiguous() for piece in of.split(self.stack.sizes, 1)]


def unsupported(problem: Problem, work: Work) -> str:
    """Why this work cannot be trained by `batched`; empty if it can."""
    if not isinstance(problem, Supervised):
        return "it trains networks, and this problem has none"
    if problem.layout.size != problem.layout.d:
        return "the network has buffers (BatchNorm) that change during training"
    if problem.recurrent:
        return "torch computes an LSTM one model at a time"
    if why := problem.not_stacked(work.clients, work.batch_size):
        return f"many models of the network cannot be computed at once: {why}"
    if work.terms or work.criterion is not None:
        return "the method changes the loss"
    if work.rule.name != "sgd" or work.push is not None or work.phases:
        return "the method changes the local step"
    if work.probe is not None:
        return "the method measures something on the clients"
    if work.sgd.augment:
        return "local.augment draws random numbers for each client"
    return ""


def groups(problem: Problem, work: Work, cores: int = 2) -> list[Tensor]:
    """Groups of rows that are trained together: rows of one network shape, longest first.

    A group has at most `at_once` rows. It may have up to `MORE` times as many if there would be more groups than cores,
    or if groups of rows with different numbers of steps are balanced.
    """
    shapes: dict[object, list[int]] = {} if work.windows else {None: list(range(len(work)))}
    for j, window in enumerate(work.windows or ()):
        shapes.setdefault(window.units if window.extract else None, []).append(j)
    found, most, more = list[Tensor](), at_once(problem, work, cores), MORE if alike(work) else 1
    for rows in shapes.values():
        order = torch.tensor(rows, device=work.steps.device)
        order = order[work.steps[order].argsort(descending=True, stable=True)]
        count = -(-len(order) // most)
        if count > cores:  # as many groups for each core, so that no core is idle during the last ones
            count = min(-(-len(order) // (more * most * cores)) * cores, len(order))
        few = count <= FEW and len(set(work.steps[order].tolist())) > 1
        found += balanced(order, work.steps, count, MORE * most) if few else order.tensor_split(count)
    return found


def balanced(order: Tensor, steps: Tensor, count: int, most: int) -> list[Tensor]:
    """Groups that take about the same time, each with at most `most` rows.

    order: the rows, those with most steps first. The time of a group is taken as the sum of the
    steps of its rows, and those of its longest row once more, for the calls of each step.

    >>> steps = torch.tensor([9, 5, 4, 3])
    >>> [group.tolist() for group in balanced(torch.arange(4), steps, 2, 4)]
    [[0], [1, 2, 3]]
    """
    found, time = [list[int]() for _ in range(count)], [0] * count
    for row in order.tolist():
        more = [int(steps[row]) * (1 if rows else 2) for rows in found]
        least = min((k for k in range(count) if len(found[k]) < most), key=lambda k: time[k] + more[k])
        found[least].append(row)
        time[least] += more[least]
    return [order.new_tensor(rows) for rows in found if rows]


def at_once(problem: Problem, work: Work, cores: int = 2) -> int:
    """How many rows a group may have without being divided."""
    assert isinstance(problem, Supervised)
    again, most = (
        (problem.multiplications - problem.layout.d) * cores // 2,
        widest(problem, work, torch.arange(len(work))),
    )
    held = problem.layout.size
    if alike(work) and not isinstance(problem.stack, str):
        held = problem.stack.held(int(work.steps.cpu().numpy().max()) * most)
    return max(1, GROUP // max(held, problem.x[0].numel() * most, again))


def alike(work: Work) -> bool:
    """Whether all rows start with the same model and take plain steps of SGD."""
    sgd, near = work.sgd, work.mu.cpu().numpy().any()  # NumPy's `any` takes less time
    changed = work.windows is not None or work.drift is not None or near or sgd.clip is not None
    return not (changed or sgd.momentum or sgd.weight_decay) and work.start.stride(0) == 0


def widest(problem: Supervised, work: Work, rows: Tensor) -> int:
    """The samples of the largest batch of some rows."""
    rows = rows.cpu()
    sizes = problem.clients.sizes.numpy()[work.clients[rows].cpu().numpy()]
    return int(np.minimum(sizes, work.batch_size[rows].cpu().numpy()).max())


def windows(work: Work, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The coordinates of windows that are extracted, or the mask of windows that are not extracted.

    Without windows, None.
    """
    if work.windows is None:
        return None, None
    chosen = [work.windows[int(j)] for j in rows]
    if chosen[0].extract:
        return torch.stack([window.index for window in chosen]).to(work.start.device), None
    mask = torch.zeros(len(rows), work.start.shape[1], dtype=work.start.dtype, device=work.start.device)
    for row, window in zip(mask, chosen, strict=True):
        row[window.index] = 1
    return None, mask
