"""A data set in memory, its validation split, and the transformation of stored samples into network inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from hashlib import blake2b
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.seeds import numpy_stream
from ..errors import ArnoError
from ..registry import F, Registry
from ..tasks.task import several


class Sources(Registry):
    """The data sources. Each registered source gets the setting `limit`, so that no source has to implement it."""

    def register(self, name: str, **info: Any) -> Callable[[F], F]:
        """Decorator: register a data source under `name`."""

        def add(factory: F) -> F:
            @wraps(factory)
            def build(*, limit: int | None = None, **settings: Any) -> Dataset:
                data: Dataset = factory(**settings).check()
                return data if limit is None else data.take(limit)

            own = inspect.signature(factory, eval_str=True)
            extra = inspect.Parameter("limit", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=int | None)
            parameters = [*own.parameters.values(), extra]
            build.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
            super(Sources, self).register(name, **info)(build)
            return factory

        return add


datasets = Sources("data", "arno.data.sources", "datasets.register")

Labels = Tensor | np.ndarray[Any, np.dtype[Any]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples as tensors.

    Args:
        x, y: training samples, `[n, C, H, W]` uint8 for images, `[n, features]` float32 or sequences of tokens
            `[n, length]` int64, and their targets: labels `[n]` int64, numbers `[n]` or `[n, outputs]` float32,
            several labels of 0 or 1 `[n, labels]` int64, or a token for each position `[n, length]` int64.
        x_test, y_test: test samples and their targets.
        classes: one name per class, label or token; label i is `classes[i]`. Empty if the targets are numbers.
        mean, std: of `x / scale` over the training data, per channel (or feature), or one value for all.
        scale: the largest raw value, 255 for images.
        val: the share of the training data that is held out for validation by default (`data.val`).
        client: the index of the client of each training sample, `[n]` int64, if the data name their clients.
        client_test: the index of the client of each test sample, if known; −1 for a sample of no client. A run then
            scores every client on its test samples.
        clients: the names of the clients; client i is `clients[i]`.
        rows: the position of each training sample in the given data, before test samples were split off or rows were
            left out; None if the positions are 0, 1, …, n − 1. given: how many samples were given.
        features: the name of each feature, if known.
        tokens: one name per token, if the samples are sequences of tokens. `<pad>` fills short sequences.
        categories: for each column of a table the number of its categories, 0 for a column of numbers; empty if all
            columns are numbers. A column with categories has one input of 0 or 1 for each category, one after another.
        gap: the samples of a client are in the order of time, and samples that are at most `gap` apart overlap.
            Validation samples are then the last samples of each client. None: the order has no meaning.
        references: scores of simple models for comparison, by the name of the model and the name of the metric.
        notes: lines about what was inferred when the data were read; a run prints and records them.
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
    client: Tensor | None = None
    client_test: Tensor | None = None
    clients: tuple[str, ...] = ()
    rows: Tensor | None = None
    given: int | None = None
    features: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    categories: tuple[int, ...] = ()
    gap: int | None = None
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def n_classes(self) -> int:
        """The number of classes, with or without samples; 0 if the targets are numbers."""
        return len(self.classes)

    def check(self) -> Dataset:
        """Refuse data that cannot be used: wrong types or shapes, no samples, labels out of range, NaN, infinities."""
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            what = f"the {part} data of {self.name}"
            if not isinstance(x, Tensor) or not isinstance(y, Tensor):
                kinds = f"{type(x).__name__} and {type(y).__name__}"
                raise ArnoError(f"{what}: {kinds}", "samples and targets are torch tensors", "use torch.from_numpy(…)")
            if any(t.layout != torch.strided or t.requires_grad or t.is_meta for t in (x, y)):
                rule = "samples and targets are dense tensors in memory without gradients"
                raise ArnoError(what, rule, "use x.detach().to_dense()")
            if len(x) != len(y):
                raise ArnoError(
                    f"{what}: {len(x)} samples, {len(y)} targets", "every sample needs one target", "correct x or y"
                )
            if len(x) == 0:
                raise ArnoError(what, "there are no samples", "give another file or folder")
            if x.dim() < 2 or x.shape[1:] != self.x.shape[1:]:
                raise ArnoError(
                    f"{what}: samples of shape {tuple(x.shape[1:])}",
                    f"training samples have shape {self.shape}" if x.dim() > 1 else "a sample has at least one axis",
                    "use x of shape [n, features] or [n, C, H, W]",
                )
            if 0 in x.shape:
                raise ArnoError(f"{what}: samples of shape {tuple(x.shape[1:])}", "they hold no values", "correct x")
            _check_targets(what, y, self.y, self.n_classes, x.shape)
            if self.tokens or x.dtype == torch.int64:
                _check_tokens(what, x, len(self.tokens))
            if not finite(x) and len(bad := (~torch.isfinite(x)).flatten(1).any(1).nonzero()):
                raise ArnoError(f"{what}: sample {int(bad[0])}", "it holds NaN or infinity", "clean the data first")
        self._check_words()
        channels = self.shape[0] if len(self.shape) == 3 else self.shape[-1]
        if self.categories and (said := sum(max(1, k) for k in self.categories)) != channels:
            rule = f"samples have {channels} inputs"
            raise ArnoError(f"{self.name}: categories for {said} inputs", rule, "correct categories")
        if not {len(self.mean), len(self.std)} <= {1, channels} or not all(0 < s < inf for s in self.std):
            raise ArnoError(
                f"{self.name}: mean of {len(self.mean)} and std of {len(self.std)} values",
                f"they hold 1 value or {channels} values (one per channel or feature), and std is positive",
                "correct mean and std",
            )
        if self.client is not None:
            _check_clients(self.name, self.client, self.clients, len(self.y))
        if self.client_test is not None:
            _check_test_clients(self.name, self.client_test, self.clients, len(self.y_test))
        return self

    def _check_words(self) -> None:
        """Refuse names that cannot be written into the records, and values of other types than the declared ones."""
        for name in (self.name, *self.classes, *self.clients, *self.features, *self.tokens):
            try:
                str(name).encode()
            except UnicodeEncodeError as error:
                rule = "a name has bytes that are no text"
                raise ArnoError(f"{str(self.name)!a}: {shortened([str(name)])!a}", rule, "rename it") from error
        if not all(isinstance(value, int | float) for value in (*self.mean, *self.std, self.scale)):
            raise ArnoError(f"{self.name}: mean, std and scale", "they hold numbers", "correct them")
        if not isinstance(self.references, Mapping):
            rule = "they are a dictionary of scores by the name of the model"
            raise ArnoError(f"{self.name}: references", rule, 'write {"linear": {"f1": 0.9}}')

    def strata(self) -> Tensor:
        """The stratum of every training sample, 0, 1, …: its (first) label, or the decile of its target."""
        return strata_of(self.y)

    def stratum_names(self) -> tuple[str, ...]:
        """The names of the strata: the classes, or the smallest and largest target of each decile."""
        if self.n_classes and self.y.dim() == 1:
            return self.classes
        if self.n_classes:
            return (*self.classes, "none") if several(self.y, self.n_classes) else ("text",)
        first, decile = self.y.view(len(self.y), -1)[:, 0], self.strata()
        groups = [first[decile == i] for i in range(int(decile.max()) + 1)]
        return tuple(f"{g.min():.4g} to {g.max():.4g}" if len(g) else "no target" for g in groups)

    def fingerprint(self) -> str:
        """32 hexadecimal digits that change if any sample, target or client of a training sample changes.

        They do not depend on names (of classes, clients, features).
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        clients = () if self.client is None else (self.client,)
        for tensor in (self.x, self.y, self.x_test, self.y_test, *clients):
            array = np.ascontiguousarray(tensor.numpy())
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def take(self, n: int, seed: int = 0) -> Dataset:
        """The same data set with at most `n` training samples, strata in proportion; the test data do not change.

        If the data name their clients, samples are in proportion inside each client, and every client keeps at least
        one.
        """
        if n < 1:
            raise ArnoError(f"data.limit = {n}", "at least one training sample must remain", "try data.limit=1000")
        if n >= len(self.y):
            return self
        random = numpy_stream(seed, "limit")
        if self.client is None:
            chosen = torch.from_numpy(stratified(self.strata(), n, random))
        elif n < len(self.clients):
            rule = f"the data name {len(self.clients)} clients, and each of them keeps a sample"
            raise ArnoError(f"data.limit = {n}", rule, f"try data.limit={10 * len(self.clients)}")
        else:
            left_out = held_inside(self.client, self.strata(), len(self.y) - n, random)
            chosen = torch.from_numpy(np.flatnonzero(~left_out))
        return self.select(chosen)

    def select(self, chosen: Tensor) -> Dataset:
        """The same data set with some of the training samples."""
        return replace(
            self,
            x=self.x[chosen],
            y=self.y[chosen],
            client=None if self.client is None else self.client[chosen],
            rows=chosen if self.rows is None else self.rows[chosen],
            given=len(self.y) if self.given is None else self.given,
        )

    def as_tokens(self) -> Dataset:
        """The same data set with sequences of tokens.

        Numbers become tokens; an error if one is not whole, or is negative.
        """
        if self.x.dtype == torch.int64:
            return self
        if not self.whole:
            rule = "it needs sequences of tokens: whole numbers from 0 on, [n, length]"
            what = f"{self.name}: samples of shape {self.shape}, {self.x.dtype}".replace("torch.", "")
            raise ArnoError(what, rule, "use data=text, or another model")
        return replace(self, x=self.x.long(), x_test=self.x_test.long(), mean=(0.0,), std=(1.0,), scale=1.0)

    @property
    def whole(self) -> bool:
        """Whether samples are vectors of whole numbers from 0 on."""
        both = (self.x, self.x_test)
        return self.x.dim() == 2 and all(bool((x >= 0).all() and (x == x.round()).all()) for x in both)

    @property
    def vocabulary(self) -> int:
        """The number of tokens; 0 if the samples are not tokens."""
        if self.x.dtype != torch.int64:
            return 0
        return len(self.tokens) or 1 + max(int(x.max()) for x in (self.x, self.x_test))

    def as_codes(self) -> Dataset:
        """The same data set with one input per column of a table: a missing category is 0, the first one 1, and so on.

        >>> x = torch.tensor([[0.5, 1.0, 0.0], [0.1, 0.0, 1.0], [0.2, 0.0, 0.0]])
        >>> data = Dataset("t", x, torch.zeros(3), x, torch.zeros(3), (), (0.3, 0, 0), (2, 1, 1), categories=(0, 2))
        >>> data.as_codes().x.tolist()[1:], data.as_codes().mean
        ([[0.10000000149011612, 2.0], [0.20000000298023224, 0.0]], (0.3, 0.0))
        """
        if not self.categories:
            return self
        firsts = [sum(max(1, k) for k in self.categories[:i]) for i in range(len(self.categories))]
        sides = [tuple(side) * (len(self.features) if len(side) == 1 else 1) for side in (self.mean, self.std)]
        mean, std = (
            tuple(usual if k else side[at] for k, at in zip(self.categories, firsts, strict=True))
            for side, usual in zip(sides, (0.0, 1.0), strict=True)
        )
        x, x_test = (_codes(x, self.categories, firsts) for x in (self.x, self.x_test))
        return replace(self, x=x, x_test=x_test, mean=mean, std=std, features=())

    def transform(self) -> Transform:
        """How batches of this data set are normalised and augmented."""
        return Transform(self.mean, self.std, self.scale)


