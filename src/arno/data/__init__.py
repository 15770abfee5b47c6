"""Data: where samples come from, how they are divided among clients, how a validation set is balanced."""

from .balance import balanced
from .dataset import Dataset, Transform, datasets, load, split_validation
from .partition import Partition, partitions

__all__ = [
    "Dataset",
    "Partition",
    "Transform",
    "balanced",
    "datasets",
    "load",
    "partitions",
    "split_validation",
]
