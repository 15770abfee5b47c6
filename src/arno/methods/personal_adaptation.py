"""Personal models that clients train for their own use: clients send nothing, and no state changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.work import Mat, Result, Work


def adapted(fed: Federation, clients: Tensor, ask: Callable[[Work], Work]) -> Mat:
    """The model that each client trains from the current model, in the order of `clients`.

    ask: a function that changes the work of the clients. The clients use the learning rate of the last round and random
    streams of their own, so that a second call gives the same models.
    """
    t, w = max(fed.t - 1, 0), fed.evaluated()
    rows = torch.empty(len(clients), len(fed.w), dtype=fed.w.dtype, device=fed.w.device)
    place = {int(client): i for i, client in enumerate(clients)}
    blocks = (replace(work, start=w.expand(len(work), -1)) for work in fed.plain_blocks(clients, t, "personal/"))
    for work, out in fed.engine.train(ask(work) for work in blocks):
        assert isinstance(out, Result)
        out.delta[list(out.failed)] = 0  # a client whose training failed uses the model that it received
        rows[[place[int(client)] for client in work.clients]] = work.start + out.delta
    return rows
