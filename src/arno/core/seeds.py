"""Keyed random streams: the same run gives the same bits, in any order in which clients train.

The key of a stream is the run's seed, a purpose and further numbers (round, client, …). Arno draws only from these
streams. Some networks draw from torch's global stream (dropout); Arno seeds it from a key before such a network runs.

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
    """Seed torch's global streams with `number`, for networks that draw from them (dropout).

    The stream of the CPU is restored afterwards. If there is no accelerator, only the stream of the CPU is seeded,
    because `torch.manual_seed` searches for devices, which takes longer than a training step of a small client.
    """
    import torch

    stream = torch.default_generator
    state = stream.get_state()
    try:
        stream.manual_seed(number) if not torch.accelerator.is_available() else torch.manual_seed(number)
        yield
    finally:
        stream.set_state(state)
