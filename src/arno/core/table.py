"""One row per client (c_k, y_k, …): zero until written, memory only for clients that were seen."""

from __future__ import annotations

import torch
from torch import Tensor

from .work import Mat, Vec


class ClientTable:
    """N rows of R^d with a running sum, so that the mean over all N costs O(d).

    >>> table = ClientTable(1_000_000, torch.zeros(3))
    >>> table[torch.tensor([7, 9])] = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    >>> table[torch.tensor([9, 8])].tolist(), table.seen
    ([[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]], 2)
    >>> (table.mean() * 1_000_000).tolist()
    [4.0, 4.0, 4.0]
    """

    def __init__(self, n: int, like: Vec) -> None:
        self.n = n
        self._slot: dict[int, int] = {}  # row 0 stays zero: it stands for every client not seen yet
        self._rows = like.new_zeros((1, *like.shape))
        self._total = torch.zeros_like(like, dtype=torch.float64)

    @property
    def seen(self) -> int:
        """How many clients have a row."""
        return len(self._slot)

    def __getitem__(self, ids: Tensor) -> Mat:
        slots = torch.tensor([self._slot.get(i, 0) for i in ids.tolist()], device=self._rows.device)
        return self._rows.index_select(0, slots)

    def __setitem__(self, ids: Tensor, rows: Mat) -> None:
        self._total += (rows - self[ids]).sum(0, dtype=torch.float64)
        slots = [self._slot.setdefault(i, len(self._slot) + 1) for i in ids.tolist()]
        self._reserve(len(self._slot) + 1)
        self._rows[torch.tensor(slots, device=self._rows.device)] = rows

    def mean(self) -> Vec:
        """The mean over all N clients, the unseen ones counting as zero."""
        return (self._total / self.n).to(self._rows.dtype)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._rows):
            grown = self._rows.new_zeros((min(max(2 * len(self._rows), rows), self.n + 1), *self._rows.shape[1:]))
            grown[: len(self._rows)] = self._rows
            self._rows = grown

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        ids = torch.tensor(list(self._slot), dtype=torch.int64)
        return {"ids": ids, "rows": self._rows[1 : len(ids) + 1], "total": self._total}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        self._slot = {client: slot for slot, client in enumerate(tensors["ids"].tolist(), start=1)}
        self._reserve(len(self._slot) + 1)
        self._rows[1 : len(self._slot) + 1] = tensors["rows"]
        self._total = tensors["total"].to(self._total.device)
