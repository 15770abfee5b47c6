"""A trial of the user's code in a separate process, before this process runs the same code."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait

import torch

from ..errors import ArnoError

#: The least time limit of a trial in seconds: a short `engine.timeout` must not refuse a network on a busy machine.
LEAST = 10.0
#: The option of Linux's `prctl` that names the signal for a process whose parent has ended.
PR_SET_PDEATHSIG = 1


def try_user_code(act: Callable[[], object], name: str, timeout: float) -> None:
    """Call `act` in a fork of this process; refuse code that ends the process, or that takes too long.

    An exception is not refused here: it occurs again in this process, which handles it. name: what is tried, for the
    error. timeout: seconds; 0: no limit. On other systems than Linux there is no trial.
    """
    if sys.platform != "linux":
        return
    limit = max(timeout, LEAST) if timeout else None
    answer, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads of this process; the fork uses none of them
        pid = os.fork()
    if pid == 0:
        _tried(act, told)
    os.close(told)
    try:
        ended = bool(wait([answer], limit))
        done = ended and os.read(answer, 1) != b""
    finally:
        os.close(answer)
        status = _killed(pid)
    if not ended:
        rule = f"its first passes took longer than {limit:g} s (engine.timeout = {timeout:g} s)"
        raise ArnoError(name, rule, "does it hang? set engine.timeout higher if it only needs more time")
    if not done:
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        raise ArnoError(
            name, f"it ended the process that tried it ({how})", "correct it, or is there too little memory?"
        )


def _killed(pid: int) -> int:
    """End a process if it has not ended yet; returns its exit status, or the negative number of its signal."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # this program ignores SIGCHLD, so the system keeps no status
        return 0


def _tried(act: Callable[[], object], told: int) -> None:
    """What the fork does: no output, one thread, one byte when it is done. It ends with its parent."""
    with suppress(BaseException):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for output in (1, 2):
            os.dup2(nothing, output)
        sys.stdout = sys.stderr = os.fdopen(nothing, "w")
        torch.set_num_threads(1)
        act()
    with suppress(BaseException):
        os.write(told, b".")
    os._exit(0)
