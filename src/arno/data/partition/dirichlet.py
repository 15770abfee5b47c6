"""Label skew by Dirichlet proportions."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...core.seeds import numpy_stream
from ...errors import ArnoError
from ..dataset import Ints, Labels, rank_in_class
from . import partitions
from .partition import Partition, by_owner, checked

#: About how many numbers are drawn at a time.
BLOCK = 2**22


@partitions.register("dirichlet")
def dirichlet(
    y: Labels,
    clients: int,
    seed: int,
    *,
    alpha: float = 0.5,
    equal: bool = False,
    turns: Literal["client", "sample"] = "client",
    min_size: int = 1,
    tries: int = 2000,
) -> Partition:
    """Label skew: class c is divided among the clients in proportions p_c ~ Dirichlet(α, …, α).

    If some client has fewer than `min_size` samples, the proportions of one class after another are drawn again;
    a draw is kept unless more samples are missing than before.

    Args:
        alpha: the smaller, the fewer classes a client has; large values approach `iid`.
        equal: give all clients the same number of samples; each then draws its own class proportions
            ~ Dirichlet(α, …, α), weighted by class size, and takes samples that remain in these classes.
        turns: with `equal`, who takes when. client: one client after another takes all its samples, as in the splits
            of FedRCL; the last clients get the classes that are left. sample: clients in random order take one sample
            at a time by their own proportions, not weighted by class size, as in FedDyn; a class that is used up is
            left out of all proportions.
        min_size: the smallest number of samples of a client.
        tries: how many draws may be repeated before this is an error.
    """
    labels = checked(y, clients)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ArnoError(f"partition.alpha = {alpha}", "it must be a positive number", "try partition.alpha=0.5")
    if min_size < 1:
        rule = "a client needs at least one sample"
        raise ArnoError(f"partition.min_size = {min_size}", rule, "try partition.min_size=1")
    if min_size * clients > len(labels):
        raise ArnoError(
            f"partition.min_size = {min_size} with clients = {clients}",
            f"this needs {min_size * clients} training samples and there are {len(labels)}",
            f"use fewer clients or partition.min_size={len(labels) // clients}",
        )
    random = numpy_stream(seed, "partition")
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if turns == "sample" and not equal:
        raise ArnoError("partition.turns = sample", "it is for equal sizes", "add partition.equal=true")
    if equal:
        table = (_equal_table if turns == "client" else _mixed_table)(counts, clients, alpha, random)
    else:
        table = _skewed_table(counts, clients, alpha, min_size, tries, random)
    # Sample number r of class c goes to the client whose share of the class contains r.
    ends = np.cumsum(table, axis=1) + (np.cumsum(counts) - counts)[:, None]
    place = rank_in_class(labels, random) + (np.cumsum(counts) - counts)[labels]
    return by_owner(np.searchsorted(ends.ravel(), place, side="right") % clients, clients)


def _skewed_table(
    counts: Ints, clients: int, alpha: float, min_size: int, tries: int, random: np.random.Generator
) -> Ints:
    """How many samples of each class (row) each client (column) gets; each row has the sum `counts`."""

    def row(count: int) -> Ints:
        ends = np.floor(np.cumsum(random.dirichlet(np.full(clients, alpha))) * count + 1e-9).astype(np.int64)
        ends[-1] = count
        return random.permutation(np.diff(ends, prepend=0))

    def shortage(sizes: Ints) -> int:
        return int(np.maximum(min_size - sizes, 0).sum())

    table = np.stack([row(count) for count in counts])
    sizes = table.sum(0)
    short = shortage(sizes)
    for attempt in range(tries):
        if not short:
            return table
        label = attempt % len(counts)
        drawn = row(counts[label])
        changed = sizes - table[label] + drawn
        if (now := shortage(changed)) <= short:
            table[label], sizes, short = drawn, changed, now
    if short:
        raise ArnoError(
            f"partition.alpha = {alpha} with clients = {clients}, partition.min_size = {min_size}",
            f"{tries} draws left some client with {sizes.min()} of {int(counts.sum())} samples",
            "try partition.equal=true, fewer clients or a larger alpha" + " or a smaller min_size" * (min_size > 1),
        )
    return table


def _equal_table(counts: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """The same for clients of equal size: in random order, each client takes remaining samples of its drawn classes."""
    total, left = int(counts.sum()), counts.copy()
    wishes = random.dirichlet(np.full(len(counts), alpha), size=clients) * counts
    table = np.zeros((len(counts), clients), dtype=np.int64)
    for turn, client in enumerate(random.permutation(clients)):
        need = total // clients + (turn < total % clients)
        while need:
            wish = wishes[client] * (left > 0)
            if not wish.sum() > 0:
                wish = left
            got = np.minimum(random.multinomial(need, wish / wish.sum()), left)
            table[:, client] += got
            left -= got
            need -= int(got.sum())
    return table


def _mixed_table(counts: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """The same if the clients take one sample at a time.

    Until a class is used up, all draws are independent, so they are made at once.
    """
    total, left = int(counts.sum()), counts.copy()
    wishes = random.dirichlet(np.full(len(counts), alpha), size=clients)
    turns = random.permutation(np.arange(total) % clients)
    table = np.zeros((len(counts), clients), dtype=np.int64)
    while len(turns):
        share = wishes * (left > 0)
        share[~(share.sum(1) > 0)] = left  # no class that this client draws has samples left
        ends = np.cumsum(share / share.sum(1, keepdims=True), axis=1)
        ends[:, np.flatnonzero(left)[-1] :] = 1
        now = turns[: max(1, BLOCK // len(counts))]
        drawn = (random.random(len(now))[:, None] >= ends[now]).sum(1)
        order = np.argsort(drawn, kind="stable")
        each = np.bincount(drawn, minlength=len(counts))
        before = np.empty_like(order)  # how many earlier draws have the same class
        before[order] = np.arange(len(order)) - (np.cumsum(each) - each)[drawn[order]]
        used_up = np.flatnonzero(before + 1 == left[drawn])
        done = used_up[0] + 1 if len(used_up) else len(now)
        np.add.at(table, (drawn[:done], now[:done]), 1)
        left -= np.bincount(drawn[:done], minlength=len(counts))
        turns = turns[done:]
    return table
