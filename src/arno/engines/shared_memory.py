"""Shared memory for vectors that the server and its worker processes read and write in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch

from ..core.work import Mat


@dataclass(eq=False)
class Slab:
    """A matrix in shared memory. busy: whether a block or a model is in use in it."""

    number: int
    rows: Mat
    busy: bool = False
    _given: ref[Any] | None = None

    @property
    def free(self) -> bool:
        """Whether it may be written again: it is not used, and no view of the rows that `give` returned exists."""
        return not self.busy and (self._given is None or self._given() is None)

    def take(self) -> None:
        """Mark it as used."""
        self.busy, self._given = True, None

    def give(self, n: int) -> Mat:
        """End its use; return the first n rows without a copy.

        They are valid as long as the returned tensor or a view exists.
        """
        array = self.rows.numpy()[:n]
        self.busy, self._given = False, ref(array)
        return torch.from_numpy(array)


class Slabs:
    """All slabs of an engine. A slab is used again as soon as it is free."""

    def __init__(self) -> None:
        self._slabs: list[Slab] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._slabs)

    @property
    def numbers(self) -> set[int]:
        """The numbers of the slabs that exist."""
        return {slab.number for slab in self._slabs}

    def take(self, rows: int, size: int, dtype: torch.dtype) -> Slab:
        """A free slab with at least this many rows, or a new one. Free slabs of another size or type are released."""
        for slab in [slab for slab in self._slabs if slab.free]:
            if slab.rows.shape[1] == size and len(slab.rows) >= rows and slab.rows.dtype == dtype:
                break
            self._slabs.remove(slab)
        else:
            slab = Slab(self._made, torch.zeros(rows, size, dtype=dtype).share_memory_())
            self._slabs.append(slab)
            self._made += 1
        slab.take()
        return slab
