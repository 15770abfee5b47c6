"""Cuts the rows of a block into pieces, and orders the pieces so that all workers end at about the same time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from torch import Tensor


def pieces(steps: Tensor, workers: int, least: float = 0.0) -> list[Tensor]:
    """Cut rows into pieces, longest rows first. Pieces get smaller towards the end, so that no worker ends late.

    steps: the number of steps of each row. Pieces come in groups of one piece per worker. Each group holds half of the
    remaining steps, as long as its pieces have at least `least` steps and at least a sixteenth of a worker's share. The
    remaining rows are cut into equal pieces, the same number for each worker.

    >>> import torch
    >>> [len(piece) for piece in pieces(torch.full((96,), 3), 2)]
    [24, 24, 12, 12, 6, 6, 3, 3, 3, 3]
    >>> [len(piece) for piece in pieces(torch.full((96,), 3), 2, least=50)]
    [24, 24, 24, 24]
    """
    rows = steps.argsort(descending=True, stable=True)
    done, found, at = steps[rows].cumsum(0).tolist(), [], 0
    for end in _ends(done[-1], workers, least):
        if at < len(rows) and end >= (done[at - 1] if at else 0):
            upto = max(at + 1, bisect_right(done, end, at))
            found.append(rows[at:upto])
            at = upto
    return [found[i] for i in order([int(steps[piece].sum()) for piece in found], workers)]


def _ends(total: int, workers: int, least: float) -> list[float]:
    """After how many steps each piece would end, if a piece could end within a row."""
    least, left, ends = max(least, total / (16 * workers), 1), float(total), list[float]()
    while left >= 2 * workers * least:
        ends += [total - left + left * i / (2 * workers) for i in range(1, workers + 1)]
        left /= 2
    count = workers * max(1, round(left / (workers * least))) if 2 * left > least else 1
    return [*ends, *(total - left * i / count for i in reversed(range(count)))]


def order(loads: Sequence[int], workers: int) -> list[int]:
    """The order in which to send pieces to workers that take the next piece as soon as they are free.

    loads: the steps of each piece, in decreasing order. Each piece is first assigned to the worker with the smallest
    total. Then the worker with the largest total gives a piece to the worker with the smallest total, or exchanges it
    for a shorter piece. This is repeated as long as all workers then end earlier.

    >>> order([23, 23, 18, 18, 17, 16, 14, 14, 13, 6], 2)  # ends after 81; in the given order, after 84
    [0, 1, 2, 4, 6, 3, 7, 5, 8, 9]
    """
    assigned, totals = _longest_first(loads, workers)
    for _ in loads:
        first, last = totals.index(min(totals)), totals.index(max(totals))
        exchange = _best_exchange(loads, assigned[last], assigned[first], totals[last] - totals[first])
        if exchange is None:
            break
        i, j = exchange
        assigned[last].remove(i)
        assigned[first].append(i)
        moved = loads[i]
        if j is not None:
            assigned[first].remove(j)
            assigned[last].append(j)
            moved -= loads[j]
        totals[last] -= moved
        totals[first] += moved
    begins = {}
    for own in assigned:
        at = 0
        for i in sorted(own):
            begins[i], at = at, at + loads[i]
    return sorted(begins, key=lambda i: (begins[i], i))


def _longest_first(loads: Sequence[int], workers: int) -> tuple[list[list[int]], list[int]]:
    """Assign each piece to the worker with the smallest total; return the pieces and the total of each worker."""
    assigned: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i, load in enumerate(loads):
        least = totals.index(min(totals))
        assigned[least].append(i)
        totals[least] += load
    return assigned, totals


def _best_exchange(
    loads: Sequence[int], last: Sequence[int], first: Sequence[int], gap: int
) -> tuple[int, int | None] | None:
    """The piece that the last worker gives, and the piece that it takes (or None), so that the gap becomes smallest.

    last, first: the pieces of the workers with the largest and the smallest total. gap: the difference of these totals.
    """
    pairs = [(i, j) for i in last for j in (*first, None)]
    moved = {pair: loads[pair[0]] - (0 if pair[1] is None else loads[pair[1]]) for pair in pairs}
    useful = (pair for pair in pairs if 0 < moved[pair] < gap)
    return min(useful, key=lambda pair: abs(gap - 2 * moved[pair]), default=None)
