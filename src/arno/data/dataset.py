"""A data set in memory, its validation split, and the transformation of a batch on its way into a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, wraps
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.seeds import numpy_stream
from ..errors import ArnoError
from ..registry import Registry

datasets = Registry("data", "arno.data.sources", "source")

Labels = Tensor | np.ndarray[Any, np.dtype[Any]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples as tensors.

    Args:
        x, y: training samples, `[n, C, H, W]` uint8 for images or `[n, features]` float32, and their targets: labels
            `[n]` int64, or numbers `[n]` or `[n, outputs]` float32.
        x_test, y_test: the same for testing.
        classes: one name per class; label i is `classes[i]`. Empty where the targets are numbers.
        mean, std: of `x / scale` over the training data, per channel (or feature), or one value for all.
        scale: the largest raw value, 255 for images.
        val: the share of the training data to hold out for validation unless the user says otherwise.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    val: float = 0.1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def n_classes(self) -> int:
        """How many classes there are (with or without samples)."""
        return len(self.classes)

    def check(self) -> Dataset:
        """Refuse empty data, samples without labels, labels out of range, NaN and infinities; else return itself."""
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            what = f"the {part} data of {self.name}"
            if len(x) != len(y):
                raise ArnoError(f"{what}: {len(x)} samples, {len(y)} labels", "every sample needs one label")
            if len(x) == 0:
                raise ArnoError(what, "there are no samples", "is this the right file or folder?")
            if x.shape[1:] != self.x.shape[1:]:
                raise ArnoError(
                    f"{what}: samples of shape {tuple(x.shape[1:])}", f"training samples have shape {self.shape}"
                )
            _check_targets(what, y, self.n_classes)
            low, high = (int(y.min()), int(y.max())) if self.n_classes else (0, -1)
            if low < 0 or high >= self.n_classes:
                raise ArnoError(
                    f"{what}: label {low if low < 0 else high}",
                    f"labels must be 0 to {self.n_classes - 1}",
                    "are these samples labelled?" if low < 0 else "number the classes from 0",
                )
            if x.is_floating_point() and len(bad := (~torch.isfinite(x)).flatten(1).any(1).nonzero()):
                raise ArnoError(f"{what}: sample {int(bad[0])}", "it holds NaN or infinity", "clean the data first")
        return self

    def strata(self) -> Tensor:
        """The kind of every training sample, by which splits are stratified: its label, or the decile of its target."""
        if self.n_classes:
            return self.y
        first = self.y.view(len(self.y), -1)[:, 0]
        return first.argsort(stable=True).argsort(stable=True) * min(10, len(first)) // len(first)

    def fingerprint(self) -> str:
        """32 hexadecimal digits that change whenever a sample or a label does."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        for tensor in (self.x, self.y, self.x_test, self.y_test):
            array = np.ascontiguousarray(tensor.numpy())
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def take(self, n: int, seed: int = 0) -> Dataset:
        """The same data set with at most `n` training samples, classes in proportion; the test data stays."""
        if n < 1:
            raise ArnoError(f"data.limit = {n}", "at least one training sample must remain", "try data.limit=1000")
        if n >= len(self.y):
            return self
        chosen = torch.from_numpy(stratified(self.strata(), n, numpy_stream(seed, "limit")))
        return replace(self, x=self.x[chosen], y=self.y[chosen])

    def transform(self) -> Transform:
        """How batches of this data set are normalised and augmented."""
        return Transform(self.mean, self.std, self.scale)


