"""A task in one file: quantile regression. The network estimates the value below which a share q of the targets lies.

loss:  max(q (y − z), (q − 1) (y − z)), the mean over the samples   (Koenker & Bassett, Econometrica 1978)

    arno run task=custom task.target=examples/my_task.py:factory task.quantile=0.9 data=sklearn data.name=diabetes

Arno calls the factory with the training targets, the class names (none here) and the settings. A task says what the
outputs of a network mean: the loss, statistics of a batch that add up over batches, and metrics from their sum. The
metrics are declared; the first one selects the best model and is compared by default. All engines work with a task, and
all methods that need no classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arno import ArnoError
from arno.core.metric import Metric
from arno.tasks.task import Reduction, Task


def factory(targets: Tensor, classes: Sequence[str], *, quantile: float = 0.5) -> Task:
    """quantile: q, above 0 and below 1; 0.5 is the median."""
    if not targets.is_floating_point():
        raise ArnoError("the task quantile", "the targets are labels of classes", "use task=classification")
    if not 0 < quantile < 1:
        raise ArnoError(f"task.quantile = {quantile}", "it must be above 0 and below 1", "try task.quantile=0.9")
    return Quantile(quantile, float(targets.mean()), float(targets.std()))


class Quantile(Task):
    """An output z means the estimate mean + std · z."""

    name = "quantile"
    outputs = 1
    metrics = (
        Metric("pinball", "pinball loss", "less", low=0, short="pinball"),
        Metric("coverage_error", "error of the coverage", "less", low=0, high=1, short="coverage error"),
    )

    def __init__(self, quantile: float, mean: float, std: float) -> None:
        self.q, self.mean, self.std = quantile, mean, std

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        error = (targets - self.mean) / self.std - outputs
        each = torch.maximum(self.q * error, (self.q - 1) * error)[:, 0]
        return each if reduction == "none" else each.sum() if reduction == "sum" else each.mean()

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of samples, their summed loss in units of the targets, the number of targets that are covered."""
        covered = (targets <= self.mean + self.std * outputs).sum()
        n = torch.tensor(len(targets), device=outputs.device)
        return torch.stack([n, self.std * self.loss(outputs, targets, "sum"), covered]).double()

    def scores(self, tally: Tensor) -> dict[str, float]:
        n, loss, covered = tally.tolist()
        return {"pinball": loss / n, "coverage_error": abs(covered / n - self.q)}
