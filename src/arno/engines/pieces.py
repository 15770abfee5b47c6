"""Who trains when: rows cut into pieces, and the pieces in an order that lets all workers end together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from torch import Tensor


def pieces(steps: Tensor, workers: int, least: float = 0.0) -> list[Tensor]:
    """Rows that a worker takes at a time: the longest first, fewer and fewer, so that nobody ends late.

    Each wave has a piece for every worker and holds half of the steps that are left, as long as its pieces have
    `least` steps and are no crumbs of the whole; the rest is cut into equal pieces, as many for each worker.

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
    """After how many steps pieces end, if rows could be cut anywhere."""
    least, left, ends = max(least, total / (16 * workers), 1), float(total), list[float]()
    while left >= 2 * workers * least:
        ends += [total - left + left * i / (2 * workers) for i in range(1, workers + 1)]
        left /= 2
    count = workers * max(1, round(left / (workers * least))) if 2 * left > least else 1
    return [*ends, *(total - left * i / count for i in reversed(range(count)))]


def order(loads: Sequence[int], workers: int) -> list[int]:
    """In which order to hand out pieces, whose loads fall, to workers who take the next one as soon as they are free.

    The longest first, to whoever has least; then, as long as it helps, the worker who would end last gives a piece to
    the one who would end first, or changes it for a shorter one.

    >>> order([23, 23, 18, 18, 17, 16, 14, 14, 13, 6], 2)  # ends after 81; in the order given, after 84
    [0, 1, 2, 4, 6, 3, 7, 5, 8, 9]
    """
    hands: list[list[int]] = [[] for _ in range(workers)]
    total = [0] * workers
    for i, load in enumerate(loads):
        least = total.index(min(total))
        hands[least].append(i)
        total[least] += load
    for _ in loads:
        first, last = total.index(min(total)), total.index(max(total))
        gap = total[last] - total[first]
        pairs = [(i, j) for i in hands[last] for j in (*hands[first], None)]
        moved = {pair: loads[pair[0]] - (0 if pair[1] is None else loads[pair[1]]) for pair in pairs}
        best = min(
            (pair for pair in pairs if 0 < moved[pair] < gap), key=lambda p: abs(gap - 2 * moved[p]), default=None
        )
        if best is None:
            break
        i, j = best
        hands[last].remove(i)
        hands[first].append(i)
        if j is not None:
            hands[first].remove(j)
            hands[last].append(j)
        total[last] -= moved[best]
        total[first] += moved[best]
    begins = {}
    for hand in hands:
        at = 0
        for i in sorted(hand):
            begins[i], at = at, at + loads[i]
    return sorted(begins, key=lambda i: (begins[i], i))
