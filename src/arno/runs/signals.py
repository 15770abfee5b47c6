"""Ctrl-C and SIGTERM: the first one asks for an orderly end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[list[int]]:
    """Call `stop(times)` at every Ctrl-C and SIGTERM, `times` of them so far; yields the list of the signals so far.

    Only the main thread can do that; in any other thread signals are left as they are.
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
