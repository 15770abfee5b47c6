"""A network of one's own: any nn.Module, here a small one with dropout.

    arno run model=custom model.target=examples/my_net.py:Net model.drop=0.3

Arno calls it with the shape of a sample and the number of classes; keyword parameters are settings. Dropout draws
from a stream of its own per round and client, so runs stay reproducible.
"""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, shape: Sequence[int], classes: int, *, width: int = 64, drop: float = 0.2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU(), nn.Dropout(drop))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))
