"""Data sets and their partition among clients."""

from .dataset import Dataset, Transform, datasets, load, split_validation
from .partition import Partition, partitions

__all__ = ["Dataset", "Partition", "Transform", "datasets", "load", "partitions", "split_validation"]
