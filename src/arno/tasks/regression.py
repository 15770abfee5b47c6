"""Regression: the outputs are estimates of the targets.

loss:  ‖z − (y − μ)/σ‖² / outputs, the mean over the samples; μ, σ: mean and deviation of the training targets
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.metric import Metric
from ..errors import ArnoError
from . import tasks
from .task import Reduction, Task

RMSE = Metric("rmse", "RMSE", "less", low=0, short="rmse", axis="error")
MAE = Metric("mae", "MAE", "less", low=0, short="mae", axis="error")
R2 = Metric("r2", "R²", high=1, short="R²")
LOSS = Metric("loss", "loss", "less", low=0, axis="loss")
#: Targets count as equal if Σ (y − mean)² is at most this share of Σ (y − μ)²; such a small sum is rounding error.
EQUAL = 1e-12
#: Targets count as one number if their deviation is at most this share of their mean: it is rounding error.
CONSTANT = 1e-12


@tasks.register("regression")
def regression(targets: Tensor, classes: Sequence[str], *, scale: bool = True) -> Task:
    """Numbers: squared error; RMSE, MAE, R².

    scale: train on targets with mean 0 and deviation 1 (of the training data); scores are in the targets' own units.
    """
    if not targets.is_floating_point():
        rule = "the targets are labels of classes"
        raise ArnoError("task=regression", rule, "use task=classification, or store the targets as floats")
    y = targets.double().view(len(targets), -1)
    if not scale:
        return Regression(torch.zeros(y.shape[1]), torch.ones(y.shape[1]))
    mean, std = y.mean(0), y.std(0, correction=0)
    return Regression(mean, torch.where(std > CONSTANT * mean.abs(), std, 1.0))


class Regression(Task):
    """Mean squared error of scaled targets; RMSE, MAE and R² in the targets' own units.

    mean, std: [outputs]; an output z means the estimate mean + std · z.

    >>> task = Regression(torch.tensor([10.0]), torch.tensor([2.0]))
    >>> scores = task.scores(task.tally(torch.tensor([[0.0], [1.0]]), torch.tensor([[11.0], [12.0]])))
    >>> round(scores["rmse"], 4), scores["mae"], scores["r2"]
    (0.7071, 0.5, -1.0)
    """

    name = "regression"
    metrics = (RMSE, MAE, R2, LOSS)

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std, self.outputs = mean.double(), std.double(), len(mean)

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The squared error of scaled targets; for each sample, the mean over its outputs."""
        wanted = self.scaled(targets, outputs)
        if reduction == "mean":
            return F.mse_loss(outputs, wanted)
        each = (outputs - wanted).square().mean(1)
        return each.sum() if reduction == "sum" else each

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples and loss; then for each output Σ error², Σ |error|, Σ (y − μ), Σ (y − μ)²."""
        mean, std = self.mean.to(outputs.device), self.std.to(outputs.device)
        y = targets.double() - mean
        error = outputs.double() * std - y
        head = torch.stack([torch.tensor(float(len(y)), device=y.device), self.loss(outputs, targets, "sum").double()])
        return torch.cat([head, error.square().sum(0), error.abs().sum(0), y.sum(0), y.square().sum(0)])

    def scores(self, tally: Tensor) -> dict[str, float]:
        """RMSE and MAE over all outputs, the mean R² of the outputs, the mean loss.

        R² is not defined if all targets of an output are equal; then the mean R² leaves this output out.
        """
        n, loss = tally[:2].tolist()
        squared, absolute, total, spread = tally[2:].view(4, self.outputs)
        around = spread - total.square() / n
        r2 = torch.where((n > 1) & (around > EQUAL * spread), 1 - squared / around, torch.nan)
        return {
            "rmse": float((squared.sum() / (n * self.outputs)).sqrt()),
            "mae": float(absolute.sum() / (n * self.outputs)),
            "r2": float(r2.nanmean()),
            "loss": loss / n,
        }

    def gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """δ = 2 (z − (y − μ)/σ) / (n · outputs)."""
        error = outputs - self.scaled(targets, outputs)
        return error.square().mean(), error.mul_(2 / error.numel())

    def row_gradients(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The losses and gradients of many models at once; see `Task.row_gradients`."""
        error = outputs - self.scaled(targets, outputs)
        losses = (error.square().mean(2) * weight).sum(1)
        return losses, error.mul_(weight[..., None] * (2 / self.outputs))

    def scaled(self, targets: Tensor, like: Tensor) -> Tensor:
        """(y − μ)/σ, with the type and device of `like`."""
        mean, std = self.mean.to(like.device), self.std.to(like.device)
        return ((targets.double() - mean) / std).to(like.dtype)
