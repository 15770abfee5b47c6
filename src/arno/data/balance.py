"""The balanced validation set that Lorenzo scores models on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.seeds import numpy_stream
from .dataset import Labels, as_labels


def balanced(y: Labels, n_classes: int, seed: int) -> Tensor:
    """Indices that bring every class to the median class count, m = ⌊median of the counts of classes that occur⌋.

    A larger class is sampled without replacement; a smaller one keeps all its samples and is topped up with
    replacement; an absent class stays absent. Class by class, ascending within a class.

    >>> y = torch.tensor([0] * 5 + [1] * 3 + [3])
    >>> torch.bincount(y[balanced(y, 4, seed=0)], minlength=4).tolist()
    [3, 3, 0, 3]
    """
    labels = as_labels(y)
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
