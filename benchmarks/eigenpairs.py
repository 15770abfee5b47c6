"""A client's eigenpairs: all columns at once from cached features, against one column at a time.

    python benchmarks/eigenpairs.py

Setting: k = 10 pairs, s = 10 further columns, 2 power iterations, 500 samples, 512 features, 10 classes, one thread.
Three slower versions compute the same subspace iteration:

- `autograd`: the usual Hessian-vector product, a double backward pass through the network for every column;
- `forward`:  the closed form, but the forward pass is computed again for every column (the bar: 10 times);
- `columns`:  the closed form on cached features, one column at a time: what doing all columns at once is worth alone.

The network is a perceptron with 784 inputs and one hidden layer of 512, the cheapest forward pass that makes 512
features: every deeper network makes the ratios larger. The two versions take turns, and the ratio is of their medians.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F

from arno.methods.qrmix import eigenpairs, hessian_product
from arno.models.linear import MLP

SAMPLES, INPUTS, FEATURES, CLASSES = 500, 784, 512, 10
K, S, ITERATIONS, BAR, REPEATS = 10, 10, 2, 10.0, 5
Q = CLASSES * (FEATURES + 1)

Product = Callable[[Tensor], Tensor]


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, x = MLP(INPUTS, (FEATURES,), CLASSES, "relu"), torch.randn(SAMPLES, INPUTS)
    y = torch.randint(CLASSES, (SAMPLES,))
    for p in network.parameters():
        p.requires_grad_(p.shape[0] == CLASSES)  # the last layer

    def ours() -> Product:
        with torch.no_grad():
            f = network.embed(x)
            p = network.head(f).softmax(1)
        return lambda v: hessian_product(f, p, v)

    def forward() -> Product:
        def column(v: Tensor) -> Tensor:
            with torch.no_grad():
                f = network.embed(x)
                p = network.head(f).softmax(1)
            return hessian_product(f, p, v[:, None])[:, 0]

        return by_column(column)

    def columns() -> Product:
        product = ours()
        return by_column(lambda v: product(v[:, None])[:, 0])

    def autograd() -> Product:
        head = (network.head.bias, network.head.weight)

        def column(v: Tensor) -> Tensor:
            grads = torch.autograd.grad(F.cross_entropy(network(x), y), head, create_graph=True)
            product = torch.autograd.grad(torch.cat([g.flatten() for g in grads]) @ v, head)
            return torch.cat([g.flatten() for g in product])

        return by_column(column)

    exact = run(ours)
    print(f"k={K} s={S} iterations={ITERATIONS} samples={SAMPLES} features={FEATURES} classes={CLASSES}, one thread")
    ratios = {}
    for name, make in (("autograd", autograd), ("forward", forward), ("columns", columns)):
        error = float(((run(make) - exact) / exact).abs().max())
        fast, slow = zip(*[(seconds(ours), seconds(make)) for _ in range(REPEATS)], strict=True)
        ratios[name] = median(slow) / median(fast)
        print(
            f"{name:<9} {1e3 * median(slow):8.1f} ms   ours {1e3 * median(fast):6.1f} ms   "
            f"ratio {ratios[name]:6.1f}   eigenvalues differ by {error:.0e} relative"
        )
    met = ratios["forward"] >= BAR
    print(f"ratio to the version that recomputes the forward pass: {ratios['forward']:.1f} (bar {BAR:.0f}): ", end="")
    print("met" if met else "MISSED")
    return 0 if met else 1


def by_column(column: Product) -> Product:
    return lambda v: torch.stack([column(v[:, j]) for j in range(v.shape[1])], 1)


def run(make: Callable[[], Product]) -> Tensor:
    return eigenpairs(make(), Q, K, S, ITERATIONS, torch.Generator().manual_seed(1), like=torch.zeros(1))[0]


def seconds(make: Callable[[], Product]) -> float:
    began = perf_counter()
    run(make)
    return perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
