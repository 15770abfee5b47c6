"""Classification: the outputs are logits, the target is the number of a class.

loss:  −log softmax(z)_y, the mean over the samples
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.metric import DECILES, Metric, over_clients
from ..core.seeds import numpy_stream
from ..errors import ArnoError
from . import tasks
from .task import Reduction, Task

F1 = Metric("f1", "F1", low=0, high=1, short="f1", axis="score")
ACCURACY = Metric("accuracy", "accuracy", low=0, high=1, short="acc", axis="score")
LOSS = Metric("loss", "loss", "less", low=0, axis="loss")


@tasks.register("classification")
def classification(targets: Tensor, classes: Sequence[str]) -> Task:
    """One of several classes: cross-entropy; F1, accuracy, loss."""
    if targets.is_floating_point() or not classes:
        raise ArnoError("task=classification", "the targets are not classes", "use task=regression, or task=auto")
    return Classification(len(classes))


class Classification(Task):
    """Mean cross-entropy; F1 weighted by class, accuracy, loss.

    >>> task = Classification(2)
    >>> task.scores(task.tally(torch.eye(2)[[0, 1, 1, 1]], torch.tensor([0, 0, 1, 1])))["accuracy"]
    0.75
    """

    name = "classification"
    metrics = (F1, ACCURACY, LOSS)
    client_metrics = over_clients(ACCURACY)

    def __init__(self, classes: int) -> None:
        self.outputs = self.classes = classes

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The cross-entropy."""
        return F.cross_entropy(outputs, targets, reduction=reduction)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Counts of (true class, predicted class), then the summed loss."""
        counts = torch.bincount(targets * self.classes + outputs.argmax(1), minlength=self.classes**2)
        return torch.cat([counts.double(), self.loss(outputs, targets, "sum").double()[None]])

    def scores(self, tally: Tensor) -> dict[str, float]:
        """Weighted F1, accuracy and mean loss."""
        confusion = self.confusion(tally)
        loss = float(tally[-1]) / int(confusion.sum())
        return {"f1": weighted_f1(confusion), "accuracy": accuracy(confusion), "loss": loss}

    def confusion(self, tally: Tensor) -> Tensor:
        """How many samples of each class (rows) were predicted to be of each class (columns)."""
        return tally[:-1].long().view(self.classes, self.classes)

    def gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """δ = (softmax(z) − 1_y) / n."""
        log_p = outputs.log_softmax(1)
        loss = F.nll_loss(log_p, targets)
        one = identity(outputs.shape[1], outputs.dtype, outputs.device).index_select(0, targets)
        return loss, log_p.exp_().sub_(one).div_(len(targets))

    def row_gradients(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Task.row_gradients`. With classes on the second axis, a vector instruction covers several samples."""
        log_p = outputs.mT.log_softmax(1)  # [rows, classes, batch]
        picked = targets[:, None]
        losses = -(log_p.gather(1, picked)[:, 0] * weight).sum(1)
        minus = torch.full_like(picked, -1, dtype=log_p.dtype)
        return losses, log_p.exp_().scatter_add_(1, picked, minus).mul_(weight[:, None]).mT

    def spread(self, tally: Tensor, label_counts: Tensor) -> dict[str, float]:
        """Statistics over the clients of the accuracy on test data with each client's labels, Σ_c share_kc · recall_c.

        They are the mean, the standard deviation, the mean of the worst tenth, and deciles: `client_accuracy_pQ` is the
        accuracy that Q percent of the clients do not exceed.
        """
        confusion = self.confusion(tally)
        recall = confusion.diagonal().double() / confusion.sum(1).clamp(min=1)
        counts = label_counts.double()
        each = counts / counts.sum(1, keepdim=True) @ recall.cpu()
        worst = each.sort().values[: max(1, len(each) // 10)]
        spread = {"mean": each.mean(), "std": each.std(correction=0), "worst_decile": worst.mean()}
        deciles = np.quantile(each.numpy(), np.linspace(0, 1, len(DECILES)))
        spread |= {f"p{q}": value for q, value in zip(DECILES, deciles, strict=True)}
        return {f"client_accuracy_{name}": float(value) for name, value in spread.items()}

    def balanced(self, targets: Tensor, seed: int) -> Tensor:
        """Samples that give every class the median class count; see the function `balanced`."""
        return balanced(targets, self.classes, seed)


@lru_cache(maxsize=16)
def identity(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The identity matrix, made once. Row y is 1_y."""
    with torch.inference_mode(False):
        return torch.eye(n, dtype=dtype, device=device)


def accuracy(confusion: Tensor) -> float:
    """The share of samples on the diagonal."""
    return float(confusion.diagonal().sum() / confusion.sum())


def weighted_f1(confusion: Tensor) -> float:
    """F1 per class, weighted by how often the class occurs. A class that is never predicted and never true has F1 = 0.

    >>> round(weighted_f1(torch.tensor([[2, 1], [0, 1]])), 4)
    0.7667
    """
    c = confusion.to(torch.float64)
    hits, true, predicted = c.diagonal(), c.sum(1), c.sum(0)
    f1 = 2 * hits / (true + predicted).clamp(min=1)
    return float((f1 * true).sum() / true.sum())


def balanced(y: Tensor, n_classes: int, seed: int) -> Tensor:
    """Indices of samples in which every class has the median class count m = ⌊median of the counts of present classes⌋.

    From a larger class, m samples are drawn without replacement. A smaller class keeps all its samples, and further
    samples of it are drawn with replacement. An absent class stays absent. Indices are ordered by class, then by value.

    >>> y = torch.tensor([0] * 5 + [1] * 3 + [3])
    >>> torch.bincount(y[balanced(y, 4, seed=0)], minlength=4).tolist()
    [3, 3, 0, 3]
    """
    labels = np.asarray(y.cpu(), dtype=np.int64)
    counts = np.bincount(labels, minlength=n_classes)
    present = np.flatnonzero(counts)
    if not len(present):
        return torch.empty(0, dtype=torch.int64)
    median = int(np.median(counts[present]))
    random = numpy_stream(seed, "balance")
    chosen = []
    for label in present:
        members = np.flatnonzero(labels == label)
        if len(members) >= median:
            chosen.append(np.sort(random.choice(members, median, replace=False)))
        else:
            chosen.append(np.sort(np.append(members, random.choice(members, median - len(members)))))
    return torch.from_numpy(np.concatenate(chosen))
