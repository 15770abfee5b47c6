"""A metric in one file: the balanced accuracy, beside the metrics that classification has.

balanced accuracy = mean over the classes of (samples of the class that are predicted correctly / samples of the class)

    arno run task=custom task.target=examples/my_metric.py:factory
    arno compare task=custom task.target=examples/my_metric.py:factory method=fedavg,fedprox seed=0..2 \
        metric=test_balanced_accuracy

Records, progress, pictures, reports, trackers and `arno compare` read its declaration. It also selects the best model,
since it is the first metric of the task.
"""

from collections.abc import Sequence

from torch import Tensor

from arno.core.metric import Metric
from arno.tasks.classification import Classification
from arno.tasks.task import Task

BALANCED = Metric("balanced_accuracy", "balanced accuracy", "more", low=0, high=1, short="bal. acc", axis="score")


def factory(targets: Tensor, classes: Sequence[str]) -> Task:
    return BalancedClassification(len(classes))


class BalancedClassification(Classification):
    name = "balanced classification"
    metrics = (BALANCED, *Classification.metrics)

    def scores(self, tally: Tensor) -> dict[str, float]:
        counts = self.confusion(tally)  # rows: true classes, columns: predicted classes
        samples = counts.sum(1)
        recall = (counts.diagonal() / samples)[samples > 0]
        return {BALANCED.name: float(recall.double().mean()), **super().scores(tally)}
