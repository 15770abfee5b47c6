"""Keyed random streams: the same run gives the same bits whatever the order in which clients are visited.

A stream is named by the run's seed, a purpose and any numbers (round, client, …). No code in Arno draws from
global random state.

>>> import torch
>>> a = torch.rand(3, generator=stream(0, "batches", 4, 17))
>>> b = torch.rand(3, generator=stream(0, "batches", 4, 17))
>>> bool((a == b).all()), key(0, "batches", 4, 17) == key(0, "batches", 17, 4)
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def key(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit integer that depends on every argument and on their order."""
    text = "/".join((str(int(seed)), purpose, *(str(int(n)) for n in numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, purpose: str, *numbers: int, generator: torch.Generator | None = None) -> torch.Generator:
    """A torch generator on the CPU for this purpose: a new one, or `generator` seeded again."""
    import torch

    return (generator or torch.Generator()).manual_seed(key(seed, purpose, *numbers))


def numpy_stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A NumPy generator for this purpose, for distributions that torch does not offer (Dirichlet, power, …)."""
    return np.random.default_rng(key(seed, purpose, *numbers))


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Torch's global stream seeded with `number`, and restored afterwards: networks draw from it (dropout)."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        yield
