"""Steps of single clients against torch by itself: gradients written out, lean convolutions.

    python benchmarks/kernels.py [--repeats 25]

Forward and backward pass on one thread, both ways in turn; medians, and how many times as fast Arno's way is. Then
products of matrices by the two libraries in torch: from where on oneDNN takes less time (`kernels/products.py`), and
how fast small products of several models are. Last, how exact torch's GroupNorm is in both layouts of images
(`kernels/choose_kernel.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from common import network

from arno.core.layout import bind, flatten
from arno.kernels.choose_kernel import for_training
from arno.kernels.cpu_rewrites import lean
from arno.kernels.glibc_memory import keep_memory
from arno.models.convolutional import ConvNet, lenet5
from arno.models.linear import MLP
from arno.tasks.classification import Classification


class AsGiven(nn.Module):
    """LeNet-5 with its six filters as they are."""

    def __init__(self, net: ConvNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.net.convs:
            x = torch.relu(F.max_pool2d(conv(x), 2))
        x = x.flatten(1)
        for layer in self.net.hidden:
            x = torch.relu(layer(x))
        return self.net.head(x)


def automatic(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step by autograd, gradients in a flat buffer."""
    w = flatten(net)
    g = torch.zeros_like(w)
    bind(net, w, g)

    def step() -> None:
        g.zero_()
        F.cross_entropy(net(x), y).backward()

    return step


def written(net: MLP | ConvNet, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same written out."""
    w = flatten(net)
    kernel = for_training(net, x.shape[1:], Classification(10), channels_last=isinstance(net, ConvNet))
    kernel.w.copy_(w)
    x = kernel.arranged(x)
    return torch.inference_mode()(lambda: kernel.gradient(x, y) and None)


def images(n: int, channels: int, side: int) -> tuple[Tensor, Tensor]:
    """Random ones, in channels_last."""
    x = torch.randn(n, side, side, channels).permute(0, 3, 1, 2)
    return x, torch.randint(10, (n,))


def compare(name: str, theirs: Callable[[], object], ours: Callable[[], object], repeats: int, times: int) -> None:
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 2):
        for way, many in zip((theirs, ours), spent, strict=True):
            many.append(1e3 * seconds(way, times))
    torchs, arnos = (median(many[2:]) for many in spent)
    print(f"{name:<44} torch {torchs:8.3f} ms   Arno {arnos:8.3f} ms   {torchs / arnos:5.2f} times as fast")


def products(repeats: int) -> None:
    """x Wᵀ + b by MKL (or whatever torch was built with) and by oneDNN, from small to large."""
    try:
        linear = torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        print("products by oneDNN: this build of torch has none")
        return
    for n, k, m in ((32, 64, 128), (32, 256, 128), (64, 256, 256), (128, 512, 512), (512, 512, 512)):
        x, weight, bias = torch.randn(n, k), torch.randn(m, k), torch.randn(m)
        ways = (partial(torch.addmm, bias, x, weight.t()), partial(linear, x, weight, bias, "none", [], ""))
        compare(f"{n}×{k} times {k}×{m}, oneDNN in place of MKL", *ways, repeats, 20)


def of_several(repeats: int) -> None:
    """The products of W13's transformer for five models at once, by both libraries, in GFLOP/s."""
    linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    for k, m in ((49, 32), (32, 96), (64, 32)):
        x, weight = torch.randn(5, 512, k), torch.randn(5, m, k)
        ways: dict[str, Callable[[], object]] = {"MKL": partial(torch.bmm, x, weight.mT)}
        if linear is not None:
            ways["oneDNN"] = partial(each, linear, x, weight)
        spent = {name: median(seconds(way, 20) for _ in range(repeats)) for name, way in ways.items()}
        speeds = (f"{name} {2 * 5 * 512 * k * m / one / 1e9:4.0f}" for name, one in spent.items())
        print(f"five products of 512×{k} and {k}×{m}, GFLOP/s: {', '.join(speeds)}")


def each(linear: Callable[..., Tensor], x: Tensor, weight: Tensor) -> list[Tensor]:
    """The product of each model, by oneDNN."""
    return [linear(one, matrix, None, "none", [], "") for one, matrix in zip(x, weight, strict=True)]


def seconds(way: Callable[[], object], times: int) -> float:
    """The mean seconds of some calls."""
    began = perf_counter()
    for _ in range(times):
        way()
    return (perf_counter() - began) / times


def group_norm() -> None:
    """The largest error of torch's GroupNorm against float64, for numbers with standard deviation 1 around a mean."""
    weight, bias = torch.ones(16), torch.zeros(16)
    for mean in (0, 10, 100):
        x = torch.randn(8, 16, 16, 16) + mean
        exact = F.group_norm(x.double(), 2, weight.double(), bias.double())
        layouts = (x, x.contiguous(memory_format=torch.channels_last))
        usual, last = (float((F.group_norm(y, 2, weight, bias) - exact).abs().max()) for y in layouts)
        print(f"GroupNorm around {mean:<3}: error {usual:.0e} in the default layout, {last:.0e} in channels_last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_memory()
    for name, hidden in (("softmax regression, 20 samples of 784", ()), ("perceptron 784-128-10, 20 samples", (128,))):
        net, (x, y) = MLP(784, hidden, 10, "relu"), images(20, 1, 28)
        compare(name, automatic(net, x, y), written(deepcopy(net), x, y), repeats, 100)
    net, (x, y) = lenet5((1, 28, 28), 10), images(32, 1, 28)
    compare("LeNet-5, 32 images", automatic(AsGiven(deepcopy(net)), x, y), written(net, x, y), repeats, 10)
    net, (x, y) = network("W3"), images(64, 3, 32)
    compare("W3's network, 64 images", automatic(deepcopy(net), x, y), automatic(lean(net), x, y), repeats, 1)
    products(repeats)
    of_several(repeats)
    group_norm()


if __name__ == "__main__":
    main()
