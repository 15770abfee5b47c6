"""How many numbers the clients of a round receive and send. Each part declares its numbers; this module adds them up.

    to a client:   the model, and for each part `vectors[0]` further vectors of parameters
    from a client: its model or update, and for each part `vectors[1]` further vectors and the numbers of `answered`

A vector holds the coordinates of the client's window, without those that clients never send. Three things are not
counted: w⁰, the numbers that the selection of clients asks for, and the numbers that scores need. A client that was
drawn twice trains once and is counted once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .layout import Layout
from .method_part import Part
from .work import Result, SumResult, Work


def traffic(
    layout: Layout, parts: Sequence[Part], private: Tensor | None, work: Work, out: Result | SumResult | None
) -> tuple[list[int], list[int]]:
    """How many numbers each client of a block downloads, and how many it uploads.

    private: coordinates that clients never send. out: the result of the block; None if it is not known yet, and then
    the numbers of `answered` are not counted.
    """
    down, up = (sum(part.vectors[way] for part in parts) for way in (0, 1))
    sizes = widths(layout, private, work)
    single = [0] * len(work)
    if isinstance(out, Result):
        for part in parts:
            single = [a + b for a, b in zip(single, part.answered(out), strict=True)]
    downloaded = [model + down * vector for model, vector in sizes]
    return downloaded, [model + up * vector + more for (model, vector), more in zip(sizes, single, strict=True)]


def widths(layout: Layout, private: Tensor | None, work: Work) -> list[tuple[int, int]]:
    """For each client: how many numbers of the model it sends, and how many of these are parameters."""
    if work.windows is None:
        shared = layout.size if private is None else int((~private).sum())
        return [(shared, shared - _buffers(layout, private))] * len(work)
    found = []
    for index in (window.index for window in work.windows):
        kept = index if private is None else index[~private.to(index.device)[index]]
        found.append((len(kept), int((kept < layout.d).sum())))
    return found


def _buffers(layout: Layout, private: Tensor | None) -> int:
    """How many buffers each client sends."""
    return layout.size - layout.d if private is None else int((~private[layout.d :]).sum())
