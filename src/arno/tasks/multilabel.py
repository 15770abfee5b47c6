"""Several labels for each sample, each of them 0 or 1.

loss:  the mean over the labels of −log σ(z_l) where the label is 1 and −log σ(−z_l) where it is 0
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from ..core.metric import Metric
from ..errors import ArnoError
from . import tasks
from .ranking import Ranked, auroc, average_precision, mean_of, ratio
from .task import Reduction, Task, several


def score(name: str, label: str) -> Metric:
    """A score from 0 to 1."""
    return Metric(name, label, low=0, high=1, short=label, axis="score")


@tasks.register("multilabel")
def multilabel(targets: Tensor, classes: Sequence[str]) -> Task:
    """Several labels of 0 or 1 for each sample: log loss; AUROC, average precision and F1, macro and micro."""
    if not several(targets, targets.shape[-1]):
        rule = "it needs a 0 or a 1 for each label of a sample, [n, labels]"
        raise ArnoError(f"task=multilabel on targets of shape {list(targets.shape)}", rule, "use task=auto")
    return Multilabel(targets.shape[1])


class Multilabel(Ranked):
    """The mean log loss of the labels.

    macro: the mean over the labels for which the score is defined. micro: the score of all (sample, label) pairs.
    """

    name = "multilabel"
    metrics = (
        score("auroc", "macro AUROC"),
        score("micro_auroc", "micro AUROC"),
        score("ap", "macro average precision"),
        score("micro_ap", "micro average precision"),
        score("f1", "macro F1"),
        score("micro_f1", "micro F1"),
        Metric("loss", "log loss", "less", low=0, short="log loss", axis="loss"),
    )

    def __init__(self, labels: int) -> None:
        self.outputs = self.labels = labels

    def margins(self, outputs: Tensor) -> Tensor:
        """The outputs are the scores of the labels."""
        return outputs

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The log loss of each sample: the mean over its labels."""
        each = self.log_losses(outputs, targets)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    def log_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean log loss over the labels of each sample, [n]."""
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(-1)

    def scores(self, tally: Tensor) -> dict[str, float]:
        """Macro and micro scores; a positive output means that the sample has the label."""
        counts = self.counts(tally)
        ranked = [counts.ranked(label) for label in range(self.labels)]
        hits, false, missed = (float(each.sum()) for each in (counts.hits, counts.false, counts.missed))
        return {
            "auroc": mean_of([auroc(*pair) for pair in ranked]),
            "micro_auroc": auroc(*counts.pooled()),
            "ap": mean_of([average_precision(*pair) for pair in ranked]),
            "micro_ap": average_precision(*counts.pooled()),
            "f1": mean_of(counts.f1()),
            "micro_f1": ratio(2 * hits, 2 * hits + false + missed),
            "loss": counts.loss / counts.n,
        }
