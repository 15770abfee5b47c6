"""A million clients with personal models: what is stored grows with the clients that took part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from arno.client_selection.uniform import Uniform
from arno.core.federation import Federation, Local
from arno.core.table import ClientTable
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.methods import methods
from arno.models.linear import MLP
from arno.problems.supervised import Supervised

N, COHORT, ROUNDS = 1_000_000, 20, 3
#: Bytes that a method may hold for every client, seen or not: a flag, or one number.
FEW = 9


@pytest.mark.parametrize(
    "name", ["local", "fedper", "lg_fedavg", "fedrep", "fedbn", "ditto", "apfl", "pfedme", "fedala"]
)
def test_memory_grows_only_with_the_clients_seen(name):
    g = torch.Generator().manual_seed(0)
    partition = Partition(torch.arange(N) % 50, torch.arange(N + 1))
    x, y = torch.randn(50, 4, generator=g), torch.arange(50) % 3
    problem = Supervised(x, y, partition, lambda: MLP(4, (8,), 3, "relu"), transform=Transform((0.0,), (1.0,), 1.0))
    parts = [Uniform(COHORT / N), *methods.get(name)()]
    fed = Federation(problem, parts, local=Local(lr=0.01), rounds=ROUNDS)
    seen: set[int] = set()
    for _ in range(ROUNDS):
        seen |= set(fed.round().clients["client"])
    state = [value for part in fed.parts for value in part.state().values()]
    tables = [value for value in state if isinstance(value, ClientTable)]
    assert tables
    for table in tables:
        assert table.seen == len(seen)
        assert len(table.tensors()["rows"]) == len(seen)
        assert len(table._rows) <= 2 * (len(seen) + 1), "rows in memory"
    rest = [value for value in state if isinstance(value, Tensor)]
    assert sum(value.numel() * value.element_size() for value in rest) <= FEW * N
    some = torch.tensor([*sorted(seen)[:2], next(k for k in range(N) if k not in seen)])
    assert fed.personal(some).shape == (3, fed.layout.size)
    assert all(table.seen == len(seen) for table in tables), "reading stores nothing"
