"""Classification: data × network. Clients hold samples of one data set that stays in memory once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.layout import Layout, bind, flatten
from ..core.local import Tally
from ..core.seeds import key, stream
from ..core.work import Job, SubModel, Vec
from ..data.balance import balanced
from ..data.dataset import Transform
from ..data.partition import Partition
from ..errors import ArnoError
from ..kernels.lean import lean
from ..kernels.strips import ConvBackprop, suits
from ..models.convolutional import ConvNet
from ..models.linear import MLP, Backprop
from ..models.network import Network, last_linear, narrow

#: Training gathers this many numbers at a time, so that a large client does not copy its whole data set.
CHUNK = 2**22
#: Scoring takes up to 256 samples at a time, fewer of those with more than this many numbers among them, at least 16.
EVAL = 2**18
DECILES = [f"p{q}" for q in range(0, 101, 10)]


class Classification:
    """Mean cross-entropy of a network over each client's samples.

    x, y: all training samples; `partition` says which belong to whom.
    build: makes the network; called once, under a seed of its own.
    transform: from stored samples to network inputs, on whole batches.
    splits: held-out samples by name (`val`, `test`): x and y; `balanced` is made of `val` when it is first asked for.
    channels_last: images with the channels of a pixel side by side, which convolutions on a CPU take faster; the
        default where there are any. It rounds differently, so it is part of the run.
    seed: of the balanced split.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        partition: Partition,
        build: Callable[[], nn.Module],
        *,
        transform: Transform | None = None,
        splits: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        classes: int | None = None,
        name: str = "classification",
        fingerprint: str = "",
        channels_last: bool | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self.name, self.dataset_fingerprint, self.seed = name, fingerprint, seed
        self.x, self.y = x.to(self.device), y.to(self.device)
        self.partition, self.transform, self.build = partition, transform or Transform(), build
        self.splits = {name: (a.to(self.device), b.to(self.device)) for name, (a, b) in (splits or {}).items()}
        self.n, self.sizes = len(partition), partition.sizes
        self.classes = int(y.max()) + 1 if classes is None else classes
        self.module = self._make(0)
        self.channels_last = wants_channels_last(self.module) if channels_last is None else channels_last
        if self.channels_last and any(isinstance(m, nn.GroupNorm) for m in self.module.modules()):
            raise ArnoError(
                "model.channels_last = true with GroupNorm",
                "torch's backward pass writes past its buffers there for some numbers of channels",
                "leave model.channels_last out",
            )
        units = getattr(self.module, "units", None)
        self.layout = Layout.of(self.module, units() if callable(units) else None)

    def inputs(self, x: Tensor) -> Tensor:
        """Stored samples as the network takes them: normalised, in the memory layout that suits it."""
        x = self.transform.normalise(x, self.dtype)
        if not self.channels_last or x.ndim != 4:
            return x
        if x.shape[1] == 1:  # both layouts are the same bytes: say which one is meant
            _, _, height, width = x.shape
            return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
        return x.contiguous(memory_format=torch.channels_last)

    def init(self, seed: int) -> Vec:
        """Freshly initialised weights, from a stream of their own."""
        return flatten(self._make(seed))

    def learner(self, window: SubModel | None = None) -> ClassificationLearner:
        """The network bound to flat buffers, or the smaller one of a window."""
        module = deepcopy(self.module) if window is None else narrow(self.module, self.layout, window)
        return ClassificationLearner(self, lean(module) if self.channels_last else module)

    def steps(self, clients: Tensor, epochs: Tensor, batch_size: Tensor) -> Tensor:
        """E_k ⌈n_k / B_k⌉."""
        return epochs * -(-self.sizes[clients] // batch_size)

    @cached_property
    def eval_batch(self) -> int:
        """How many samples are scored at a time: a power of two."""
        return min(256, 1 << (max(16, EVAL // self.x[0].numel()).bit_length() - 1))

    @cached_property
    def head(self) -> tuple[slice, slice]:
        """Where the last linear layer's weight and bias lie in the vector."""
        found = last_linear(self.module)
        if found is None:
            raise ArnoError(
                f"{type(self.module).__name__} has no linear layer", "this method works on the last one", ""
            )
        return self.layout.slot(f"{found[0]}.weight").span, self.layout.slot(f"{found[0]}.bias").span

    def evaluate(self, w: Vec, split: str, tally: Tally | None = None) -> dict[str, float]:
        """Accuracy, weighted F1 and loss on a split."""
        confusion, loss = self.confusion(w, split, tally)
        return {"accuracy": accuracy(confusion), "f1": weighted_f1(confusion), "loss": loss}

    def report(self, w: Vec, clients: bool = False, tally: Tally | None = None) -> dict[str, float]:
        """Scores on the test and validation data; with `clients`, how accuracy spreads over the clients."""
        row: dict[str, float] = {}
        for split in ("test", "val"):
            if split in self.splits:
                confusion, loss = self.confusion(w, split, tally)
                scores = {"accuracy": accuracy(confusion), "f1": weighted_f1(confusion), "loss": loss}
                row |= {f"{split}_{name}": score for name, score in scores.items()}
                if clients and split == "test":
                    row |= self.over_clients(confusion)
        return row

    def over_clients(self, confusion: Tensor) -> dict[str, float]:
        """Accuracy on test data with each client's mix of labels, Σ_c share_kc · recall_c: mean, std, worst decile.

        And what the worst q percent of the clients do not exceed, `client_accuracy_pQ`, from the worst to the best.
        """
        recall = confusion.diagonal().double() / confusion.sum(1).clamp(min=1)
        each = self.label_shares() @ recall.cpu()
        worst = each.sort().values[: max(1, len(each) // 10)]
        spread = {"mean": each.mean(), "std": each.std(correction=0), "worst_decile": worst.mean()}
        spread |= zip(DECILES, np.quantile(each.numpy(), np.linspace(0, 1, 11)), strict=True)
        return {f"client_accuracy_{name}": float(value) for name, value in spread.items()}

    def label_shares(self) -> Tensor:
        """Each client's mix of labels, [N, classes]."""
        counts = self.label_counts().double()
        return counts / counts.sum(1, keepdim=True)

    def label_counts(self) -> Tensor:
        """How many samples of each class each client holds, [N, classes]."""
        return self.partition.label_counts(self.y.cpu(), self.classes)

    def describe(self) -> str:
        """The problem in a few words."""
        skew = self.partition.heterogeneity(self.y.cpu(), self.classes)
        return f"{self.name}: {self.n} clients (heterogeneity {skew:.2f}), {self.layout.d:,} parameters"

    def fingerprint(self) -> str:
        """A digest of the data set."""
        return self.dataset_fingerprint

    def confusion(self, w: Vec, split: str, tally: Tally | None = None) -> tuple[Tensor, float]:
        """Counts of (true class, predicted class) on a split, and the mean loss."""
        n = len(self.split(split)[1])
        if tally is None:
            counts, losses = self.tally(w, split, 0, n)
        else:
            pieces = [(at, min(at + self.eval_batch, n)) for at in range(0, n, self.eval_batch)]
            found = tally(w, split, pieces)
            counts, losses = sum(c for c, _ in found), [loss for _, more in found for loss in more]
        return counts.view(self.classes, self.classes), sum(losses) / n

    def tally(self, w: Vec, split: str, first: int, last: int) -> tuple[Tensor, list[float]]:
        """Flat counts of (true, predicted) over a piece of a split, and the summed loss of each batch."""
        x, y = (whole[first:last] for whole in self.split(split))
        counts, losses = torch.zeros(self.classes**2, dtype=torch.int64, device=self.device), []
        for logits, labels in self._forward(w, x, y):
            counts += torch.bincount(labels * self.classes + logits.argmax(1), minlength=self.classes**2)
            losses.append(float(F.cross_entropy(logits, labels, reduction="sum")))
        return counts, losses

    def __getstate__(self) -> dict[str, Any]:
        """For a worker: what is cached and what only the server needs stays behind."""
        behind = ("build", "_scorer")
        return {name: value for name, value in vars(self).items() if name not in behind}

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """Held-out samples and labels; `balanced` brings every class of `val` to the median class count, once."""
        if name == "balanced" and name not in self.splits:
            x, y = self.split("val")
            rows = balanced(y, self.classes, self.seed).to(self.device)
            self.splits[name] = x[rows], y[rows]
        if name not in self.splits:
            raise ArnoError(f"no {name} data", "this score needs them", "set data.val above 0" if name == "val" else "")
        return self.splits[name]

    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean cross-entropy of `w` on each client's own samples."""
        return self._losses(w, (self.partition[k] for k in clients.tolist()))

    def batch_losses(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """The same on one mini-batch of each client's own samples, drawn without replacement for round t."""
        batches = []
        for k, size in zip(clients.tolist(), batch_size.tolist(), strict=True):
            rows = self.partition[k]
            batches.append(rows[torch.randperm(len(rows), generator=stream(seed, "select/batch", t, k))[:size]])
        return self._losses(w, batches)

    def _losses(self, w: Vec, samples: Iterable[Tensor]) -> Tensor:
        out = []
        for rows in (rows.to(self.device) for rows in samples):
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            sums = [F.cross_entropy(z, b, reduction="sum") for z, b in self._forward(w, x, y)]
            out.append(torch.stack(sums).sum() / len(rows))
        return torch.stack(out)

    def model(self, w: Vec) -> nn.Module:
        """The network with the weights `w`, in evaluation mode."""
        module = deepcopy(self.module)
        bind(module, w.detach().clone())
        return module.eval()

    @torch.inference_mode()
    def _forward(self, w: Vec, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        mine, logits = self._scorer
        mine.copy_(w)
        for some, labels in zip(x.split(self.eval_batch), y.split(self.eval_batch), strict=True):
            yield logits(self.inputs(some)), labels

    @cached_property
    def _scorer(self) -> tuple[Vec, Callable[[Tensor], Tensor]]:
        """A vector, and the logits of the network whose weights are in it."""
        w = torch.zeros(self.layout.size, device=self.device, dtype=self.dtype)
        if self.in_strips(self.module):
            return w, ConvBackprop(self.module, self.x.shape[1:], w).logits
        module = deepcopy(self.module).eval()
        bind(module, w)
        return w, lean(module) if self.channels_last else module

    def in_strips(self, module: nn.Module) -> TypeGuard[ConvNet]:
        """Whether the network is written out as products with banded matrices."""
        return self.channels_last and self.device.type == "cpu" and suits(module, self.x.shape[1:])

    def _make(self, seed: int) -> nn.Module:
        with _seeded(key(seed, "init")):
            return self.build().to(self.device, self.dtype)


@dataclass
class View:
    """What a term of the loss may look at: the batch, logits, feature levels, the network under other weights."""

    learner: ClassificationLearner
    job: Job
    x: Tensor
    y: Tensor
    logits: Tensor
    embedding: Tensor
    levels: list[Tensor]

    def frozen(self, w: Vec) -> Tensor:
        """The embedding of the batch under other weights, without gradients."""
        window = self.job.window  # a buffer of its own below: kernels round by alignment
        w = w[window.index] if window is not None and window.extract else w.clone()
        with torch.no_grad():
            views = {f"network.{name}": view for name, view in self.learner.layout.views(w).items()}
            z: Tensor = torch.func.functional_call(_Embedding(self.learner.module), views, (self.x,))
        return z


class _Embedding(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.embed(x)  # type: ignore[operator, no-any-return]


class ClassificationLearner:
    """A network whose parameters, buffers and gradients are views of two flat buffers."""

    def __init__(self, problem: Classification, module: nn.Module) -> None:
        self.problem, self.module = problem, module.train()
        self.layout = Layout.of(module)
        self.w = torch.zeros(self.layout.size, device=problem.device, dtype=problem.dtype)
        self.p = self.w[: self.layout.d]
        self.g = torch.zeros_like(self.p)
        bind(module, self.w, self.g)
        self.backprop: Backprop | ConvBackprop | None = None
        if type(module) is MLP:
            self.backprop = Backprop(module, self.w, self.g)
        elif problem.in_strips(module):
            self.backprop = ConvBackprop(module, problem.x.shape[1:], self.w, self.g)
        self._shuffle = torch.Generator()

    def batches(self, job: Job) -> Iterator[tuple[Tensor, Tensor]]:
        """Every epoch a new order; consecutive batches of it, the last one smaller."""
        problem, size = self.problem, job.batch_size
        rows = problem.partition[job.client]
        shuffle = job.stream("batches", self._shuffle)
        augment = job.stream("augment") if job.sgd.augment else None
        chunk = max(1, CHUNK // (size * problem.x.shape[1:].numel())) * size
        with self._own_draws(job):
            for _ in range(job.epochs):
                order = rows.index_select(0, torch.randperm(len(rows), generator=shuffle)) if job.sgd.shuffle else rows
                order = order.to(problem.device)
                for piece in order.split(chunk) if len(order) > chunk else (order,):
                    x, y = problem.x.index_select(0, piece), problem.y.index_select(0, piece)
                    if augment is not None:
                        x = problem.transform.augment(x, augment)
                    x = problem.inputs(x).flatten(1) if isinstance(self.backprop, Backprop) else problem.inputs(x)
                    yield from zip(x.split(size), y.split(size), strict=True)

    def _own_draws(self, job: Job) -> AbstractContextManager[None]:
        """A user's network may draw random numbers (dropout): its draws must not depend on the order of clients."""
        if isinstance(self.module, Network):
            return nullcontext()
        return _seeded(key(job.seed, "network", job.round, job.client))

    def autograd(self, job: Job) -> bool:
        """Where the network's gradient is not written out, or a method adds terms to the loss."""
        return self.backprop is None or bool(job.terms)

    def gradient(self, batch: tuple[Tensor, Tensor], job: Job) -> Tensor:
        """∇ℓ into `g`; ℓ is the mean cross-entropy plus the method's terms."""
        x, y = batch
        if self.backprop is not None and not self.autograd(job):
            return self.backprop(x, y)
        self.g.zero_()
        if job.terms:
            levels: list[Tensor] = []
            z = self.module.embed(x, levels)  # type: ignore[operator]
            logits = self.module.head(z)  # type: ignore[operator]
            view = View(self, job, x, y, logits, z, levels)
            loss = F.cross_entropy(logits, y) + sum(term(view) for term in job.terms)
        else:
            loss = F.cross_entropy(self.module(x), y)
        loss.backward()
        return loss.detach()


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    """Torch's global stream begun at `number`, and put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        yield


def wants_channels_last(module: nn.Module) -> bool:
    """Whether the layout is faster for this network: it convolves, and has no GroupNorm (see `Classification`)."""
    kinds = {type(m) for m in module.modules()}
    return nn.Conv2d in kinds and nn.GroupNorm not in kinds


def accuracy(confusion: Tensor) -> float:
    """The share of samples on the diagonal."""
    return float(confusion.diagonal().sum() / confusion.sum())


def weighted_f1(confusion: Tensor) -> float:
    """F1 per class, weighted by how often the class occurs; a class never predicted and never true counts 0.

    >>> round(weighted_f1(torch.tensor([[2, 1], [0, 1]])), 4)
    0.7667
    """
    c = confusion.to(torch.float64)
    hits, true, predicted = c.diagonal(), c.sum(1), c.sum(0)
    f1 = 2 * hits / (true + predicted).clamp(min=1)
    return float((f1 * true).sum() / true.sum())
