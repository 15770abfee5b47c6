"""Supervised learning: a problem of data, clients, a network and a task. All samples are one data set in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..core.layout import Layout, bind, copied, flatten, parameter_hooks
from ..core.metric import TRAIN_LOSS, Metric
from ..core.per_client import Values
from ..core.problem import Clients, Footprint, Problem
from ..core.resources import refuse_network
from ..core.seeds import key, seeded, stream
from ..core.user_code_trial import try_user_code
from ..core.work import Job, Mat, SubModel, Vec
from ..data.dataset import Transform
from ..data.partition import Partition
from ..errors import ArnoError
from ..kernels.bfloat16 import refuse_bfloat16
from ..kernels.choose_kernel import choose, for_scoring, for_training
from ..kernels.kernel import Kernel
from ..kernels.stacked import StackedProgram, refusal, stacked_program
from ..models.network import Network, Units, last_linear, narrow
from ..tasks.classification import Classification
from ..tasks.task import Task
from .carried import Carried
from .client_tests import GLOBAL, PERSONAL, blocks, own_metrics, summary, table
from .footprint import footprint, saved_per_sample

#: Training copies at most so many numbers of samples at a time, so that a large client does not copy all its samples.
CHUNK = 2**22
#: A batch for scoring has about so many numbers, and 16 to 256 samples.
EVAL = 2**18
ONE_AT_A_TIME = "model.bfloat16 = true computes one model at a time"


class Supervised(Problem):
    """The mean loss of a network over the samples of each client.

    x, y: all training samples and their targets; `partition` gives the samples of each client.
    build: a function that makes the network. It is called with a seed of its own.
    task: what the outputs mean; by default classification with as many classes as there are labels.
    transform: the function from stored samples to inputs of the network, for whole batches.
    splits: held-out samples by name (`val`, `test`): x and y; `balanced` is made of `val` when it is first needed.
    own_test: the samples on which each client is scored. They are samples of x and y that are not in `partition`, or
        samples of the split `own_split`.
    channels_last: store images with the channels of a pixel next to each other, which makes convolutions on a CPU
        faster. It is the default if the network has convolutions. It changes rounding, so it is part of the run.
    bfloat16: training computes products and convolutions in bfloat16; weights, steps and scores stay in float32.
    seed: the seed of the balanced split.
    trial: for a network of the user: the time limit in seconds for its first passes, which run in a separate process
        first (0: no limit). A network that ends this process or exceeds the limit is refused. None: no trial.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        partition: Partition,
        build: Callable[[], nn.Module],
        *,
        task: Task | None = None,
        transform: Transform | None = None,
        splits: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        name: str = "supervised",
        fingerprint: str = "",
        own_test: Partition | None = None,
        own_split: str = "",
        channels_last: bool | None = None,
        bfloat16: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        trial: float | None = None,
    ) -> None:
        self.device, self.dtype, self.bfloat16 = torch.device(device), dtype, bfloat16
        if bfloat16:
            refuse_bfloat16(self.device, dtype)
        self.name, self.dataset_fingerprint, self.seed = name, fingerprint, seed
        self.task = task or Classification(int(y.max()) + 1)
        self.x, self.y = x.to(self.device), self._targets(y)
        self.partition, self.transform, self.build = partition, transform or Transform(), build
        self.held_out = {name: (a.to(self.device), self._targets(b)) for name, (a, b) in (splits or {}).items()}
        self.splits = tuple(split for split in ("test", "val") if split in self.held_out)
        self.clients = Clients(partition.sizes)
        self.metrics, self.own_test = declared(self.task, self.splits, own_test is not None), own_test
        self.tests_clients, self.own_split = own_test is not None, own_split
        self.selects = self.task.metrics[0].on("val") if "val" in self.held_out else None
        if self.device.type == "cpu":
            refuse_network(build, dtype.itemsize, self.x.nbytes + self.y.nbytes)
        self.module = self._make(0).train()
        if trial is not None and self.device.type == "cpu":
            try_user_code(lambda: self._first_passes(channels_last), f"the network {type(self.module).__name__}", trial)
        choice = choose(self.module, self.shape, channels_last, self.some, bfloat16=bfloat16)
        self.channels_last, self.multiplications = choice.channels_last, choice.multiplications
        self.kernel, self.kernel_reason, self.small = choice.name, choice.reason, choice.small
        self.layout = Layout.of(self.module, self.module.units() if isinstance(self.module, Units) else None)

    @property
    def headline(self) -> tuple[Metric, ...]:
        """The scores on the test data, the score that selects the best model, the training loss."""
        test = [metric.on(split) for split in self.splits[:1] for metric in self.task.metrics]
        kinds = () if self.own_test is None else (PERSONAL,) if self.own_split else (PERSONAL, GLOBAL)
        own = [own_metrics(self.task, kind)[0] for kind in kinds]
        return (*test, *own, *([self.selects] if self.selects and self.selects not in test else []), TRAIN_LOSS)

    @cached_property
    def stack(self) -> StackedProgram | str:
        """A program that computes the gradients of many models at once; or the reason why only `vmap` can do this."""
        if self.bfloat16:
            return ONE_AT_A_TIME
        return stacked_program(self.module, self.task, self.some)

    @cached_property
    def not_vmapped(self) -> str:
        """The reason why `vmap` cannot compute the gradients of many models at once; empty if it can."""
        return ONE_AT_A_TIME if self.bfloat16 else refusal(self.module, self.task, self.some, self.y[:2])

    def not_stacked(self, clients: Tensor, batch_size: Tensor) -> str:
        """The reason why the models of these clients cannot be computed at once; empty if they can."""
        if isinstance(self.stack, str):
            return self.not_vmapped and f"{self.stack}; vmap: {self.not_vmapped}"
        samples = self.clients.sizes.numpy()[clients.cpu().numpy()]
        batch = batch_size.cpu().numpy().astype(samples.dtype)
        full = np.minimum(samples, batch)
        sizes = set(np.concatenate([full, samples % batch]).tolist()) - {0}
        sizes |= {self.stack.filled(n, int(full.max())) for n in sizes}
        odd = [n for n in sorted(sizes) if not self.stack.usual(n)]
        return f"it computes something else on batches of {odd[0]} samples" if odd else ""

    @property
    def some(self) -> Tensor:
        """Two inputs of the network, to find out what it computes."""
        return self.transform.normalise(self.x[:2], self.dtype)

    @cached_property
    def recurrent(self) -> bool:
        """Whether the network has recurrent layers, which torch computes for one model at a time only."""
        return any(isinstance(part, nn.RNNBase) for part in self.module.modules())

    @property
    def shape(self) -> torch.Size:
        """The shape of one sample."""
        return self.x.shape[1:]

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs of the network from stored samples: normalised, in the memory layout that the network needs."""
        x = self.transform.normalise(x, self.dtype)
        if not self.channels_last or x.ndim != 4:
            return x
        if x.shape[1] == 1:  # with one channel, both layouts have the same bytes, and only the strides differ
            _, _, height, width = x.shape
            return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
        return x.contiguous(memory_format=torch.channels_last)

    def init(self, seed: int) -> Vec:
        """New random weights, from their own random stream."""
        return flatten(self._make(seed))

    def learner(self, window: SubModel | None = None) -> SupervisedLearner:
        """A learner of the network, or of the smaller network of a window."""
        module = copied(self.module) if window is None else narrow(self.module, self.layout, window)
        kernel = for_training(module, self.shape, self.task, self.channels_last, self.some, bfloat16=self.bfloat16)
        return SupervisedLearner(self, kernel)

    @cached_property
    def eval_batch(self) -> int:
        """How many samples are scored together: a power of two."""
        return min(256, 1 << (max(16, EVAL // self.x[0].numel()).bit_length() - 1))

    @cached_property
    def head(self) -> tuple[slice, slice]:
        """The slices of the last linear layer's weight and bias in the vector."""
        found = last_linear(self.module)
        if found is None:
            raise ArnoError(
                f"{type(self.module).__name__} has no linear layer", "this method needs one", "use another network"
            )
        return self.layout.slot(f"{found[0]}.weight").span, self.layout.slot(f"{found[0]}.bias").span

    @property
    def chunk(self) -> int:
        """How many samples training copies at a time; a larger batch is copied as a whole."""
        return max(1, CHUNK // self.shape.numel())

    def pieces(self, split: str) -> list[tuple[int, int]]:
        """The batches in which a split is scored."""
        n = len(self.split(split)[1])
        return [(at, min(at + self.eval_batch, n)) for at in range(0, n, self.eval_batch)]

    def tally(self, w: Vec, split: str, first: int, last: int) -> Tensor:
        """The task's statistics on a piece of a split."""
        x, y = (whole[first:last] for whole in self.split(split))
        return self._tally(w, x, y)

    def scores(self, tally: Tensor) -> dict[str, float]:
        """The task's metrics."""
        return self.task.scores(tally)

    def join(self, tallies: Sequence[Tensor]) -> Tensor:
        """The statistics of several pieces as one vector; the task joins them."""
        return self.task.join(tallies)

    def spread(self, tally: Tensor) -> dict[str, float]:
        """The task's statistics over the clients, if clients hold labels of classes."""
        counts = self.label_counts()
        return {} if counts is None else self.task.spread(tally, counts)

    def own_tallies(self, models: Callable[[Tensor], Mat]) -> Tensor | None:
        """The task's statistics of each client's model on the client's own test samples, [N, …]."""
        if self.own_test is None:
            return None
        x, y = self.split(self.own_split) if self.own_split else (self.x, self.y)
        found: dict[int, Tensor] = {}
        for clients, rows in blocks(self.clients.n, models):
            for k, w in zip(clients.tolist(), rows, strict=True):
                at = self.own_test[k].to(self.device)
                if len(at):
                    found[k] = self._tally(w, x.index_select(0, at), y.index_select(0, at))
        nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
        return pad_sequence([found.get(k, nothing) for k in range(self.clients.n)], batch_first=True)

    def own_summary(self, tallies: Tensor, personal: bool) -> dict[str, float]:
        """The scores over all clients that a round records, computed from the result of `own_tallies`.

        If the own test samples are a split of the data, the score of the global model on all of them is left out: the
        round already records it as the score on this split.
        """
        assert self.own_test is not None
        row = summary(self.task, tallies, self.own_test.sizes, PERSONAL if personal else GLOBAL)
        known = {f"{GLOBAL[0]}_{metric.name}" for metric in self.task.metrics} if self.own_split else set[str]()
        return {name: score for name, score in row.items() if name not in known}

    def own_table(self, tallies: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """One row per client: its samples, and each score computed from the result of `own_tallies`."""
        assert self.own_test is not None
        return table(self.task, tallies, self.clients.sizes, self.own_test.sizes, self.client_names)

    def footprint(self, batch: int) -> Footprint:
        """The memory of its data, of a training step and of scoring."""
        return footprint(self, batch)

    def label_counts(self) -> Tensor | None:
        """How many samples of each class each client holds, [N, classes]."""
        return self.partition.label_counts(self.y.cpu(), self.task.classes) if self.task.classes else None

    def describe(self) -> str:
        """The problem in a few words."""
        skew = ""
        if self.task.classes:
            skew = f" (heterogeneity {self.partition.heterogeneity(self.y.cpu(), self.task.classes):.2f})"
        return f"{self.name}: {self.clients.n} clients{skew}, {self.layout.d:,} parameters"

    def fingerprint(self) -> str:
        """A digest of the data set."""
        return self.dataset_fingerprint

    def __getstate__(self) -> dict[str, Any]:
        """The state for a worker, without cached objects and objects that only the server needs."""
        if any(parameter_hooks(p) for p in self.module.parameters()):
            what = f"the network {type(self.module).__name__}"
            rule = "a parameter has a hook, which cannot be sent to another process"
            raise ArnoError(what, rule, "use engine=serial, or change the gradient in the network's forward")
        behind = ("build", "_scorer", "_scored", "stack")
        return {name: value for name, value in vars(self).items() if name not in behind}

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """Held-out samples and targets. `balanced` is made from `val` once; the task chooses its samples."""
        if name == "balanced" and name not in self.held_out:
            x, y = self.split("val")
            rows = self.task.balanced(y, self.seed).to(self.device)
            self.held_out[name] = x[rows], y[rows]
        if name not in self.held_out:
            raise ArnoError(f"no {name} data", "this score needs them", "set data.val above 0" if name == "val" else "")
        return self.held_out[name]

    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on the samples of each client."""
        return self._losses(w, (self.partition[k] for k in clients.tolist()))

    def batch_losses(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """The mean loss on one mini-batch of each client's samples, drawn without replacement for round t."""
        batches = []
        for k, size in zip(clients.tolist(), batch_size.tolist(), strict=True):
            rows = self.partition[k]
            batches.append(rows[torch.randperm(len(rows), generator=stream(seed, "select/batch", t, k))[:size]])
        return self._losses(w, batches)

    def check_batches(self, batch_size: Values) -> None:
        """Refuse a batch of one sample if BatchNorm would get a single value per channel from it."""
        if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self.module.modules()):
            return
        sizes, batch = self.partition.sizes, batch_size[torch.arange(self.clients.n)].long()
        alone = ((sizes % batch == 1) | (batch == 1)).nonzero()[:, 0]
        if len(alone) and not self._trains_on_one():
            k = int(alone[0])
            name = self.partition.names[k] if self.partition.names else k
            what = f"client {name} with {int(sizes[k])} samples in batches of {int(batch[k])}"
            rule = "a batch has one sample, and BatchNorm cannot compute a variance from it"
            raise ArnoError(what, rule, "use another local.batch_size, or GroupNorm")

    def _trains_on_one(self) -> bool:
        """Whether the network can train on a batch of one sample."""
        with seeded(0), torch.no_grad():
            try:
                deepcopy(self.module).train()(self.inputs(self.x[:1]))
            except ValueError:
                return False
        return True

    def model(self, w: Vec) -> nn.Module:
        """The network with the weights `w`, in evaluation mode."""
        module = deepcopy(self.module)
        bind(module, w.detach().clone())
        return module.eval()

    def _losses(self, w: Vec, samples: Iterable[Tensor]) -> Tensor:
        out = []
        for rows in (rows.to(self.device) for rows in samples):
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            sums = [self.task.loss(z, b, "sum") for z, b in self._forward(w, x, y)]
            out.append(torch.stack(sums).sum() / len(rows))
        return torch.stack(out)

    def _tally(self, w: Vec, x: Tensor, y: Tensor) -> Tensor:
        return self.task.join([self.task.tally(outputs, targets) for outputs, targets in self._forward(w, x, y)])

    def _first_passes(self, channels_last: bool | None) -> None:
        """The passes of the network that the server runs before the first round."""
        self.channels_last = choose(self.module, self.shape, channels_last, self.some).channels_last
        saved_per_sample(self)
        with torch.no_grad():
            deepcopy(self.module).eval()(self.some)

    @torch.inference_mode()
    def _forward(self, w: Vec, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        self._scorer.w.copy_(w)
        self._scored.begin()
        for some, targets in zip(x.split(self.eval_batch), y.split(self.eval_batch), strict=True):
            yield self._scorer.outputs(self.inputs(some)), targets

    @cached_property
    def _scorer(self) -> Kernel:
        with torch.inference_mode(False):
            return for_scoring(self.module, self.shape, self.task, self.channels_last, self.some)

    @cached_property
    def _scored(self) -> Carried:
        return Carried(self._scorer)

    def _targets(self, y: Tensor) -> Tensor:
        """Targets on the device. Floating-point targets get the shape [n, outputs]."""
        y = y.to(self.device)
        return y.view(len(y), -1) if y.is_floating_point() else y

    def _make(self, seed: int) -> nn.Module:
        with seeded(key(seed, "init")):
            return self.build().to(self.device, self.dtype)


def declared(task: Task, splits: Iterable[str], own: bool = False) -> tuple[Metric, ...]:
    """The metrics that a round of this task records. own: also the metrics on the clients' own test samples."""
    held = [metric.on(split) for split in splits for metric in task.metrics]
    held += [*own_metrics(task, PERSONAL), *own_metrics(task, GLOBAL)] if own else []
    return (*held, *task.client_metrics, TRAIN_LOSS)


@dataclass
class View:
    """What a term of the loss can read: the batch, its outputs and features, and the network with other weights.

    embedding: the input of the last linear layer, one row per sample or per position of a sequence.
    levels: the features of the levels of a `Network`; empty for other networks.
    """

    learner: SupervisedLearner
    job: Job
    x: Tensor
    y: Tensor
    outputs: Tensor
    embedding: Tensor
    levels: list[Tensor]

    def frozen(self, w: Vec) -> Tensor:
        """The embedding of the batch with the weights `w`, without gradients."""
        with torch.no_grad():
            views = {f"network.{name}": view for name, view in self._views(w).items()}
            z: Tensor = torch.func.functional_call(_Embedding(self.learner.network), views, (self.x,))
        return rows(z)

    def frozen_outputs(self, w: Vec) -> Tensor:
        """The outputs of the batch with the weights `w` in evaluation mode, without gradients."""
        module = self.learner.module
        module.eval()
        try:
            with torch.no_grad():
                z: Tensor = torch.func.functional_call(module, self._views(w), (self.x,))
        finally:
            module.train()
        return z

    def _views(self, w: Vec) -> dict[str, Tensor]:
        window = self.job.window
        # A copy has a fixed alignment in memory, and the rounding of kernels depends on the alignment.
        w = w[window.index] if window is not None and window.extract else w.clone()
        return self.learner.layout.views(w)


def rows(z: Tensor) -> Tensor:
    """Features as a matrix: one row per sample, or one row per position of a sequence."""
    return z.flatten(0, -2)


class _Embedding(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.embed(x)


class SupervisedLearner:
    """Trains a network on the batches of a client; a kernel computes the gradients."""

    def __init__(self, problem: Supervised, kernel: Kernel) -> None:
        self.problem, self.kernel = problem, kernel
        self.w, self.p, self.g, self.layout = kernel.w, kernel.p, kernel.g, kernel.layout
        self._shuffle, self._carried = torch.Generator(), Carried(kernel)

    @property
    def module(self) -> nn.Module:
        """The network that trains."""
        return self.kernel.module

    @property
    def network(self) -> Network:
        """The network that trains, as a `Network` with an embedding; an error if it is another module."""
        if not isinstance(self.module, Network):
            name = type(self.module).__name__
            rule = "it needs the embedding of a Network"
            raise ArnoError(f"a loss term on {name}", rule, "derive the model from arno's Network")
        return self.module

    def batches(self, job: Job) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of all epochs. Each epoch has a new random order; its last batch can be smaller."""
        problem, size = self.problem, job.batch_size
        rows = problem.partition[job.client]
        self._carried.begin()
        if job.sample_share < 1:
            count = max(1, int(job.sample_share * len(rows) + 1e-9))
            rows = rows[torch.randperm(len(rows), generator=job.stream("share"))[:count]]
        shuffle = job.stream("batches", self._shuffle)
        augment = job.stream("augment") if job.sgd.augment else None
        chunk = max(1, CHUNK // (size * problem.shape.numel())) * size
        with self._own_draws(job):
            for _ in range(job.epochs):
                order = rows.index_select(0, torch.randperm(len(rows), generator=shuffle)) if job.sgd.shuffle else rows
                order = order.to(problem.device)
                for piece in order.split(chunk) if len(order) > chunk else (order,):
                    x, y = problem.x.index_select(0, piece), problem.y.index_select(0, piece)
                    if augment is not None:
                        x = problem.transform.augment(x, augment)
                    x = self.kernel.arranged(problem.inputs(x))
                    yield from zip(x.split(size), y.split(size), strict=True)

    def _own_draws(self, job: Job) -> AbstractContextManager[None]:
        """Seed the random numbers of the network (dropout), so that they do not depend on the order of clients."""
        if not self.kernel.draws:
            return nullcontext()
        return seeded(key(job.seed, "network", job.round, job.client))

    def curvature(self, batch: tuple[Tensor, Tensor], job: Job, direction: Vec) -> Vec:
        """∇²ℓ(w; batch) · direction, computed as the derivative of the gradient."""
        with torch.inference_mode(False), torch.enable_grad():
            x, y, w = (tensor.clone() for tensor in (*batch, self.w))
            outputs = torch.func.functional_call(self.module, self.layout.views(w.requires_grad_()), (x,))
            (g,) = torch.autograd.grad(self.problem.task.loss(outputs, y), w, create_graph=True)
            (product,) = torch.autograd.grad(g[: len(direction)] @ direction.clone(), w)
        trained = self.layout.trained
        return product[: len(direction)] * (1 if trained is None else trained.to(product))

    def size(self, batch: tuple[Tensor, Tensor]) -> int:
        """Samples in a batch."""
        return len(batch[1])

    def autograd(self, job: Job) -> bool:
        """True if the kernel uses autograd, or if the method changes the loss."""
        return not self.kernel.written_out or bool(job.terms) or job.criterion is not None

    def gradient(self, batch: tuple[Tensor, Tensor], job: Job) -> Tensor:
        """Write ∇ℓ into `g`; return ℓ, the task's mean loss plus the terms of the method."""
        x, y = batch
        if not job.terms and job.criterion is None:
            loss = self.kernel.gradient(x, y)
            self._carried.follow()
            return loss
        self.g.zero_()
        with self.kernel.precision():
            view = self._view(x, y, job)
            loss = self.problem.task.loss(view.outputs, y) if job.criterion is None else job.criterion(view)
            loss = loss + sum(term(view) for term in job.terms)
        loss.backward()
        self._carried.follow()
        return loss.detach()

    def _view(self, x: Tensor, y: Tensor, job: Job) -> View:
        """The view of a batch, from one forward pass that keeps the embedding."""
        levels: list[Tensor] = []
        if isinstance(self.module, Network):
            z = self.module.embed(x, levels)
            return View(self, job, x, y, self.module.head(z).to(self.w.dtype), rows(z), levels)
        seen: list[Tensor] = []
        last = last_linear(self.module)
        hook = last[1].register_forward_pre_hook(lambda layer, given: seen.append(given[0])) if last else None
        outputs: Tensor = self.module(x).to(self.w.dtype)
        if hook is not None:
            hook.remove()
        return View(self, job, x, y, outputs, rows(seen[-1] if seen else outputs), levels)

    def label_counts(self, client: int) -> Tensor:
        """How many samples of each class the client holds, [classes]."""
        labels = self.problem.y.index_select(0, self.problem.partition[client].to(self.problem.device))
        return torch.bincount(labels, minlength=self.problem.task.classes)
