"""Products of two matrices, computed by the faster of two libraries in torch.

torch multiplies float32 matrices with MKL. On processors of AMD, MKL uses vectors of 256 bits. oneDNN, which computes
convolutions, uses the 512 bits of newer processors, and large products take half the time. However, a call of oneDNN
takes longer, and for each new shape oneDNN first generates a program. So MKL computes the small products
(`benchmarks/kernels.py`).
"""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: A product with at least this many multiplications takes less time with oneDNN.
LARGE = 2**22
#: For a linear layer of many models with fewer outputs, the transposed product is computed. With more outputs, the
#: operations that read the transposed result lose more time than the product gains.
NARROW = 16


@cache
def faster() -> Any:
    """oneDNN's linear layer, if it exists and is faster than MKL; otherwise None."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in processor():
        return None
    try:
        linear = torch.ops.mkldnn._linear_pointwise.default
        x, weight, bias = torch.arange(15.0).view(3, 5), torch.arange(20.0).view(4, 5), torch.arange(4.0)
        found = linear(x, weight, bias, "none", [], "")
        return linear if torch.equal(found, torch.addmm(bias, x, weight.t())) else None
    except (AttributeError, RuntimeError, TypeError):  # a build without oneDNN, or with another one
        return None


def processor() -> str:
    """What Linux says about the first processor; empty on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""


def pays(like: Tensor, *sides: int) -> bool:
    """Whether oneDNN takes less time for a product of matrices with these sides."""
    return prod(sides) >= LARGE and like.dtype == torch.float32 and like.is_cpu and faster() is not None


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b."""
    if pays(x, *x.shape, len(weight)):
        found: Tensor = faster()(x, weight, bias, "none", [], "")
        return found
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product a b."""
    if pays(a, *a.shape, b.shape[1]):
        found: Tensor = faster()(a, b.t(), None, "none", [], "")
        return found
    return torch.mm(a, b)


def affine_of_rows(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """h Wᵀ + b for every model (row).

    With few outputs, W hᵀ is computed, which is faster, and the result is transposed.
    """
    shape, narrow = h.shape[:2], weight.shape[1] < min(h.shape[1], NARROW)
    if weight.stride(0) == 0:  # all models have the same weights
        h, weight, bias = h.reshape(1, -1, h.shape[2]), weight[:1], None if bias is None else bias[:1]
    if pays(h, *h.shape[1:], weight.shape[1]):
        each = [affine(x, w, None if bias is None else bias[k]) for k, (x, w) in enumerate(zip(h, weight, strict=True))]
        z = torch.stack(each) if each[1:] else each[0]
    elif bias is None:
        z = torch.bmm(weight, h.mT).mT if narrow else torch.bmm(h, weight.mT)
    else:
        z = torch.bmm(weight, h.mT).mT + bias[:, None] if narrow else torch.baddbmm(bias[:, None], h, weight.mT)
    return z.view(*shape, -1)


def products(a: Tensor, b: Tensor) -> Tensor:
    """The product a b of every row."""
    if pays(a, *a.shape[1:], b.shape[2]):
        return torch.stack([product(*row) for row in zip(a, b, strict=True)])
    return torch.bmm(a, b)


def turned_product(a: Tensor, b: Tensor, to: Tensor) -> Tensor:
    """Write aᵀ b into `to`."""
    n, k = to.shape
    if not pays(a, n, k, len(a)):
        return torch.mm(a.t(), b, out=to)
    if n <= k:  # oneDNN copies its first matrix, so the smaller matrix is the first one
        return to.copy_(faster()(a.t(), b.t(), None, "none", [], ""))
    return to.copy_(faster()(b.t(), a.t(), None, "none", [], "").t())


def turned_products(a: Tensor, b: Tensor, to: Tensor) -> None:
    """Write aᵀ b of every row into the same row of `to`."""
    if pays(a, *a.shape[1:], b.shape[2]):
        for row in zip(a, b, to, strict=True):
            turned_product(*row)
    else:
        torch.bmm(a.mT, b, out=to)


def descend(before: Tensor, a: Tensor, b: Tensor, after: Tensor) -> None:
    """Write `before` − aᵀ b of every row into the same row of `after`."""
    if pays(a, *a.shape[1:], b.shape[2]):
        step = torch.empty_like(after[0])
        for x, left, right, y in zip(before, a, b, after, strict=True):
            torch.sub(x, turned_product(left, right, step), out=y)
    else:
        torch.baddbmm(before, a.mT, b, alpha=-1, out=after)
