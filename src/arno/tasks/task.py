"""What a task is. `task=auto` chooses one from the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.metric import Metric
from ..errors import ArnoError
from . import tasks

Reduction = Literal["mean", "sum", "none"]


class Task(ABC):
    """What an output means: the loss of (outputs, targets), statistics that add up over batches, metrics from them.

    outputs: how many numbers the network returns for a sample.
    classes: how many classes there are; 0 where the targets are no classes.
    metrics: what `scores` returns, declared; the first one selects the best model and is compared by default.
    client_metrics: what `spread` returns, declared; see `over_clients`.

    A task must define `loss`, `tally` and `scores`. The gradients below follow from `loss`; a task that writes them out
    makes training faster.
    """

    name: str
    outputs: int
    classes: int = 0
    metrics: tuple[Metric, ...]
    client_metrics: tuple[Metric, ...] = ()

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The loss of a batch: its mean, its sum, or the loss of every sample."""

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Statistics of a batch, a float64 vector; the vectors of several batches are added up."""

    @abstractmethod
    def scores(self, tally: Tensor) -> dict[str, float]:
        """The metrics, by name, of added statistics."""

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
    """Classification for labels, regression for numbers.

    >>> auto(torch.tensor([0, 1]), ("a", "b")).name, auto(torch.tensor([0.5, 1.5]), ()).name
    ('classification', 'regression')
    """
    if targets.is_floating_point():
        return tasks.get("regression")(targets, classes)  # type: ignore[no-any-return]
    if not classes:
        raise ArnoError("task=auto", "the targets are whole numbers without class names", "set task=classification")
    return tasks.get("classification")(targets, classes)  # type: ignore[no-any-return]
