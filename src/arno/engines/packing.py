"""Converts rows of a block, and other arguments, into plain arrays that every transport can send to another process."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.problem import Problem
from ..core.work import Result, SubModel, Work
from ..data.dataset import Ints
from ..errors import ArnoError, named, own_frames
from ..registry import load_target

#: The defaults of a work's fields.
DEFAULTS = {field.name: field.default for field in fields(Work) if field.default is not MISSING}


def pack(work: Work, rows: list[int], *, shared: bool = False) -> dict[str, Any]:
    """Some rows of a block, without the fields that have their default. Each index vector is packed once.

    shared: all rows have the same start, which is sent separately.
    """
    at, work = np.array(rows), replace(work, start=work.start[:, :0]) if shared else work
    changed = {name: value for name, value in vars(work).items() if name not in DEFAULTS or value is not DEFAULTS[name]}
    packed = {name: _arrays(value, at) for name, value in changed.items()}
    if work.windows is not None:
        windows = [work.windows[j] for j in rows]
        indices = {id(window.index): window.index.numpy() for window in windows}
        packed["windows"] = (indices, [(id(window.index), window.units, window.extract) for window in windows])
    return packed


def unpack(packed: Mapping[str, Any], known: dict[int, Tensor] | None = None) -> Work:
    """The work of packed rows. known: the index vectors that were received before; new ones are added to it."""
    unpacked = {name: _tensors(value) for name, value in packed.items()}
    if "windows" in packed:
        indices, windows = packed["windows"]
        known = {} if known is None else known
        known |= {key: torch.from_numpy(x) for key, x in indices.items()}
        unpacked["windows"] = tuple(SubModel(known[key], units, extract) for key, units, extract in windows)
    return Work(**unpacked)


def _arrays(value: Any, rows: Ints) -> Any:
    """Some rows of a tensor, or of each tensor in a dictionary, as arrays. Other values are returned unchanged."""
    if isinstance(value, Tensor):
        return value.numpy()[rows]
    return {name: _arrays(x, rows) for name, x in value.items()} if isinstance(value, dict) else value


def _tensors(value: Any) -> Any:
    """Arrays as tensors, also in a dictionary. Other values are returned unchanged."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return {name: _tensors(x) for name, x in value.items()} if isinstance(value, dict) else value


#: Losses, seconds and further results (`Result.extra`) of trained rows; for each row that failed, the reason.
Answer = tuple[Any, Any, list[dict[str, Any]], Mapping[int, str]]


def answer(out: Result) -> Answer:
    """The result of trained rows, without their updates."""
    extra = [{name: tensor.numpy() for name, tensor in tensors.items()} for tensors in out.extra]
    return out.loss.numpy(), out.seconds.numpy(), extra, out.failed


def tensor(array: Any) -> Tensor:
    """A received array as a tensor. It is copied only if it is read-only."""
    return torch.from_numpy(np.require(array, requirements="W"))


def span(rows: list[int]) -> slice | None:
    """The slice that selects these rows, if they are consecutive.

    >>> span([3, 4, 5]), span([4, 3])
    (slice(3, 6, None), None)
    """
    whole = slice(rows[0], rows[-1] + 1)
    return whole if rows == list(range(whole.start, whole.stop)) else None


def ask(problem: Problem, what: str, *arguments: Any) -> Any:
    """Call the method `what` of a problem with arrays, which become tensors; return the result as an array."""
    tensors = (torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments)
    found: Tensor = methodcaller(what, *tensors)(problem)
    return found.numpy()


def portable(error: BaseException) -> Exception:
    """What a worker sends for an exception: the exception if it can be pickled, otherwise a RuntimeError with its text.

    Its notes say where in the user's own code it was raised, because pickling removes this information.
    """
    sent: Exception = RuntimeError(named(error))
    with suppress(Exception):
        if isinstance(error, Exception):
            pickle.loads(pickle.dumps(error))
            sent = error
    if not isinstance(error, ArnoError) and (places := own_frames(error)):
        sent.add_note(places.strip(" ()"))
    with suppress(Exception):  # formatting an exception of the user's own class may fail
        sent.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    return sent


def load_problem(targets: Iterable[str], pickled: bytes, buffers: Sequence[Any] | None = None) -> Problem:
    """The problem, in a worker. The user's own files are imported first.

    The bytes come from the server through the transport, never from a file.
    """
    for path in targets:
        with suppress(ArnoError):  # the file may not exist any more, and this problem may not need it
            load_target(path)
    problem: Problem = pickle.loads(pickled, buffers=buffers)
    return problem
