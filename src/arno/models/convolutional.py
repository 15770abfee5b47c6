"""LeNet-5 and the five-layer convolutional network of Lorenzo's experiments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ArnoError
from . import models
from .network import Network, pooled


@models.register("lenet5", paper="LeCun et al., Proc. IEEE 1998")
def lenet5(shape: Sequence[int], outputs: int) -> Network:
    """LeNet-5 with ReLU and max-pooling: convolutions 6 and 16 (5×5), linear 120, 84."""
    return ConvNet(shape, outputs, filters=(6, 16), kernel=5, padding=0, hidden=(120, 84), name="lenet5")


@models.register("simple5layercnn")
def simple5layercnn(shape: Sequence[int], outputs: int) -> Network:
    """Five weight layers: 3×3 convolutions 32, 64, 128, each with 2×2 max-pooling, then linear 256 and the outputs."""
    return ConvNet(shape, outputs, filters=(32, 64, 128), kernel=3, padding=1, hidden=(256,), name="simple5layercnn")


class ConvNet(Network):
    """Convolutions with 2×2 max-pooling, then linear layers."""

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        *,
        filters: Sequence[int],
        kernel: int,
        padding: int,
        hidden: Sequence[int],
        name: str,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ArnoError(f"model={name} on data of shape {tuple(shape)}", "it needs images", "try model=mlp")
        channels, *side = shape
        self.convs = nn.ModuleList()
        for f in filters:
            self.convs.append(nn.Conv2d(channels, f, kernel, padding=padding))
            channels, side = f, [(s + 2 * padding - kernel + 1) // 2 for s in side]
        if min(side) < 1:
            raise ArnoError(
                f"model={name} on {shape[1]}×{shape[2]} images",
                "they are too small for its convolutions",
                "try model=mlp",
            )
        widths = [channels * side[0] * side[1], *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], outputs)

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The last hidden layer after its ReLU."""
        for conv in self.convs:
            x = conv(x)
            if levels is not None:
                levels.append(pooled(x[:, : len(conv.weight)]))  # type: ignore[arg-type]
            x = torch.relu(F.max_pool2d(x, 2))  # the same result as ReLU before pooling, with a quarter of the work
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x)
            if levels is not None:
                levels.append(x)
            x = torch.relu(x)
        return x
