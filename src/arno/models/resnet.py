"""ResNet-18 for small images, with GroupNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.layout import Axis
from ..errors import ArnoError
from . import models
from .network import Network, pooled


@models.register("resnet18", paper="He et al., CVPR 2016; GroupNorm: Wu & He, ECCV 2018")
def resnet18(
    shape: Sequence[int],
    outputs: int,
    *,
    width: int = 64,
    groups: int = 2,
) -> Network:
    """ResNet-18 for 32×32 and 64×64 images (3×3 stem, no first pooling) with GroupNorm.

    width: filters of the stem; the four stages have 1, 2, 4 and 8 times as many.
    groups: groups of each GroupNorm.
    """
    if len(shape) != 3:
        raise ArnoError(f"model=resnet18 on data of shape {tuple(shape)}", "it needs images", "try model=mlp")
    if width < 1 or groups < 1 or width % groups:
        raise ArnoError(
            f"model.width = {width}, model.groups = {groups}", "groups must divide width", "try model.groups=2"
        )
    return ResNet(shape[0], outputs, width, groups)


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut; returns its output before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The residual sum."""
        y = torch.relu(self.norm1(self.conv1(x)))
        out: Tensor = self.norm2(self.conv2(y)) + self.shortcut(x)
        return out


class ResNet(Network):
    """Stem, four stages of two blocks, average pooling, head. Levels: the stem and the four stages."""

    def __init__(self, channels: int, outputs: int, width: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        self.blocks = nn.ModuleList()
        inputs = width
        for stage in range(4):
            filters = width * 2**stage
            self.blocks.append(Block(inputs, filters, 1 if stage == 0 else 2, groups))
            self.blocks.append(Block(filters, filters, 1, groups))
            inputs = filters
        self.head = nn.Linear(inputs, outputs)

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The pooled output of the last stage."""
        x = self.norm(self.stem(x))
        if levels is not None:
            levels.append(pooled(x))
        for i, block in enumerate(self.blocks):
            x = block(torch.relu(x))
            if levels is not None and i % 2 == 1:
                levels.append(pooled(x))
        return pooled(torch.relu(x))

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """One group of units per stage, because its feature maps are added; and one group inside each block."""
        units: dict[str, tuple[Axis, ...]] = {"stem.weight": ("stem", None, None, None)}
        units |= {"norm.weight": ("stem",), "norm.bias": ("stem",)}
        before = "stem"
        for i, block in enumerate(self.blocks):
            at, inner, residual = f"blocks.{i}", f"block{i}", "stem" if i < 2 else f"stage{i // 2}"
            units[f"{at}.conv1.weight"] = (inner, before, None, None)
            units[f"{at}.conv2.weight"] = (residual, inner, None, None)
            for leaf in ("weight", "bias"):
                units[f"{at}.norm1.{leaf}"] = (inner,)
                units[f"{at}.norm2.{leaf}"] = (residual,)
            if not isinstance(block.shortcut, nn.Identity):
                units[f"{at}.shortcut.0.weight"] = (residual, before, None, None)
                units |= {f"{at}.shortcut.1.{leaf}": (residual,) for leaf in ("weight", "bias")}
            before = residual
        units["head.weight"] = (None, before)
        return units
