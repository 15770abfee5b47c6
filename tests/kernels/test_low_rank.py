"""Layers that are kept as their first weights and a few samples have the weights that steps of SGD give them."""

import pytest
import torch
from torch import nn

from arno.core.layout import flatten
from arno.kernels.low_rank import few
from arno.kernels.stacked import Batch, stacked_program
from arno.tasks.classification import Classification

SAME = {torch.float32: 1e-5, torch.float64: 1e-10}


class Gated(nn.Module):
    """Two linear layers that read rows of the samples, one of them without bias."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(80, 60), nn.Linear(80, 60, bias=False), nn.Linear(60, 3)

    def forward(self, x):
        return self.last((torch.relu(self.a(x)) * torch.sigmoid(self.b(x))).mean(1))


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(40, 30), nn.ReLU(), nn.Dropout(0.3), nn.Linear(30, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("make", "shape", "layers"), [(perceptron, (5, 8), 1), (Gated, (2, 80), 2)])
def test_steps_of_many_models(make, shape, layers, dtype):
    torch.manual_seed(0)
    module, live = make().to(dtype), (4, 4, 2, 1)  # rows that take each step
    rows, n, task = 4, 2, Classification(3)
    start = flatten(module).expand(rows, -1)
    stack = stacked_program(module, task, torch.randn(n, *shape, dtype=dtype))
    pieces = list(start.split(stack.sizes, 1))
    low = stack.low_rank(rows, len(live) * n, pieces)
    assert len(low) == layers
    first, plain, other = (stack.views([piece.clone() for piece in pieces]) for _ in range(3))
    for step, k in enumerate(live):
        x, y = torch.randn(k, n, *shape, dtype=dtype), torch.randint(3, (k, n))
        losses = []
        for models, kept in ((plain, {}), (other, low)):
            streams = [torch.Generator().manual_seed(10 * step + i) for i in range(k)]
            batch = Batch(x, y, torch.full((k, n), 1 / n, dtype=dtype), (n,) * k, streams)
            now = {name: view[:k] for name, view in models.items()}
            losses.append(stack.descend(now, now, batch, torch.full((k, 1), 0.3, dtype=dtype), kept))
        assert float((losses[0] - losses[1]).abs().max()) <= SAME[dtype]
    for name, wanted in plain.items():
        update = other[name] - first[name]
        if name in low:
            assert torch.equal(other[name], first[name])  # it was neither read nor written
            low[name].write(update)
        assert float((update - (wanted - first[name])).abs().max()) <= SAME[dtype]


def test_only_a_few_samples():
    stack = stacked_program(perceptron(), Classification(3), torch.randn(2, 5, 8))
    pieces = list(flatten(perceptron()).expand(2, -1).split(stack.sizes, 1))
    most = max(n for n in range(1, 99) if few(n, 30, 40))
    assert [len(stack.low_rank(2, n, pieces)) for n in (1, most, most + 1)] == [1, 1, 0]