def source(name: str, **info: Any) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Register a data source and offer the setting `limit` on it, which every source has and none implements."""

    def add(factory: Callable[..., Dataset]) -> Callable[..., Dataset]:
        @wraps(factory)
        def build(*, limit: int | None = None, **settings: Any) -> Dataset:
            data = factory(**settings).check()
            return data if limit is None else data.take(limit)

        own = inspect.signature(factory, eval_str=True)
        extra = inspect.Parameter("limit", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=int | None)
        build.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])  # type: ignore[attr-defined]
        return datasets.register(name, **info)(build)

    return add


def load(config: Mapping[str, Any], seed: int = 0) -> Dataset:
    """Build the data set that `config` names (`{"kind": "digits", "limit": 500, …}`), check it, limit it.

    >>> data = load({"kind": "digits", "limit": 100}, seed=1)
    >>> len(data.y), data.shape, data.n_classes
    (100, (1, 8, 8), 10)
    """
    settings = dict(config)
    limit = settings.pop("limit", None)
    data: Dataset = datasets.build(settings).check()
    return data if limit is None else data.take(limit, seed)


def _check_targets(what: str, y: Tensor, classes: int) -> None:
    """Refuse numbers where labels are expected, and the reverse; NaN and infinities."""
    if y.is_floating_point() and classes:
        raise ArnoError(f"{what}: targets of type {y.dtype}", "labels are whole numbers", "leave the class names out")
    if y.is_floating_point() and not torch.isfinite(y).all():
        raise ArnoError(f"{what}: its targets", "they hold NaN or infinity", "clean the data first")
    if not y.is_floating_point() and not classes:
        raise ArnoError(f"{what}: targets of type {y.dtype}", "labels need class names", "name the classes")


def as_labels(y: Labels) -> Ints:
    """Labels as a NumPy array of int64, whatever they came as."""
    return np.asarray(y.cpu() if isinstance(y, Tensor) else y, dtype=np.int64)


def stratified(y: Labels, n: int, random: np.random.Generator) -> Ints:
    """Indices (ascending) of `n` random samples, each class in proportion, fractions by largest remainder."""
    classes, labels = np.unique(as_labels(y), return_inverse=True)
    counts = np.bincount(labels, minlength=len(classes))
    exact = counts * (n / len(labels))
    quota = np.floor(exact + 1e-9).astype(np.int64)
    left = n - int(quota.sum())
    quota[np.argsort(quota - exact, kind="stable")[:left]] += 1
    return np.flatnonzero(rank_in_class(labels, random) < quota[labels])


def rank_in_class(labels: Ints, random: np.random.Generator) -> Ints:
    """Number the samples of every class 0, 1, 2, … in random order; `labels` are 0, 1, … ."""
    shuffled = random.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    starts = np.cumsum(counts := np.bincount(labels)) - counts
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - starts[labels[order]]
    return rank


def split_validation(y: Labels, val: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split samples into training and validation indices, every class in proportion.

    Args:
        y: labels.
        val: a fraction in [0, 1), or a number of samples from 1 on.
        seed: the run's seed.

    >>> train, held_out = split_validation(torch.arange(10).repeat(10), 0.2, seed=0)
    >>> len(train), len(held_out)
    (80, 20)
    """
    n = len(y)
    if not val >= 0 or (val >= 1 and val != int(val)):
        rule = "it must be a fraction in [0, 1) or a whole number of samples"
        raise ArnoError(f"val = {val}", rule, "try val=0.1")
    count = int(val) if val >= 1 else max(1, round(val * n)) if val > 0 else 0
    if count >= n:
        raise ArnoError(f"val = {val}", f"of {n} samples none would be left to train on", "try val=0.1")
    held_out = np.zeros(n, dtype=bool)
    if count:
        held_out[stratified(y, count, numpy_stream(seed, "validation"))] = True
    return torch.from_numpy(np.flatnonzero(~held_out)), torch.from_numpy(np.flatnonzero(held_out))


@dataclass(frozen=True)
class Transform:
    """From raw samples to what a network is fed, a batch at a time, on whatever device the batch is.

    `normalise` computes (x / scale − mean) / std; `augment` crops and flips the raw images, before normalisation,
    so that the padding is black.

    Args:
        mean, std, scale: as in `Dataset`.
        pad: pixels of black added on every side before a random crop of the original size.
        flip: whether to mirror half of the images.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    pad: int = 4
    flip: bool = True

    def normalise(self, x: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """Raw samples `[…, C, H, W]` or `[…, features]` as standardised numbers: x·a + b per channel, put into `out`.

        >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        >>> Transform((0.5,), (0.25,)).normalise(black_and_white, torch.float64).flatten().tolist()
        [-2.0, 2.0]
        """
        a, b = _affine(self.mean, self.std, self.scale, 1 if x.dim() < 4 else 3, dtype, x.device)
        numbers = x.to(dtype) if out is None else out.copy_(x)
        if a.numel() == 1:  # in one go
            return torch.add(b, numbers, alpha=a.item(), out=None if numbers is x else numbers)
        return (numbers * a if numbers is x else numbers.mul_(a)).add_(b)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw what happens to `count` images: rows of (down, right, mirrored)."""
        device = generator.device
        move = torch.randint(0, 2 * self.pad + 1, (count, 2), generator=generator, device=device)
        mirror = torch.randint(0, 2 if self.flip else 1, (count, 1), generator=generator, device=device)
        return torch.cat([move, mirror], dim=1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Crop and mirror raw images `[b, C, H, W]` as `drawn` says, with one gather and no loop."""
        if x.dim() != 4:
            shape = list(x.shape)
            raise ArnoError(f"augmentation of samples of shape {shape[1:]}", "only images can be cropped and flipped")
        (b, c, h, w), wide = x.shape, x.shape[3] + 2 * self.pad
        down, right, mirror = drawn.to(x.device).T.unsqueeze(-1)
        across = torch.arange(w, device=x.device)
        rows = down + torch.arange(h, device=x.device)
        columns = right + torch.where(mirror.bool(), across.flip(0), across)
        where = (rows.unsqueeze(2) * wide + columns.unsqueeze(1)).view(b, 1, h * w).expand(b, c, h * w)
        return pad(x, [self.pad] * 4).flatten(2).gather(2, where).view(b, c, h, w)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Random crop (after black padding) and mirror of raw images `[b, C, H, W]`; the type stays."""
        return self.apply(x, self.draw(len(x), generator))


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float, dims: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The a and b of x·a + b, shaped to broadcast over a batch; made once per device."""
    shape = (-1, *[1] * (dims - 1))
    with torch.inference_mode(False):
        middle, spread = (torch.tensor(v, dtype=torch.float64).view(shape) for v in (mean, std))
        return (1 / (scale * spread)).to(device, dtype), (-middle / spread).to(device, dtype)