def _codes(x: Tensor, categories: Sequence[int], firsts: Sequence[int]) -> Tensor:
    """One column for each group of inputs. firsts: the first input of each group."""
    out = x.new_empty(len(x), len(categories))
    for column, k, at in zip(out.T, categories, firsts, strict=True):
        group = x[:, at : at + k]
        column.copy_((group.argmax(1) + 1).where(group.any(1), 0) if k else x[:, at])
    return out


def load(config: Mapping[str, Any], seed: int = 0) -> Dataset:
    """Make the data set that `config` names (`{"kind": "digits", "limit": 500, …}`), check it, and limit it.

    >>> data = load({"kind": "digits", "limit": 100}, seed=1)
    >>> len(data.y), data.shape, data.n_classes
    (100, (1, 8, 8), 10)
    """
    settings = dict(config)
    limit = settings.pop("limit", None)
    data = datasets.build(settings)
    if not isinstance(data, Dataset):
        raise ArnoError(
            f"data={settings['kind']} returned an object of type {type(data).__name__}",
            "a data source returns an arno.data.Dataset",
            "return Dataset(name, x, y, x_test, y_test, classes)",
        )
    return data.check() if limit is None else data.check().take(limit, seed)


def _check_tokens(what: str, x: Tensor, tokens: int) -> None:
    """Refuse samples that are not sequences of tokens. tokens: the number of tokens; 0 if they have no names."""
    if x.dtype != torch.int64:
        kind = f"{what}: samples of type {x.dtype}".replace("torch.", "")
        raise ArnoError(kind, "tokens are int64", "use x.long(), or leave out tokens")
    low, high = int(x.min()), int(x.max())
    if low < 0 or (tokens and high >= tokens):
        rule = f"tokens are numbers from 0 to {tokens - 1}" if tokens else "int64 samples are tokens, numbers from 0 on"
        raise ArnoError(f"{what}: token {low if low < 0 else high}", rule, "correct them, or use x.float() for numbers")


