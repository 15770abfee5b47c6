"""A network in one file: any nn.Module, here a small one with dropout.

    arno run model=custom model.target=examples/my_net.py:Net model.drop=0.3

Arno calls it with the shape of a sample and the number of outputs (one per class, or one per target of a regression);
keyword parameters are settings. It returns [batch, outputs]. Dropout draws its random numbers from a stream per round
and client, so runs are reproducible.
"""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, shape: Sequence[int], outputs: int, *, width: int = 64, drop: float = 0.2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU(), nn.Dropout(drop))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))
