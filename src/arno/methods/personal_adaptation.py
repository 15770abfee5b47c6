"""Personal models that clients train for their own use: nothing of it is sent, and no state changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.work import Mat, Result, Work


def adapted(fed: Federation, clients: Tensor, ask: Callable[[Work], Work]) -> Mat:
    """What each client makes of the current model when it is asked to do this work, in the order of `clients`.

    It uses the learning rate of the round just done and random streams of its own, so that asking twice gives the same.
    """
    t, w = max(fed.t - 1, 0), fed.evaluated()
    rows = torch.empty(len(clients), len(fed.w), dtype=fed.w.dtype, device=fed.w.device)
    place = {int(client): i for i, client in enumerate(clients)}
    blocks = (replace(work, start=w.expand(len(work), -1)) for work in fed.plain_blocks(clients, t, "personal/"))
    for work, out in fed.engine.train(ask(work) for work in blocks):
        assert isinstance(out, Result)
        out.delta[list(out.failed)] = 0  # such a client uses the model that it received
        rows[[place[int(client)] for client in work.clients]] = work.start + out.delta
    return rows
