"""A small causal transformer for text: every token attends to those before it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.layout import Axis
from ..errors import ArnoError
from . import models
from .network import Network, Shape, ends, need_sizes, need_tokens


@models.register("transformer", reads="tokens", paper="Vaswani et al., NeurIPS 2017, arXiv:1706.03762")
def transformer(shape: Shape, outputs: int, *, width: int = 64, layers: int = 2, heads: int = 4) -> Network:
    """A causal transformer (pre-norm) on tokens. It returns outputs at every position, or at the last token of a text.

    width: length of the vector of each position.
    layers: number of blocks; a block is an attention layer and a perceptron with 4 · width units.
    heads: number of attention heads; it must divide the width.
    """
    need_tokens(shape, "transformer")
    need_sizes(width=width, layers=layers, heads=heads)
    if width % heads:
        raise ArnoError(f"model.heads = {heads}", f"it must divide model.width = {width}", "try model.heads=1")
    return Transformer(shape, outputs, width, layers, heads)


class Transformer(Network):
    """Token and position embeddings, blocks, LayerNorm, linear head."""

    def __init__(self, shape: Shape, outputs: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.positions, self.padding = shape.positions, shape.padding
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.places = nn.Parameter(torch.randn(shape[0], width) * width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The last block after LayerNorm, [n, length, width], or [n, width] at the last token."""
        z = self.tokens(x) + self.places
        for block in self.blocks:
            z = block(z)
            if levels is not None:
                levels.append(ends(z, x, self.padding))
        z = self.norm(z)
        return z if self.positions else ends(z, x, self.padding)

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """Empty, because the units of this network are never cut."""
        return {}


class Block(nn.Module):
    """z ← z + attention(norm(z)); z ← z + perceptron(norm(z))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, z: Tensor) -> Tensor:
        """The output of the block."""
        parts = self.queries(self.before(z)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)  # [n, heads, 3, T, …]
        q, k, v = parts.unbind(2)
        later = torch.ones(z.shape[1], z.shape[1], dtype=torch.bool, device=z.device).triu(1)
        weight = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf).softmax(-1)
        z = z + self.joined((weight @ v).transpose(1, 2).flatten(2))
        return cast(Tensor, z + self.narrow(F.gelu(self.wide(self.between(z)))))