def _check_targets(what: str, y: Tensor, training: Tensor, classes: int, samples: torch.Size) -> None:
    """Refuse targets that are neither labels of classes, nor tokens, nor finite numbers."""
    kind = f"{what}: targets of type {y.dtype}".replace("torch.", "") + f" and shape {list(y.shape)}"
    if y.dtype != training.dtype or y.shape[1:] != training.shape[1:]:
        raise ArnoError(kind, "training and test targets have the same type and shape", "convert them")
    if y.is_floating_point():
        if classes:
            raise ArnoError(kind, "labels of classes are int64", "use y.long(), or classes=() if they are numbers")
        if y.dim() > 2:
            raise ArnoError(kind, "numbers have shape [n] or [n, outputs]", "use y.flatten(1)")
        if not finite(y) and len(bad := (~torch.isfinite(y)).view(len(y), -1).any(1).nonzero()):
            raise ArnoError(f"{what}: target {int(bad[0])}", "it is NaN or infinity", "clean the data first")
        return
    if y.dtype != torch.int64 or not (y.dim() == 1 or y.shape == samples or several(y, classes)):
        rule = "labels are int64 of shape [n] (several labels: 0 or 1, [n, labels]), numbers are floating-point"
        raise ArnoError(kind, rule, "use y.long() or y.float()")
    if not classes:
        raise ArnoError(kind, "labels need class names", "name the classes, or use y.float() if they are numbers")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ArnoError(
            f"{what}: label {low if low < 0 else high}",
            f"labels must be 0 to {classes - 1}",
            "are these samples labelled?" if low < 0 else "number the classes from 0",
        )


