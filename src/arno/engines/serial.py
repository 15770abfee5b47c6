"""Trains one client after another in this process. It is the reference: all other engines must agree with it."""

from __future__ import annotations

import torch

from ..core.problem import Problem
from ..core.serial import Serial
from ..errors import ArnoError
from ..kernels.glibc_memory import keep_memory
from . import engines

#: The most threads. OpenMP ends the process if it cannot start as many threads as are requested.
THREADS = 1024


@engines.register("serial")
def serial(problem: Problem, *, threads: int = 1) -> Serial:
    """One client after another; with one thread (the default) other engines reproduce its bits.

    threads: torch's threads inside one client.
    """
    if not 1 <= threads <= THREADS:
        raise ArnoError(f"engine.threads = {threads}", f"it must be from 1 to {THREADS}", "try engine.threads=1")
    torch.set_num_threads(threads)
    keep_memory()
    return Serial(problem)
