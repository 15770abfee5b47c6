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

#: The smallest time limit of a trial, in seconds. A shorter `engine.timeout` could refuse a network because the machine
#: is busy.
LEAST = 10.0
#: The option of Linux's `prctl` that sets the signal which a process receives when its parent ends.
PR_SET_PDEATHSIG = 1


def try_user_code(act: Callable[[], object], name: str, timeout: float) -> None:
    """Call `act` in a fork of this process; raise an error if it ends the fork or takes too long.

    An exception in the fork is ignored: it occurs again in this process, which handles it.
    name: what is tried, for the error. timeout: in seconds; 0: no limit. There is a trial on Linux only.
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
        rule = f"it ended the process that tried it ({how})"
        raise ArnoError(name, rule, "correct its code; a lack of memory can be another cause")


def _killed(pid: int) -> int:
    """End a process if it has not ended yet. Return its exit status, or the negative number of its signal."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # this program ignores SIGCHLD, so the system keeps no status
        return 0


def _tried(act: Callable[[], object], told: int) -> None:
    """What the fork does: it calls `act` without output, in one thread, and writes a byte. It ends with its parent."""
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
