"""What a task is. `task=auto` chooses one from the data."""

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
    """What an output means: the loss of (outputs, targets), statistics that add up over batches, metrics from them.

    outputs: how many numbers the network returns for a sample.
    classes: how many classes there are; 0 where the targets are no classes.
    metrics: what `scores` returns, declared; the first one selects the best model and is compared by default.
    client_metrics: what `spread` returns, declared; see `over_clients`.
    positions: whether the network returns outputs for every position of a sequence, [n, length, outputs].

    A task must define `loss`, `tally` and `scores`. The gradients below follow from `loss`; a task that writes them out
    makes training faster.
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
        """Statistics of a batch, a float64 vector; `join` makes one vector of those of several batches."""

    @abstractmethod
    def scores(self, tally: Tensor) -> dict[str, float]:
        """The metrics, by name, of joined statistics; NaN for a metric that these samples do not define."""

    def join(self, tallies: Sequence[Tensor]) -> Tensor:
        """The statistics of several batches as one vector: their sum.

        A task whose vectors have different lengths overrides it. Zeros may follow such a vector.
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
        """The same for many models at once: Σ_i weight_i · loss_i of each row, and its gradient.

        outputs: [rows, batch, outputs]. targets: [rows, batch, …]. weight: [rows, batch].
        """
        with torch.inference_mode(False), torch.enable_grad():
            z = outputs.clone().requires_grad_()
            each = self.loss(z.flatten(0, 1), targets.flatten(0, 1).clone(), "none").view(weight.shape)
            losses = (each * weight).sum(1)
            (delta,) = torch.autograd.grad(losses.sum(), z)
        return losses.detach(), delta

    def spread(self, tally: Tensor, label_counts: Tensor) -> dict[str, float]:
        """How well a model serves clients that hold these labels, from the statistics of the test data."""
        return {}

    def balanced(self, targets: Tensor, seed: int) -> Tensor:
        """The samples on which a model is scored so that all kinds of targets count alike; all of them by default."""
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
    """The name of the task that the targets leave no doubt about."""
    if targets.is_floating_point():
        return "regression"
    if targets.dim() == 2:
        return "multilabel" if several(targets, len(classes)) else "tokens"
    return "tokens" if PADDING in classes else "classification"


def several(targets: Tensor, labels: int) -> bool:
    """Whether every sample has a 0 or a 1 for each of so many labels."""
    return targets.dim() == 2 and targets.shape[1] == labels and bool(((targets == 0) | (targets == 1)).all())
