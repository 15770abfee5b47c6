"""Makes glibc keep freed memory, so that large buffers need no new pages from the system at their next use."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def keep_memory(megabytes: int = 512) -> None:
    """Keep freed buffers of up to this size for the next step; do nothing on a system without glibc."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, megabytes * 2**20)
    mallopt(M_TRIM_THRESHOLD, megabytes * 2**20)
    mallopt(M_TOP_PAD, 16 * 2**20)
