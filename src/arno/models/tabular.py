"""A perceptron for tables: a vector is learned for each category."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from . import models
from .network import Network, Shape, need_sizes


@models.register("tabular", reads="categories")
def tabular(
    shape: Shape, outputs: int, *, hidden: tuple[int, ...] = (128, 64), embedding: int | None = None
) -> Network:
    """A perceptron on a table: numbers are standardised, and a vector is learned for each category.

    hidden: neurons of each hidden layer.
    embedding: length of the vector of a category; by default half the number of categories of its column, at most 16.
    """
    need_sizes(embedding=1 if embedding is None else embedding, hidden=min(hidden, default=1))
    return Tabular(shape, outputs, hidden, embedding)


class Tabular(Network):
    """Joins the numbers and the embeddings of the categories to one vector; then linear layers with ReLU."""

    def __init__(self, shape: Shape, outputs: int, hidden: Sequence[int], embedding: int | None) -> None:
        super().__init__()
        kinds = shape.categories or (0,) * prod(shape)
        self.numbers = [i for i, k in enumerate(kinds) if not k]
        self.codes = [i for i, k in enumerate(kinds) if k]
        sizes = [(k + 1, min(16, (k + 1) // 2) if embedding is None else embedding) for k in kinds if k]
        self.embeddings = nn.ModuleList(nn.Embedding(*size) for size in sizes)
        widths = [len(self.numbers) + sum(width for _, width in sizes), *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], outputs)

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The last hidden layer after its ReLU."""
        x = x.flatten(1)
        vectors = [layer(x[:, i].long()) for layer, i in zip(self.embeddings, self.codes, strict=True)]
        x = torch.cat([x[:, self.numbers], *vectors], 1)
        for layer in self.hidden:
            x = layer(x)
            if levels is not None:
                levels.append(x)
            x = torch.relu(x)
        return x
