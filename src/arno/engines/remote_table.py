"""Rows of clients (c_k, y_k, …) in the memory of the nodes of a cluster: `state=workers`.

The row of client k is in shard k mod S. The server knows which clients have a row, and keeps the running sum. Its
results are bit for bit those of a table on the server. A checkpoint holds all rows, so a run can be resumed with
another number of workers, or with another `state`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.table import SLOT, ClientTable
from ..core.work import Mat, Vec
from ..errors import ArnoError, Unanswered


class WorkerTable(ClientTable):
    """A table whose rows are in actors (`Shard`), spread over the nodes.

    limit: the time limit of a shard, in seconds.
    """

    def __init__(self, n: int, like: Vec, shards: int, limit: Callable[[], float] = lambda: inf) -> None:
        import ray

        super().__init__(n, like)
        self._limit = limit
        actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(Shard)
        self._shards = [actor.remote() for _ in range(shards)]

    def __getitem__(self, ids: Tensor) -> Mat:
        rows = self._rows.new_zeros((len(ids), *self._rows.shape[1:]))
        seen = {s: [j for j in at if int(ids[j]) in self._slot] for s, at in self._by_shard(ids).items()}
        asked = {s: self._shards[s].get.remote(ids[at].tolist()) for s, at in seen.items() if at}
        for s, reference in asked.items():
            rows.numpy()[seen[s]] = self._answer(reference)
        return rows

    def __setitem__(self, ids: Tensor, rows: Mat) -> None:
        self._total += (rows - self[ids]).sum(0, dtype=torch.float64)
        self._put(ids, rows)

    def needs(self, seen: int, at_once: int) -> tuple[int, int]:
        """The memory of the table on the server: only the numbers of the rows, because the rows are on the nodes."""
        return SLOT * seen, 0

    def tensors(self) -> dict[str, Tensor]:
        """All rows, for a checkpoint."""
        ids = torch.tensor(list(self._slot), dtype=torch.int64)
        return {"ids": ids, "rows": self[ids], "total": self._total}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors that `tensors` returned."""
        self._slot = {}
        self._put(tensors["ids"], tensors["rows"])
        self._total = tensors["total"]

    def _put(self, ids: Tensor, rows: Mat) -> None:
        for client in ids.tolist():
            self._slot.setdefault(client, len(self._slot) + 1)
        shards = self._by_shard(ids).items()
        sent = [self._shards[s].put.remote(ids[at].tolist(), rows[at].numpy()) for s, at in shards]
        for reference in sent:
            self._answer(reference)

    def _answer(self, reference: Any) -> Any:
        """What a shard returns; an error if the shard is lost or does not answer."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        waited, remedy = 0.0, "arno resume RUN continues from the last checkpoint"
        while waited < self._limit():
            try:
                return ray.get(reference, timeout=1.0)
            except GetTimeoutError:
                waited += 1.0
            except RayError as error:
                lost = f"rows of clients were lost with their node ({type(error).__name__})"
                raise ArnoError("state=workers", lost, remedy) from error
        raise Unanswered("state=workers", f"rows of clients did not arrive in {waited:.0f} s", remedy)

    def _by_shard(self, ids: Tensor) -> dict[int, list[int]]:
        """The positions in `ids` by the number of their shard."""
        found: dict[int, list[int]] = {}
        for j, client in enumerate(ids.tolist()):
            found.setdefault(client % len(self._shards), []).append(j)
        return found


class Shard:
    """An actor that holds the rows of some clients."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}

    def put(self, clients: list[int], rows: Any) -> None:
        """Store copies of rows, because the arrays that arrive are in the object store."""
        self.rows |= {client: row.copy() for client, row in zip(clients, rows, strict=True)}

    def get(self, clients: list[int]) -> Any:
        """The rows of some clients."""
        return np.stack([self.rows[client] for client in clients])