def _check_clients(name: str, client: Tensor, names: tuple[str, ...], samples: int) -> None:
    """Refuse numbers of clients that do not fit the samples or the names."""
    kind = f"the clients of {name}: {client.dtype} {list(client.shape)}".replace("torch.", "")
    if client.dtype != torch.int64 or client.shape != (samples,):
        raise ArnoError(kind, f"each of the {samples} training samples has one client, an int64", "correct client")
    if len(set(names)) < len(names) or not all(isinstance(one, str) for one in names):
        raise ArnoError(f"the clients of {name}", "their names are different strings", "correct clients")
    low, high = int(client.min()), int(client.max())
    if low < 0 or high >= len(names):
        rule = f"there are names for 0 to {len(names) - 1}"
        raise ArnoError(f"the clients of {name}: number {low if low < 0 else high}", rule, "name every client")
    if len(empty := (torch.bincount(client, minlength=len(names)) == 0).nonzero()):
        rule = "it has no training samples"
        raise ArnoError(f"client {names[int(empty[0])]!r} of {name}", rule, "leave out its name, or give it some")


def _check_test_clients(name: str, client: Tensor, names: tuple[str, ...], samples: int) -> None:
    """Refuse numbers of clients that do not fit the test samples or the names."""
    kind = f"the clients of the test samples of {name}: {client.dtype} {list(client.shape)}".replace("torch.", "")
    if client.dtype != torch.int64 or client.shape != (samples,):
        raise ArnoError(kind, f"each of the {samples} test samples has one client, an int64", "correct client_test")
    if int(client.min()) < -1 or int(client.max()) >= len(names):
        raise ArnoError(kind, f"there are names for 0 to {len(names) - 1}", "name every client")


