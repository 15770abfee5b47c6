"""Networks of W7 to W13 as users write them, and twins of Arno's networks on W1, W2 and W4.

Imports nothing but torch, so that it runs in a peer's environment.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Softmax(nn.Module):
    """W7: softmax regression as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.view(x.size(0), -1))


class Perceptron(nn.Module):
    """W8: a perceptron with dropout; without it the twin of W4's network."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(784, 128), nn.Linear(128, 10), dropout

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x.flatten(1)))
        return self.last(F.dropout(h, self.dropout, self.training) if self.dropout else h)


def lenet() -> nn.Module:
    """W9: LeNet-5 as `nn.Sequential`."""
    layers = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*layers)


def group_norm_cnn() -> nn.Module:
    """W10: convolutions with padding and GroupNorm."""
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))


class Block(nn.Module):
    """Two convolutions with GroupNorm, and the input added."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.GroupNorm(8, outs)
        self.conv2, self.norm2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False), nn.GroupNorm(8, outs)
        self.short = nn.Conv2d(ins, outs, 1, stride, bias=False) if stride > 1 or ins != outs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.short(x))


def resnet18() -> nn.Module:
    """W11: ResNet-18 with GroupNorm for images of 32×32 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.ReLU()]
    for ins, outs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(ins, outs, stride), Block(outs, outs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Characters(nn.Module):
    """W12: an LSTM over 80 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(64, 8), nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


class Patches(nn.Module):
    """W13: one block of a transformer over the 16 patches of an image."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(49, width), nn.Parameter(torch.zeros(16, width))
        self.norm1, self.all, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        patches = x.view(n, 4, 7, 4, 7).transpose(2, 3).reshape(n, 16, 49)
        h = self.embed(patches) + self.places
        q, k, v = self.all(self.norm1(h)).view(n, 16, 3, 2, -1).permute(2, 0, 3, 1, 4)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 16, -1))
        h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.head(h.mean(1))


#: By workload; W1, W2 and W4 are the twins of Arno's networks.
OWN = {
    "W1": lenet, "W2": Softmax, "W4": lambda: Perceptron(0), "W7": Softmax, "W8": Perceptron, "W9": lenet,
    "W10": group_norm_cnn, "W11": resnet18, "W12": Characters, "W13": Patches,
}  # fmt: skip


def sample(name: str) -> Tensor:
    """One input of a workload's network."""
    if name == "W12":
        return torch.zeros(1, 80, dtype=torch.int64)
    return torch.zeros(1, 3, 32, 32) if name == "W11" else torch.zeros(1, 1, 28, 28)
