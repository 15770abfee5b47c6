"""Partitions: how the training data are divided among clients.

Every factory takes the stratum of each training sample (its label; for a regression the decile of its target), the
number of clients and the seed, and its own settings as keywords. Partitions are disjoint and complete (except `replace`
and `file`), and no client is empty.

`natural` divides the data by the clients that the data name, and `file` by the clients in a file. For these two,
validation samples are taken inside each client (`of="clients"`, `of="rows"`), and the number of clients follows from
the data or the file if the user does not set it.
"""

from ...registry import Registry
from .partition import Partition, as_partition

partitions = Registry("partition", "arno.data.partition")

__all__ = ["Partition", "as_partition", "partitions"]
