"""A table with one row per client (c_k, y_k, …). Only clients whose row was written need memory."""

from __future__ import annotations

import tempfile
import weakref
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import machine
from ..errors import TooLarge
from .work import Mat, Vec

#: The bytes that a dictionary needs for a client's id and the place of its row.
SLOT = 130


class ClientTable:
    """N rows with `size` numbers each, and their running sum, so that the mean over all N rows costs O(size).

    >>> table = ClientTable(1_000_000, torch.zeros(3))
    >>> table[torch.tensor([7, 9])] = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    >>> table[torch.tensor([9, 8])].tolist(), table.seen
    ([[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]], 2)
    >>> (table.mean() * 1_000_000).tolist()
    [4.0, 4.0, 4.0]

    n: N. like: a tensor with the shape and the type of a row.
    initial: the row of every client whose row was not written yet; by default zeros.
    folder: the folder of a memory-mapped file that holds the rows; by default they are in memory. The file has no name,
        and the system deletes it when the process ends.
    """

    def __init__(self, n: int, like: Vec, folder: Path | None = None, initial: Vec | None = None) -> None:
        self.n = n
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        if self._file is not None:
            weakref.finalize(self, self._file.close)
        self._slot: dict[int, int] = {}  # client → row; row 0 is the row of all clients that are not in it
        self._rows = like.new_zeros((0, *like.shape))
        self._reserve(1)
        self._initial = initial is not None
        if initial is not None:
            self._rows[0] = initial
        self._total = torch.zeros_like(like, dtype=torch.float64)

    @property
    def seen(self) -> int:
        """How many clients have a row."""
        return len(self._slot)

    def __getitem__(self, ids: Tensor) -> Mat:
        slots = torch.tensor([self._slot.get(i, 0) for i in ids.tolist()], device=self._rows.device, dtype=torch.int64)
        return self._rows.index_select(0, slots)

    def __setitem__(self, ids: Tensor, rows: Mat) -> None:
        self._total += (rows - self[ids]).sum(0, dtype=torch.float64)
        slots = [self._slot.setdefault(i, len(self._slot) + 1) for i in ids.tolist()]
        self._reserve(len(self._slot) + 1)
        self._rows[torch.tensor(slots, device=self._rows.device)] = rows

    def mean(self) -> Vec:
        """The mean of all N rows. With `initial`: the mean of (row − initial) over all N rows."""
        return (self._total / self.n).to(self._rows.dtype)

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._rows):
            return
        shape = (min(max(2 * len(self._rows), rows), self.n + 1), *self._rows.shape[1:])
        if self._file is None:
            grown = self._rows.new_zeros(shape)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        else:  # parts of a sparse file that were not written are zero and need no disk space
            kind = self._rows.numpy().dtype
            self._file.truncate(prod(shape) * kind.itemsize)
            self._rows = torch.from_numpy(np.memmap(self._file, dtype=kind, mode="r+", shape=shape))

    def needs(self, seen: int, at_once: int) -> tuple[int, int]:
        """The most bytes of memory and of disk that the table needs until `seen` clients have a row.

        at_once: how many clients get a row at the same time. The table copies its rows when it grows.
        """
        row = prod(self._rows.shape[1:]) * self._rows.element_size()
        size = most = len(self._rows)
        for rows in range(at_once, seen + at_once, max(at_once, seen // 1000)):
            if min(rows, seen) + 1 > size:
                grown = min(max(2 * size, min(rows, seen) + 1), self.n + 1)
                size, most = grown, max(most, size + grown)
        keys = SLOT * seen
        return (keys, row * (seen + 1)) if self._file is not None else (keys + row * most, 0)

    def stored(self, seen: int) -> int:
        """The bytes of the table in a checkpoint when `seen` clients have a row."""
        return seen * (8 + prod(self._rows.shape[1:]) * self._rows.element_size())

    def tensors(self) -> dict[str, Tensor]:
        """The whole table, for a checkpoint."""
        ids = torch.tensor(list(self._slot), dtype=torch.int64)
        tensors = {"ids": ids, "rows": self._rows[1 : len(ids) + 1], "total": self._total}
        return tensors | ({"initial": self._rows[0]} if self._initial else {})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        self._slot = {client: slot for slot, client in enumerate(tensors["ids"].tolist(), start=1)}
        self._reserve(len(self._slot) + 1)
        self._rows[1 : len(self._slot) + 1] = tensors["rows"]
        if self._initial:
            self._rows[0] = tensors["initial"]
        self._total = tensors["total"].to(self._total.device)


def refuse_if_too_large(rows: int, like: Vec, folder: Path | None) -> None:
    """Raise an error if a table of `rows` clients cannot fit into memory, or onto the disk of `folder`."""
    size = rows * like.numel() * like.element_size()
    if folder is None:
        room, where, remedy = machine.memory(), "memory", "use state=disk, fewer clients or rounds, or a smaller model"
    else:
        room, where, remedy = machine.free_disk(folder), "free disk", "use another out= or a smaller model"
    if size > room:
        need = f"a table of up to {rows:,} clients × {like.numel():,} parameters takes {size / 2**30:,.1f} GiB"
        raise TooLarge(need, f"there are {room / 2**30:,.1f} GiB of {where}", remedy)