def finite(x: Tensor) -> bool:
    """Whether the sum of the numbers is finite. Then all numbers are finite; to test each number takes much longer."""
    return not x.is_floating_point() or bool(torch.isfinite(x.sum()))


def shortened(names: Sequence[str], most: int = 6) -> str:
    """Names on one line; if there are many, only the first ones and their number.

    >>> shortened(("a", "b", "c"), 2), shortened(("a", "b"))
    ('a, b, … (3)', 'a, b')
    """
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, … ({len(names):,})"


def strata_of(y: Tensor) -> Tensor:
    """The stratum of every target: its label, or the decile of its (first) number; equal numbers share a decile.

    For several labels of 0 or 1, the stratum is the index of the first label that is 1, or the number of labels if none
    is 1. Tokens have one stratum.

    >>> strata_of(torch.tensor([3, 1])).tolist(), strata_of(torch.tensor([0.5, 0.1, 0.1, 9.0])).tolist()
    ([3, 1], [2, 0, 0, 3])
    >>> strata_of(torch.tensor([[0, 1, 1], [0, 0, 0]])).tolist(), strata_of(torch.tensor([[4, 2]])).tolist()
    ([1, 3], [0])
    """
    if not y.is_floating_point() and y.dim() == 1:
        return y
    if not y.is_floating_point():
        labels = y.shape[1]
        return y.argmax(1).where(y.any(1), labels) if several(y, labels) else torch.zeros(len(y), dtype=torch.int64)
    first = y.reshape(len(y), -1)[:, 0].contiguous()
    smaller = torch.searchsorted(first.sort().values, first)
    return smaller * min(10, len(first)) // max(1, len(first))


def as_labels(y: Labels) -> Ints:
    """Labels (a tensor, an array or a list) as a NumPy array of int64."""
    return np.asarray(y.cpu() if isinstance(y, Tensor) else y, dtype=np.int64)


def stratified(y: Labels, n: int, random: np.random.Generator) -> Ints:
    """Indices (ascending) of `n` random samples, in proportion to the strata; fractions by the largest remainder."""
    classes, labels = np.unique(as_labels(y), return_inverse=True)
    counts = np.bincount(labels, minlength=len(classes))
    exact = counts * (n / len(labels))
    quota = np.floor(exact + 1e-9).astype(np.int64)
    left = n - int(quota.sum())
    quota[np.argsort(quota - exact, kind="stable")[:left]] += 1
    return np.flatnonzero(rank_in_class(labels, random) < quota[labels])


def rank_in_class(labels: Ints, random: np.random.Generator) -> Ints:
    """For each sample, its number 0, 1, 2, … in its class; the samples of a class are numbered in random order.

    labels: the class of each sample, 0, 1, … .
    """
    shuffled = random.permutation(len(labels))
    order = shuffled[sorted_by(labels[shuffled])]
    starts = np.cumsum(counts := np.bincount(labels)) - counts
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - starts[labels[order]]
    return rank


def sorted_by(numbers: Ints) -> Ints:
    """The stable order of numbers 0, 1, …; sorting by digits of 16 bits is several times faster than `argsort`.

    >>> sorted_by(np.array([2**17, 5, 2**16, 5])).tolist()
    [1, 3, 2, 0]
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for digit in range(1, (int(numbers.max(initial=0)).bit_length() + 15) // 16):
        order = order[np.argsort((numbers[order] >> (16 * digit)).astype(np.uint16), kind="stable")]
    return order


def numbered_anew(numbers: Ints) -> Ints:
    """The numbers, renumbered as 0, 1, … in their order without gaps (the inverse that `np.unique` returns).

    >>> numbered_anew(np.array([7, 2, 7])).tolist()
    [1, 0, 1]
    """
    if numbers.max(initial=0) > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)[1]
    return (np.cumsum(np.bincount(numbers) > 0) - 1)[numbers]


def held_inside(
    client: Labels, strata: Labels, count: int, random: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which samples are held out: about `count`, in proportion inside each client and each of its strata.

    Every client keeps at least one sample, so fewer than `count` samples may be held out.

    >>> client, strata = np.repeat([0, 1], [10, 1]), np.zeros(11)
    >>> held_inside(client, strata, 6, np.random.default_rng(0)).reshape(11)[:10].sum()
    np.int64(6)
    """
    owner, labels = as_labels(client), as_labels(strata)
    sizes = np.bincount(owner)
    quota = _quota(sizes, count, 0)
    # Inside a client, a stratum with c samples has them at the places 0.5/c, 1.5/c, …. The samples at the first places
    # of the client are held out.
    cell = numbered_anew(owner * (labels.max(initial=0) + 1) + labels)
    place = _order_of_places(rank_in_class(cell, random), np.bincount(cell)[cell])
    order = np.argsort(random.random(len(owner)))
    order = order[sorted_by(place[order])]
    order = order[sorted_by(owner[order])]  # by client, then by place, then at random
    rank = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner[order]]
    held = np.zeros(len(owner), dtype=bool)
    held[order] = rank < quota[owner[order]]
    return held


