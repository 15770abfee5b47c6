"""AUROC and average precision, computed exactly, also with ties; and the statistics of labels that are 0 or 1."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .task import Task

Array = np.ndarray[Any, np.dtype[np.float64]]


def auroc(positive: Array, negative: Array) -> float:
    """The probability that a positive sample has a higher score than a negative sample; a tie counts one half.

    It is NaN if there are no positive or no negative samples.

    >>> auroc(np.array([3.0, 1.0]), np.array([1.0, 0.0])), auroc(np.array([1.0]), np.array([]))
    (0.875, nan)
    """
    if not len(positive) or not len(negative):
        return nan
    ordered = np.sort(negative)
    below = sum(int(np.searchsorted(ordered, positive, side).sum()) for side in ("left", "right"))
    return below / (2 * len(positive) * len(negative))


def average_precision(positive: Array, negative: Array) -> float:
    """The mean over positive samples of the precision at their score, Σ (R_i − R_{i−1}) P_i; NaN without any.

    >>> average_precision(np.array([3.0, 1.0]), np.array([1.0, 0.0])), average_precision(np.array([]), np.array([1.0]))
    (0.8333333333333333, nan)
    """
    if not len(positive):
        return nan
    own = len(positive) - np.searchsorted(np.sort(positive), positive)
    other = len(negative) - np.searchsorted(np.sort(negative), positive)
    return float((own / (own + other)).mean())


def ratio(above: float, below: float) -> float:
    """The quotient of two numbers; NaN for 0/0."""
    return above / below if below else nan


def mean_of(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if value == value]
    return ratio(sum(known), len(known))


@dataclass(frozen=True)
class Counts:
    """Joined statistics of n samples with L labels.

    loss: the summed loss. hits, false, missed: [L] numbers of true positives, false positives and false negatives.
    scores, labels: [n, L].
    """

    n: int
    loss: float
    hits: Array
    false: Array
    missed: Array
    scores: Array
    labels: Array

    def ranked(self, label: int) -> tuple[Array, Array]:
        """The scores of the samples with a label and of those without it."""
        has = self.labels[:, label] == 1
        return self.scores[has, label], self.scores[~has, label]

    def pooled(self) -> tuple[Array, Array]:
        """The scores of all (sample, label) pairs with label 1, and of all pairs with label 0."""
        return self.scores[self.labels == 1], self.scores[self.labels == 0]

    def f1(self) -> list[float]:
        """F1 of each label; NaN for a label that no sample has and that was never predicted."""
        below = 2 * self.hits + self.false + self.missed
        return [ratio(float(above), float(under)) for above, under in zip(2 * self.hits, below, strict=True)]


class Ranked(Task):
    """A task with labels that are 0 or 1; AUROC and average precision need the scores of all samples.

    The statistics of n samples are n, the loss, three counts per label, n · L scores and n · L labels. They are exact.
    Joined statistics take 16 bytes per sample and label.
    """

    labels: int

    @abstractmethod
    def margins(self, outputs: Tensor) -> Tensor:
        """The score of each label, [n, L]; it is positive if the label 1 is more likely than 0."""

    @abstractmethod
    def log_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log of the probability of the labels of each sample, [n]."""

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of samples, the loss, for each label the three counts, all scores, and all labels."""
        scores, labels = self.margins(outputs).double(), targets.view(len(targets), -1).double()
        predicted = (scores > 0).double()
        counts = [(predicted * labels).sum(0), (predicted * (1 - labels)).sum(0), ((1 - predicted) * labels).sum(0)]
        head = torch.tensor([float(len(targets))], dtype=torch.float64, device=scores.device)
        loss = self.log_losses(outputs, targets).double().sum()[None]
        return torch.cat([head, loss, *counts, scores.flatten(), labels.flatten()])

    def join(self, tallies: Sequence[Tensor]) -> Tensor:
        """The statistics of several batches: counts are added up, scores and labels are concatenated."""
        at = 2 + 3 * self.labels
        sizes = [int(tally[0]) * self.labels for tally in tallies]
        head = torch.stack([tally[:at] for tally in tallies]).sum(0)
        scores = [tally[at : at + size] for tally, size in zip(tallies, sizes, strict=True)]
        labels = [tally[at + size : at + 2 * size] for tally, size in zip(tallies, sizes, strict=True)]
        return torch.cat([head, *scores, *labels])

    def counts(self, tally: Tensor) -> Counts:
        """Joined statistics as named parts."""
        numbers: Array = tally.cpu().numpy()
        n, loss = int(numbers[0]), float(numbers[1])
        hits, false, missed = numbers[2 : 2 + 3 * self.labels].reshape(3, self.labels)
        at = 2 + 3 * self.labels
        scores, labels = numbers[at : at + 2 * n * self.labels].reshape(2, n, self.labels)
        return Counts(n, loss, hits, false, missed, scores, labels)
