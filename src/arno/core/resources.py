"""The memory and the disk space that a run needs, item by item. What cannot fit is refused before it is allocated."""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from .. import machine
from ..errors import ArnoError, TooLarge, named
from .layout import Layout

#: A run holds at least so many copies of its network: module, model, learner, gradient, update, sum, step.
COPIES = 7
#: The words with which torch and other libraries report that there is not enough memory.
FULL = re.compile(r"can't allocate memory|not enough memory|out of memory|cannot allocate|calculation overflowed", re.I)


class Need(NamedTuple):
    """A number of bytes, and what needs them."""

    what: str
    bytes: int


def shown(size: float) -> str:
    """A number of bytes as text.

    >>> shown(3_000), shown(5 * 2**20), shown(6.5 * 2**30)
    ('3 kB', '5 MiB', '6.5 GiB')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}" if size < 10 * unit and unit > 2**20 else f"{size / unit:,.0f} {name}"
    return f"{size / 1000:,.0f} kB"


def summed(needs: Iterable[Need]) -> str:
    """A sum on one line, largest items first; small items are added to one item, `other`.

    >>> summed([Need("data", 2**30), Need("tables", 3 * 2**30), Need("a", 2**24), Need("b", 2**22)])
    'tables 3.0 GiB + data 1.0 GiB + other 20 MiB = 4.0 GiB'
    """
    largest = sorted((need for need in needs if need.bytes), key=lambda need: -need.bytes)
    total = sum(need.bytes for need in largest)
    kept = [need for need in largest if need.bytes >= total / 50]
    rest = total - sum(need.bytes for need in kept)
    if len(kept) == 1 and rest < total / 1000:
        return f"{kept[0].what} {shown(total)}"
    kept += [Need("other", rest)] if rest >= total / 1000 else []
    return f"{' + '.join(f'{what} {shown(size)}' for what, size in kept)} = {shown(total)}"


def refuse(needs: Iterable[Need], room: int, where: str, remedy: str) -> None:
    """Raise an error if the sum of the needs is larger than `room`; the error shows the sum."""
    needs = list(needs)
    if sum(need.bytes for need in needs) > room:
        raise TooLarge(f"the run needs {summed(needs)}", f"{where} has {shown(room)}", remedy)


def refuse_network(build: Callable[[], nn.Module], itemsize: int, data: int) -> None:
    """Refuse a network that cannot fit into memory, before it is built.

    The size of the network comes from a copy on torch's device `meta`, where tensors have shapes but no memory. A
    network that cannot be built on this device is not checked.
    """
    size = counted(build)
    if size is not None:
        room, where = machine.of_a_process()
        copies = Need(f"{COPIES} copies of a network of {size:,} parameters", COPIES * size * itemsize)
        refuse([copies, Need("data", data)], room, where, "use a smaller model")


def counted(build: Callable[[], nn.Module]) -> int | None:
    """The number of parameters and buffers of a network, counted without memory for them; None if this fails."""
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return Layout.of(build()).size
    except Exception:  # the user's code may need real numbers; the build that follows shows its errors
        return None


@contextmanager
def allocating() -> Iterator[None]:
    """Raise TooLarge if memory cannot be allocated, whatever exception a library raises in this case."""
    try:
        yield
    except ArnoError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if (short := exhausted(error)) is None:
            raise
        raise short from error


def exhausted(error: BaseException) -> TooLarge | None:
    """A TooLarge error if the exception means that memory could not be allocated; None for other exceptions."""
    text = named(error)
    full = isinstance(error, RuntimeError) and FULL.search(text)
    if not (isinstance(error, MemoryError) or full or (isinstance(error, OSError) and error.errno == errno.ENOMEM)):
        return None
    asked = re.search(r"(\d+) bytes", text)
    what = f"{shown(int(asked[1]))} could not be allocated" if asked else text[:200]
    room, where = machine.of_a_process()
    rule = f"{where} has {shown(room)}"
    remedy = (
        "use a smaller model, batch or cohort, or fewer workers; `arno plan` with the same settings shows the needs"
    )
    return TooLarge(f"out of memory: {what}", rule, remedy)
