"""The base class of tasks. `task=auto` chooses a task from the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.metric import Metric
from ..core.problem import added
from ..errors import ArnoError
from . import tasks

Reduction = Literal["mean", "sum", "none"]
#: The name of the token that fills short sequences.
PADDING = "<pad>"


class Task(ABC):
    """What the outputs of a network mean: their loss, statistics that can be joined over batches, and metrics.

    outputs: how many numbers the network returns for a sample.
    classes: the number of classes; 0 if the targets are not classes.
    metrics: the declarations of what `scores` returns. The first metric selects the best model, and comparisons use it
        by default.
    client_metrics: the declarations of what `spread` returns; see `over_clients`.
    positions: whether the network returns outputs for every position of a sequence, [n, length, outputs].

    A task must define `loss`, `tally` and `scores`. By default autograd computes the gradients from `loss`; a task that
    defines `gradient` and `row_gradients` by formulas makes training faster.
    """

    name: str
    outputs: int
    classes: int = 0
    metrics: tuple[Metric, ...]
    client_metrics: tuple[Metric, ...] = ()
    positions: bool = False

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The loss of a batch: its mean, its sum, or the loss of every sample."""

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The statistics of a batch, a float64 vector; `join` combines the vectors of several batches."""

    @abstractmethod
    def scores(self, tally: Tensor) -> dict[str, float]:
        """The metrics by name, from joined statistics; NaN for a metric that is not defined for these samples."""

    def join(self, tallies: Sequence[Tensor]) -> Tensor:
        """The statistics of several batches as one vector: their sum.

        A task whose vectors have different lengths overrides this method. Such a vector may have zeros at its end.
        """
        return added(tallies)

    def gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch and its gradient with respect to the outputs."""
        with torch.inference_mode(False), torch.enable_grad():
            z = outputs.clone().requires_grad_()
            loss = self.loss(z, targets.clone())
            (delta,) = torch.autograd.grad(loss, z)
        return loss.detach(), delta

    def row_gradients(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """For many models at once: Σ_i weight_i · loss_i of each row (one row per model), and its gradient.

        outputs: [rows, batch, outputs]. targets: [rows, batch, …]. weight: [rows, batch].
        """
        with torch.inference_mode(False), torch.enable_grad():
            z = outputs.clone().requires_grad_()
            each = self.loss(z.flatten(0, 1), targets.flatten(0, 1).clone(), "none").view(weight.shape)
            losses = (each * weight).sum(1)
            (delta,) = torch.autograd.grad(losses.sum(), z)
        return losses.detach(), delta

    def spread(self, tally: Tensor, label_counts: Tensor) -> dict[str, float]:
        """Statistics over clients with these labels, computed from the statistics of the test data."""
        return {}

    def balanced(self, targets: Tensor, seed: int) -> Tensor:
        """Indices of samples in which all kinds of targets have the same weight; by default, all samples."""
        return torch.arange(len(targets))


@tasks.register("auto")
def auto(targets: Tensor, classes: Sequence[str]) -> Task:
    """Classification for labels, regression for numbers, multilabel for several labels of 0 or 1, tokens for text.

    >>> auto(torch.tensor([0, 1]), ("a", "b")).name, auto(torch.tensor([0.5, 1.5]), ()).name
    ('classification', 'regression')
    >>> auto(torch.ones(2, 2).long(), ("a", "b")).name, auto(torch.tensor([2, 1]), (PADDING, "a", "b")).name
    ('multilabel', 'tokens')
    """
    if not targets.is_floating_point() and not classes:
        raise ArnoError("task=auto", "the targets are whole numbers without class names", "set task=classification")
    kind = chosen(targets, classes)
    if kind == "multilabel" and bool((targets.sum(1) == 1).all()):
        rule = "every sample has exactly one label that is 1, so they may be classes"
        raise ArnoError("task=auto", rule, "give classes as y.argmax(1), or set task=multilabel")
    made: Task = tasks.get(kind)(targets, classes)
    return made


def chosen(targets: Tensor, classes: Sequence[str]) -> str:
    """The name of the task that fits the targets."""
    if targets.is_floating_point():
        return "regression"
    if targets.dim() == 2:
        return "multilabel" if several(targets, len(classes)) else "tokens"
    return "tokens" if PADDING in classes else "classification"


def several(targets: Tensor, labels: int) -> bool:
    """Whether the targets are a 0 or a 1 for each sample and each of `labels` labels."""
    return targets.dim() == 2 and targets.shape[1] == labels and bool(((targets == 0) | (targets == 1)).all())
