"""Who trains when: rows cut into pieces, and the pieces in an order that lets all workers end together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from torch import Tensor


def pieces(steps: Tensor, workers: int) -> list[Tensor]:
    """Rows that a worker takes at a time: the longest first, fewer and fewer, so that nobody ends late.

    A piece holds a share of the steps that are left, but no crumbs: each has to be sent.
    """
    rows = steps.argsort(descending=True, stable=True)
    done, found, at = steps[rows].cumsum(0).tolist(), [], 0
    while at < len(rows):
        before = done[at - 1] if at else 0
        share = max(done[-1] - before, done[-1] / 8) / (2 * workers)
        upto = max(at + 1, bisect_right(done, before + share, at))
        found.append(rows[at:upto])
        at = upto
    return [found[i] for i in order([int(steps[piece].sum()) for piece in found], workers)]


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
