"""The program of a worker process: it trains rows and answers questions until the server ends it or does not run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor

from ..core.problem import Problem
from ..core.serial import Serial
from ..core.work import Mat
from ..kernels.glibc_memory import keep_memory
from ..registry import loaded_targets
from .packing import Answer, answer, ask, load_problem, portable, span, unpack

#: Seconds that a worker polls for its next message before it sleeps. After a sleep, a core is slow for a while.
AWAKE = 0.005


class Package:
    """A problem for a spawned process. The process first imports the user's own files; tensors are in shared memory."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return load_problem, (loaded_targets(), bytes(ForkingPickler.dumps(self.problem)))


@dataclass
class Received:
    """What the server has sent so far: slabs by number, and index vectors of windows by key."""

    slabs: dict[int, Mat] = field(default_factory=dict)
    windows: dict[int, Tensor] = field(default_factory=dict)

    def add_slab(self, number: int, rows: Mat, keep: set[int]) -> None:
        """Add a slab; forget the other slabs, except those with the numbers `keep`."""
        self.slabs = {n: slab for n, slab in self.slabs.items() if n in keep} | {number: rows}


def serve(problem: Problem, kernel: type[Serial], pipe: Connection, inherited: Sequence[Connection]) -> None:
    """The main function of a worker process. inherited: pipes of other workers, which a fork has copied."""
    prepare(inherited)
    engine, received, server = kernel(problem), Received(), os.getppid()
    with suppress(OSError):
        pipe.send("ready")
    while (message := next_message(pipe, server)) is not None:
        kind, *arguments = message
        if kind == "slab":
            received.add_slab(*arguments)
            continue
        found: Any
        try:
            if kind == "train":
                found = train(engine, received, *arguments)
            else:
                found = score(problem, received, *arguments)
        except BaseException as error:  # also SystemExit, of the user's own code
            found = portable(error)
        try:
            pipe.send(found)
        except OSError:
            return


def prepare(inherited: Sequence[Connection]) -> None:
    """Set signals, pipes, scheduling, threads and memory of a new worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for pipe in inherited:
        pipe.close()
    if sys.platform == "linux":
        with suppress(
            OSError
        ):  # SCHED_BATCH keeps a woken worker from pre-empting the server, which sends more messages
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    keep_memory()


def next_message(pipe: Connection, server: int) -> Any:
    """The next message; None if this process must end, because the server says so or does not run any more."""
    until = perf_counter() + AWAKE
    while not pipe.poll(0) and perf_counter() < until:
        give_way()
    while not pipe.poll(2.0):
        if os.getppid() != server:
            return None
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def give_way() -> None:
    """Let another process run on this core."""
    if sys.platform == "win32":
        sleep(0)
    else:
        os.sched_yield()


def train(
    engine: Serial,
    received: Received,
    number: int,
    rows: list[int],
    packed: dict[str, Any],
    where: dict[str, tuple[int, bool]],
    forget: bool,
) -> Answer:
    """Train rows and write their updates into slab `number`; return the rest of the result.

    packed: the rows without their vectors. where: for each matrix of vectors by name, its first row in the slab, and
    whether all its rows are equal. forget: whether earlier index vectors are not needed any more.
    """
    if forget:
        received.windows.clear()
    slab, at, work = received.slabs[number], torch.tensor(rows), unpack(packed, received.windows)
    vectors: dict[str, Any] = {
        name: slab[first].expand(len(rows), -1) if same else slab[first + at] for name, (first, same) in where.items()
    }
    given = {name.removeprefix("given."): vectors.pop(name) for name in where if name.startswith("given.")}
    work = replace(work, **vectors, given=given)
    if consecutive := span(rows):
        return answer(engine.block(work, slab[consecutive]))
    out = engine.block(work, slab.new_empty(len(rows), slab.shape[1]))
    slab[at] = out.delta
    return answer(out)


def score(problem: Problem, received: Received, number: int, what: str, row: int, *rest: Any) -> Any:
    """Call the method `what` of the problem with the model in a row of a slab."""
    model = received.slabs[number][row].clone()  # a copy has a fixed alignment in memory, on which rounding depends
    return ask(problem, what, model, *rest)
