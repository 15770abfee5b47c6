"""Handling of Ctrl-C and SIGTERM during a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[list[int]]:
    """Call `stop(n)` at the n-th Ctrl-C or SIGTERM. Yields the list of the signals so far.

    Python allows this in the main thread only; in any other thread, the handling of signals does not change.
    """
    seen: list[int] = []

    def on_signal(number: int, frame: Any) -> None:
        seen.append(number)
        stop(len(seen))

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
