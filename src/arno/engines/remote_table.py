"""Rows of clients (c_k, y_k, …) in the memory of a cluster's nodes: `state=workers`.

Client k's row lies with shard k mod S. The server keeps which clients have one and the running sum; what it computes is
bit for bit what it computes with a table of its own, and a checkpoint holds all rows, so that a run can be resumed on
another number of workers, or without any.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.table import ClientTable
from ..core.work import Mat, Vec
from ..errors import ArnoError


class WorkerTable(ClientTable):
    """A table whose rows lie with `shards` actors, spread over the nodes."""

    def __init__(self, n: int, like: Vec, shards: int) -> None:
        import ray

        super().__init__(n, like)
        actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(Shard)
        self._shards = [actor.remote() for _ in range(shards)]

    def __getitem__(self, ids: Tensor) -> Mat:
        rows = self._rows.new_zeros((len(ids), *self._rows.shape[1:]))
        there = {s: [j for j in at if int(ids[j]) in self._slot] for s, at in self._owners(ids).items()}
        asked = {s: self._shards[s].get.remote(ids[at].tolist()) for s, at in there.items() if at}
        for s, reference in asked.items():
            rows.numpy()[there[s]] = _answer(reference)
        return rows

    def __setitem__(self, ids: Tensor, rows: Mat) -> None:
        self._total += (rows - self[ids]).sum(0, dtype=torch.float64)
        self._place(ids, rows)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        ids = torch.tensor(list(self._slot), dtype=torch.int64)
        return {"ids": ids, "rows": self[ids], "total": self._total}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        self._slot = {}
        self._place(tensors["ids"], tensors["rows"])
        self._total = tensors["total"]

    def _place(self, ids: Tensor, rows: Mat) -> None:
        for client in ids.tolist():
            self._slot.setdefault(client, len(self._slot) + 1)
        sent = [self._shards[s].put.remote(ids[at].tolist(), rows[at].numpy()) for s, at in self._owners(ids).items()]
        for reference in sent:
            _answer(reference)

    def _owners(self, ids: Tensor) -> dict[int, list[int]]:
        """Places in `ids` by shard."""
        found: dict[int, list[int]] = {}
        for j, client in enumerate(ids.tolist()):
            found.setdefault(client % len(self._shards), []).append(j)
        return found


class Shard:
    """The actor's side: rows by client."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}

    def put(self, clients: list[int], rows: Any) -> None:
        """Keep copies: what came lies in the object store."""
        self.rows |= {client: row.copy() for client, row in zip(clients, rows, strict=True)}

    def get(self, clients: list[int]) -> Any:
        """Their rows."""
        import numpy as np

        return np.stack([self.rows[client] for client in clients])


def _answer(reference: Any) -> Any:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(reference)
    except RayError as error:
        raise ArnoError(
            "state=workers",
            f"rows of clients were lost with their node ({type(error).__name__})",
            "arno resume RUN goes on from the last checkpoint",
        ) from error
