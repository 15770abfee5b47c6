"""Makes a data set from plain arrays: splits off test data, and computes class names and moments that are not given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.seeds import numpy_stream
from ..errors import ArnoError
from .columns import CONSTANT
from .dataset import Dataset, held_inside, strata_of, stratified
from .images import Array


def from_arrays(name: str, arrays: dict[str, Array], *, test: float = 0.2, **known: Any) -> Dataset:
    """The data set of arrays x, y, classes, client, x_test and y_test. Without x_test, a share `test` is split off.

    y: integers are labels of classes, floating-point values are numbers (then there are no classes).
    client: the number of the client of each sample; test samples are then split off inside each client.
    known: fields of `Dataset` (classes, mean, std, scale, val). Missing ones are computed from the arrays.

    >>> data = from_arrays("line", {"x": np.arange(40.0).reshape(-1, 1), "y": np.arange(40.0)}, test=0.25)
    >>> len(data.y), (data.y_test // 4).tolist(), data.classes
    (30, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], ())
    """
    x, y, client = arrays["x"], arrays["y"], arrays.get("client")
    if "x_test" in arrays:
        x_test, y_test = arrays["x_test"], arrays["y_test"]
        known |= {} if client is None else {"client": torch.from_numpy(client)}
    else:
        held_out = _test_rows(name, x, y, test, client)
        known |= {"rows": torch.from_numpy(np.flatnonzero(~held_out)), "given": len(y)}
        if client is not None:
            whose = torch.from_numpy(client)
            known |= {"client": whose[~torch.from_numpy(held_out)], "client_test": whose[torch.from_numpy(held_out)]}
        x, y, x_test, y_test = x[~held_out], y[~held_out], x[held_out], y[held_out]
    known.setdefault("scale", 255.0 if x.dtype == np.uint8 else 1.0)
    known.setdefault("classes", tuple(map(str, arrays.get("classes", ()))))
    samples, test_samples = (torch.from_numpy(np.ascontiguousarray(a)) for a in (x, x_test))
    data = Dataset(name, samples, _targets(y), test_samples, _targets(y_test), **known)
    if "mean" in known:
        return data
    mean, std = moments(data.check().x.numpy(), data.scale)
    return replace(data, mean=mean, std=std)


def _test_rows(name: str, x: Array, y: Array, test: float, client: Array | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which samples are test data: a stratified random share, the same for every seed, so that runs can be compared."""
    if not 0 < test < 1 or len(y) < 2:
        rule = f"there are no test data, and this is no share of {len(y)} samples that could be split off"
        raise ArnoError(f"data.test = {test}", rule, "try data.test=0.2")
    if len(x) != len(y):
        raise ArnoError(
            f"{name}: {len(x)} samples, {len(y)} targets", "every sample needs one target", "correct x or y"
        )
    held_out = np.zeros(len(y), dtype=bool)
    count = min(max(1, round(test * len(y))), len(y) - 1)
    strata, random = strata_of(_targets(y)), numpy_stream(0, "test")
    if client is not None:
        return held_inside(client, strata, count, random)
    held_out[stratified(strata, count, random)] = True
    return held_out


def _targets(y: Array) -> Tensor:
    """Numbers as float32, labels as int64."""
    targets = torch.from_numpy(np.ascontiguousarray(y))
    return targets.float() if targets.is_floating_point() else targets.long()


def moments(x: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of `x / scale` per channel or feature; a deviation of 0 is replaced by 1.

    >>> [f"{deviation:.3g}" for deviation in moments(np.array([[1e-15, 7.0], [3e-15, 7.0]]), 1.0)[1]]
    ['1e-15', '1']
    """
    if x.dtype == np.uint8:
        values, samples = np.arange(256) / scale, torch.from_numpy(x)
        channels = [samples[:, c].flatten() for c in range(x.shape[1])]  # NumPy would convert every byte to int64
        shares = [torch.bincount(channel, minlength=256).numpy() / len(channel) for channel in channels]
        mean = np.array([share @ values for share in shares])
        std = np.sqrt([share @ (values - m) ** 2 for share, m in zip(shares, mean, strict=True)])
    else:
        axes = (0, *range(2, x.ndim))
        mean, std = x.mean(axes, dtype=np.float64) / scale, x.std(axes, dtype=np.float64) / scale
    std[std <= CONSTANT * np.abs(mean)] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())
