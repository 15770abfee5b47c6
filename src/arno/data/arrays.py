"""From plain arrays to a data set: the test share, the class names and the moments that nobody told us."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..core.seeds import numpy_stream
from ..errors import ArnoError
from .dataset import Dataset, stratified
from .images import Array


def from_arrays(name: str, arrays: dict[str, Array], *, test: float = 0.2, **known: Any) -> Dataset:
    """The data set of arrays x, y, classes and x_test, y_test; without the last two, a share `test` is split off.

    What is not `known` (classes, mean, std, scale, val) is found from the arrays.
    """
    x, y = arrays["x"], arrays["y"]
    if "x_test" in arrays:
        x_test, y_test = arrays["x_test"], arrays["y_test"]
    else:
        if not 0 < test < 1 or len(y) < 2:
            rule = f"there is no test data, and this is no share of {len(y)} samples that could be split off"
            raise ArnoError(f"data.test = {test}", rule, "try data.test=0.2")
        if len(x) != len(y):
            raise ArnoError(f"{name}: {len(x)} samples, {len(y)} labels", "every sample needs one label")
        held_out = np.zeros(len(y), dtype=bool)
        count = min(max(1, round(test * len(y))), len(y) - 1)
        # What is test data must not depend on the run's seed, or runs could not be compared.
        held_out[stratified(y, count, numpy_stream(0, "test"))] = True
        x, y, x_test, y_test = x[~held_out], y[~held_out], x[held_out], y[held_out]
    known.setdefault("scale", 255.0 if x.dtype == np.uint8 else 1.0)
    known.setdefault("classes", tuple(map(str, arrays.get("classes", ()))))
    samples, labels, test_samples, test_labels = (
        torch.from_numpy(np.ascontiguousarray(a)) for a in (x, y, x_test, y_test)
    )
    data = Dataset(name, samples, labels.long(), test_samples, test_labels.long(), **known)
    if "mean" in known:
        return data
    mean, std = moments(data.check().x.numpy(), data.scale)
    return replace(data, mean=mean, std=std)


def moments(x: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of `x / scale` per channel or feature; 1 instead of a deviation of 0."""
    if x.dtype == np.uint8:
        values, samples = np.arange(256) / scale, torch.from_numpy(x)
        channels = [samples[:, c].flatten() for c in range(x.shape[1])]  # NumPy would make eight bytes of every one
        shares = [torch.bincount(channel, minlength=256).numpy() / len(channel) for channel in channels]
        mean = np.array([share @ values for share in shares])
        std = np.sqrt([share @ (values - m) ** 2 for share, m in zip(shares, mean, strict=True)])
    else:
        axes = (0, *range(2, x.ndim))
        mean, std = x.mean(axes, dtype=np.float64) / scale, x.std(axes, dtype=np.float64) / scale
    std[std < 1e-12] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())
