"""Personal models that clients train for their own use: nothing of it is sent, and no state changes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.work import Mat, Result, Work


def adapted(fed: Federation, clients: Tensor, ask: Callable[[Work], Work]) -> Mat:
    """What each client makes of the current model when it is asked to do this work, in the order of `clients`.

    It uses the learning rate of the round just done and random streams of its own, so that asking twice gives the same.
    """
    t = max(fed.t - 1, 0)
    rows = torch.empty(len(clients), len(fed.w), dtype=fed.w.dtype, device=fed.w.device)
    place = {int(client): i for i, client in enumerate(clients)}
    for work, out in fed.engine.train(ask(work) for work in fed.plain_blocks(clients, t, "personal/")):
        assert isinstance(out, Result)
        rows[[place[int(client)] for client in work.clients]] = work.start + out.delta
    return rows
