"""Tokens: the outputs are logits of the next character or word, at every position or at the end of a sequence.

loss:  −log softmax(z_t)_{y_t}; the mean over the tokens of a sequence, then over the sequences, without padding
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.metric import Metric
from ..errors import ArnoError
from . import tasks
from .ranking import ratio
from .task import PADDING, Reduction, Task

PERPLEXITY = Metric("perplexity", "perplexity", "less", low=1, short="perplexity", axis="perplexity")
ACCURACY = Metric("accuracy", "accuracy", low=0, high=1, short="acc", axis="score")
LOSS = Metric("loss", "loss per token", "less", low=0, short="loss", axis="loss")


@tasks.register("tokens")
def tokens(targets: Tensor, classes: Sequence[str], *, padding: int | None = None) -> Task:
    """The next character or word: cross-entropy; perplexity, accuracy and loss per token.

    padding: the index of the token that fills short sequences; targets with this token do not count. By default, the
        index of <pad>.
    """
    if targets.is_floating_point() or not classes:
        raise ArnoError("task=tokens", "the targets are not indices of tokens", "use task=auto")
    if padding is None and PADDING in classes:
        padding = list(classes).index(PADDING)
    if padding is not None and not 0 <= padding < len(classes):
        raise ArnoError(f"task.padding = {padding}", f"there are {len(classes)} tokens", "leave it out")
    return Tokens(len(classes), padding, positions=targets.dim() > 1)


class Tokens(Task):
    """Cross-entropy of tokens; targets that are padding do not count.

    positions: whether there is a target for every position of a sequence, or one for each sequence.

    >>> task = Tokens(3, padding=0)
    >>> scores = task.scores(task.tally(torch.zeros(1, 4, 3), torch.tensor([[1, 2, 2, 0]])))
    >>> round(scores["perplexity"], 6), scores["accuracy"]
    (3.0, 0.0)
    """

    name = "tokens"
    metrics = (PERPLEXITY, ACCURACY, LOSS)

    def __init__(self, vocabulary: int, padding: int | None = None, positions: bool = True) -> None:
        self.outputs, self.padding, self.positions = vocabulary, padding, positions
        self.classes = 0 if positions else vocabulary

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The mean cross-entropy of the tokens of a sequence."""
        losses, counted = self._losses(outputs, targets)
        each = losses.sum(1) / counted.sum(1).clamp(min=1)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of tokens, how many of them had the largest output, and their summed loss."""
        losses, counted = self._losses(outputs, targets)
        right = (outputs.argmax(-1) == targets).view(counted.shape) & counted
        return torch.stack([counted.sum().double(), right.sum().double(), losses.double().sum()])

    def scores(self, tally: Tensor) -> dict[str, float]:
        """The perplexity e^loss, the share of right tokens, and the loss per token."""
        count, right, total = tally.tolist()
        loss = ratio(total, count)
        return {"perplexity": inf if loss > 700 else exp(loss), "accuracy": ratio(right, count), "loss": loss}

    def _losses(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The cross-entropy of every token, 0 for padding, and which tokens count, [n, length]."""
        logits, wanted = outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
        skip = -100 if self.padding is None else self.padding
        losses = F.cross_entropy(logits, wanted, ignore_index=skip, reduction="none")
        return losses.view(len(targets), -1), (wanted != skip).view(len(targets), -1)
