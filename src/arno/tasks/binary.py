"""Binary classification: the larger the score of a sample, the more likely is the second class.

loss:  −log σ(s) for the second class, −log σ(−s) for the first; s = z with one output, z₁ − z₀ with two
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from ..core.metric import Metric
from ..errors import ArnoError
from . import tasks
from .ranking import Ranked, auroc, average_precision
from .task import Reduction, Task

AUROC = Metric("auroc", "AUROC", low=0, high=1, short="auroc", axis="score")
PRECISION = Metric("ap", "average precision", low=0, high=1, short="ap", axis="score")
F1 = Metric("f1", "F1", low=0, high=1, short="f1", axis="score")
ACCURACY = Metric("accuracy", "accuracy", low=0, high=1, short="acc", axis="score")
LOSS = Metric("loss", "log loss", "less", low=0, short="log loss", axis="loss")


@tasks.register("binary")
def binary(
    targets: Tensor, classes: Sequence[str], *, logits: Literal["one", "two"] = "one", pos_weight: float = 1.0
) -> Task:
    """Two classes: log loss; AUROC, average precision, F1 and accuracy, with the second class as the positive class.

    logits: the outputs of the network. one: the score; two: one output per class, which methods for classes need.
    pos_weight: the weight of a sample of the second class in the training loss.
    """
    if targets.is_floating_point() or targets.dim() != 1 or len(classes) != 2:
        found = f"{len(classes)} classes" if classes and targets.dim() == 1 else "no class label for each sample"
        remedy = "use task=auto" if len(classes) != 2 else "use task=multilabel"
        raise ArnoError("task=binary", f"it needs two classes, and the data have {found}", remedy)
    if not 0 < pos_weight < float("inf"):
        raise ArnoError(f"task.pos_weight = {pos_weight:g}", "it must be a positive number", "use 1 for no weight")
    return Binary(2 if logits == "two" else 1, pos_weight)


class Binary(Ranked):
    """The log loss of the second class against the first.

    >>> import torch
    >>> task = Binary()
    >>> scores = task.scores(task.tally(torch.tensor([[2.0], [-1.0], [1.0]]), torch.tensor([1, 0, 0])))
    >>> scores["auroc"], scores["ap"], round(scores["f1"], 4), round(scores["accuracy"], 4)
    (1.0, 1.0, 0.6667, 0.6667)
    """

    name = "binary"
    classes = 2
    labels = 1
    metrics = (AUROC, PRECISION, F1, ACCURACY, LOSS)

    def __init__(self, outputs: int = 1, pos_weight: float = 1.0) -> None:
        self.outputs, self.pos_weight = outputs, pos_weight

    def margins(self, outputs: Tensor) -> Tensor:
        """s, [n, 1]."""
        return outputs if self.outputs == 1 else outputs[..., 1:] - outputs[..., :1]

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The log loss; a sample of the second class has the weight pos_weight."""
        each = self.log_losses(outputs, targets)
        if self.pos_weight != 1:
            each = each * (1 + (self.pos_weight - 1) * targets)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    def log_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + e^−s) for the second class, log(1 + e^s) for the first."""
        margins = self.margins(outputs)[..., 0]
        return F.binary_cross_entropy_with_logits(margins, targets.to(margins.dtype), reduction="none")

    def scores(self, tally: Tensor) -> dict[str, float]:
        """AUROC and average precision of the scores; F1 and accuracy, where a positive score means the second class."""
        counts = self.counts(tally)
        positive, negative = counts.ranked(0)
        wrong = float(counts.false[0] + counts.missed[0])
        return {
            "auroc": auroc(positive, negative),
            "ap": average_precision(positive, negative),
            "f1": counts.f1()[0],
            "accuracy": 1 - wrong / counts.n,
            "loss": counts.loss / counts.n,
        }
