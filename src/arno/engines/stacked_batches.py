"""The batches of many clients, step by step, drawn from the same random streams as in the serial engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..core.seeds import stream
from ..core.work import Work
from ..data.dataset import Ints
from ..kernels.stacked import Batch, Stack
from ..problems.supervised import Supervised


def batches(problem: Supervised, work: Work, rows: Tensor, stack: Stack) -> Iterator[Batch]:
    """The batches of each step, for the rows that still train.

    Batches are padded to the size of the largest one, or to the size that the stack asks for (`Stack.filled`). A sample
    has the weight 1/size of its batch, and padding has the weight 0. Each row has its own stream of random numbers if
    the network draws such numbers.
    """
    clients = work.clients[rows.cpu()].tolist() if stack.draws else []
    streams = [stream(work.seed, "network", work.round, client) for client in clients]
    index, sizes = plan(problem, work, rows)
    size = sizes[..., None].to(problem.dtype)
    weight = ((torch.arange(index.shape[2]) < size) / size).to(problem.device)
    index = index.to(problem.device)
    y = problem.y.index_select(0, index.flatten()).unflatten(0, index.shape)
    raw = problem.x.new_empty(index[0].numel(), *problem.x.shape[1:])
    tokens = raw.dtype == torch.int64
    room = raw if tokens else raw.new_empty(raw.shape, dtype=problem.dtype)
    each = sizes.tolist()
    for step, (live, widest) in enumerate(zip((sizes > 0).sum(1).tolist(), sizes.amax(1).tolist(), strict=True)):
        widest = stack.filled(widest, index.shape[2])
        now = step, slice(live), slice(widest)
        flat = index[now].flatten()
        x = torch.index_select(problem.x, 0, flat, out=raw[: len(flat)])
        x = problem.transform.normalise(x, problem.dtype, room[: len(flat)])
        yield Batch(x.unflatten(0, (live, widest)), y[now], weight[now], each[step][:live], streams[:live])


def plan(problem: Supervised, work: Work, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The samples of each step, [steps, rows, batch], and how many of them each row has, [steps, rows]."""
    rows = rows.cpu()
    clients, epochs, batch = (x[rows].numpy() for x in (work.clients, work.epochs, work.batch_size))
    first, size = problem.partition.offsets[clients].numpy(), problem.clients.sizes[clients].numpy()
    shape = int(work.steps[rows].max()), len(rows), int(np.minimum(size, batch).max())
    drawn, shuffle = [], torch.Generator()
    for client, n, times in zip(clients.tolist(), size.tolist(), epochs.tolist(), strict=True):
        stream(work.seed, "batches", work.round, client, generator=shuffle)
        drawn += [torch.randperm(n, generator=shuffle) if work.sgd.shuffle else torch.arange(n) for _ in range(times)]
    row, epoch = numbered(epochs)  # for each epoch of each row
    drawing, position = numbered(size[row])  # for each sample in each of these epochs
    step, within = np.divmod(position, batch[row][drawing])
    cell = (step + (epoch * -(-size // batch)[row])[drawing]) * len(rows) + row[drawing]
    index = np.zeros(shape, dtype=np.int64)
    index.reshape(-1, shape[2])[cell, within] = problem.partition.indices.numpy()[
        first[row][drawing] + torch.cat(drawn).numpy()
    ]
    sizes = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape[:2])
    return torch.from_numpy(index), torch.from_numpy(sizes)


def numbered(counts: Ints) -> tuple[Ints, Ints]:
    """For groups of these sizes, for each member: the number of its group, and its position in the group.

    >>> numbered(np.array([2, 3]))
    (array([0, 0, 1, 1, 1]), array([0, 1, 0, 1, 2]))
    """
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]