def _order_of_places(rank: Ints, count: Ints) -> Ints:
    """Whole numbers in the order of (rank + 0.5) / count; equal places have equal numbers.

    >>> _order_of_places(np.array([0, 1, 0, 2, 1]), np.array([2, 2, 1, 3, 3])).tolist()
    [1, 3, 2, 4, 2]
    """
    sizes = np.flatnonzero(np.bincount(count, minlength=1))
    if len(sizes) * (int(rank.max(initial=0)) + 1) > 4 * len(rank):
        return np.unique((rank + 0.5) / count, return_inverse=True)[1]
    which = np.zeros(int(sizes.max(initial=0)) + 1, dtype=np.int64)
    which[sizes] = np.arange(len(sizes))
    places = (np.arange(int(rank.max(initial=0)) + 1)[:, None] + 0.5) / sizes
    numbers = np.unique(places, return_inverse=True)[1].reshape(places.shape)
    found: Ints = numbers[rank, which[count]]
    return found


def _quota(sizes: Ints, count: int, gap: int) -> Ints:
    """How many samples of each client are held out, in proportion; `1 + gap` or more samples of each client are not."""
    most, exact = np.maximum(sizes - 1 - gap, 0), sizes * (count / max(1, int(sizes.sum())))
    quota: Ints = np.minimum(np.floor(exact + 1e-9).astype(np.int64), most)
    more = np.argsort(quota - exact, kind="stable")
    more = more[quota[more] < most[more]]
    quota[more[: max(0, count - int(quota.sum()))]] += 1
    return quota


def split_in_time(client: Labels, val: float, gap: int) -> tuple[Tensor, Tensor]:
    """Training and validation indices. The last samples of each client are held out.

    The `gap` samples before the held-out samples are in neither part.
    client: the index of the client of each sample; samples of client −1 are in neither part.

    >>> train, held_out = split_in_time(np.repeat([0, 1], [6, 2]), 0.25, gap=1)
    >>> train.tolist(), held_out.tolist()
    ([0, 1, 2, 6, 7], [4, 5])
    """
    owner = as_labels(client)
    used = np.flatnonzero(owner >= 0)
    sizes = np.bincount(owner[used])
    quota = _quota(sizes, _held_out(val, len(used)), gap)
    order = np.argsort(owner[used], kind="stable")
    left = np.empty(len(used), dtype=np.int64)  # how many samples of the same client follow
    left[order] = np.cumsum(sizes)[owner[used[order]]] - 1 - np.arange(len(used))
    held = quota[owner[used]]
    train = left >= np.where(held > 0, held + gap, 0)
    return torch.from_numpy(used[train]), torch.from_numpy(used[left < held])


def split_inside(client: Labels, strata: Labels, val: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation indices, split in proportion inside each client; every client keeps a training sample.

    client: the index of the client of each sample; samples of client −1 are in neither part.
    """
    owner = as_labels(client)
    used = np.flatnonzero(owner >= 0)
    count = _held_out(val, len(used))
    held = held_inside(owner[used], as_labels(strata)[used], count, numpy_stream(seed, "validation"))
    return torch.from_numpy(used[~held]), torch.from_numpy(used[held])


def split_validation(y: Labels, val: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split samples into training and validation indices, every stratum in proportion.

    Args:
        y: labels or other strata.
        val: a fraction in [0, 1), or a number of samples from 1 on.
        seed: the run's seed.

    >>> train, held_out = split_validation(torch.arange(10).repeat(10), 0.2, seed=0)
    >>> len(train), len(held_out)
    (80, 20)
    """
    n = len(y)
    count = _held_out(val, n)
    held_out = np.zeros(n, dtype=bool)
    if count:
        held_out[stratified(y, count, numpy_stream(seed, "validation"))] = True
    return torch.from_numpy(np.flatnonzero(~held_out)), torch.from_numpy(np.flatnonzero(held_out))


def _held_out(val: float, n: int) -> int:
    """How many of `n` samples `data.val` holds out."""
    if not val >= 0 or (val >= 1 and val != int(val)):
        rule = "it must be a fraction in [0, 1) or a whole number of samples"
        raise ArnoError(f"data.val = {val}", rule, "try data.val=0.1")
    count = int(val) if val >= 1 else max(1, round(val * n)) if val > 0 else 0
    if count >= n:
        remedy = "try data.val=0.1" if n >= 10 else "bring more samples, or use data.val=0"
        raise ArnoError(f"data.val = {val}", f"of {n} samples none would be left to train on", remedy)
    return count


@dataclass(frozen=True)
class Transform:
    """Turns stored samples into network inputs, one batch at a time, on the device of the batch.

    `normalise` computes (x / scale − mean) / std. `augment` crops and flips the stored images before they are
    normalised, so that the padding is black.

    Args:
        mean, std, scale: as in `Dataset`.
        pad: black pixels added on every side before a random crop of the original size.
        flip: whether half of the images are mirrored.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    pad: int = 4
    flip: bool = True

    def normalise(self, x: Tensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """Samples `[…, C, H, W]` or `[…, features]` as standardised numbers, x·a + b per channel, written into `out`.

        >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        >>> Transform((0.5,), (0.25,)).normalise(black_and_white, torch.float64).flatten().tolist()
        [-2.0, 2.0]

        Tokens (int64) are returned as they are.
        """
        if x.dtype == torch.int64:
            return x
        a, b = _affine(self.mean, self.std, self.scale, 1 if x.dim() < 4 else 3, dtype, x.device)
        numbers = x.to(dtype) if out is None else out.copy_(x)
        if a.numel() == 1:  # one operation for product and sum
            return torch.add(b, numbers, alpha=a.item(), out=None if numbers is x else numbers)
        return (numbers * a if numbers is x else numbers.mul_(a)).add_(b)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random crops and flips for `count` images: rows of (down, right, mirrored)."""
        device = generator.device
        move = torch.randint(0, 2 * self.pad + 1, (count, 2), generator=generator, device=device)
        mirror = torch.randint(0, 2 if self.flip else 1, (count, 1), generator=generator, device=device)
        return torch.cat([move, mirror], dim=1)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Crop and mirror stored images `[b, C, H, W]` by the rows of `drawn`, with one `gather` and no loop."""
        if x.dim() != 4:
            shape = list(x.shape)
            rule = "only images can be cropped and flipped"
            raise ArnoError(f"augmentation of samples of shape {shape[1:]}", rule, "set local.augment=false")
        (b, c, h, w), wide = x.shape, x.shape[3] + 2 * self.pad
        down, right, mirror = drawn.to(x.device).T.unsqueeze(-1)
        across = torch.arange(w, device=x.device)
        rows = down + torch.arange(h, device=x.device)
        columns = right + torch.where(mirror.bool(), across.flip(0), across)
        where = (rows.unsqueeze(2) * wide + columns.unsqueeze(1)).view(b, 1, h * w).expand(b, c, h * w)
        return pad(x, [self.pad] * 4).flatten(2).gather(2, where).view(b, c, h, w)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Crop (after black padding) and mirror stored images `[b, C, H, W]` at random; the type does not change."""
        return self.apply(x, self.draw(len(x), generator))


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float, dims: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The a and b of x·a + b, with a shape that broadcasts over a batch; made once per device."""
    shape = (-1, *[1] * (dims - 1))
    with torch.inference_mode(False):
        middle, spread = (torch.tensor(v, dtype=torch.float64).view(shape) for v in (mean, std))
        return (1 / (scale * spread)).to(device, dtype), (-middle / spread).to(device, dtype)
