"""Some rows of a block on their way to another process, as plain arrays: they cross every kind of channel cheaply."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.contracts import Problem
from ..core.work import SubModel, Work


def pack(work: Work, rows: list[int], *, shared: bool = False) -> dict[str, Any]:
    """Some rows of a block; the start that all of them share travels apart, an index vector once."""
    import numpy as np

    at, work = np.array(rows), replace(work, start=work.start[:, :0]) if shared else work
    packed = {name: x.numpy()[at] if isinstance(x, Tensor) else x for name, x in vars(work).items()}
    packed["given"] = {name: x.numpy()[at] for name, x in work.given.items()}
    if work.windows is not None:
        mine = [work.windows[j] for j in rows]
        indices = {id(window.index): window.index.numpy() for window in mine}
        packed["windows"] = (indices, [(id(window.index), window.units, window.extract) for window in mine])
    return packed


def unpack(packed: Mapping[str, Any], known: dict[int, Tensor] | None = None) -> Work:
    """The work again, where it is done; `known`: index vectors that came before, and those that come with it."""
    import numpy as np

    unpacked: dict[str, Any] = {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in packed.items()
    }
    unpacked["given"] = {name: torch.from_numpy(x) for name, x in packed["given"].items()}
    if packed["windows"] is not None:
        indices, light = packed["windows"]
        known = {} if known is None else known
        known |= {key: torch.from_numpy(x) for key, x in indices.items()}
        unpacked["windows"] = tuple(SubModel(known[key], units, extract) for key, units, extract in light)
    return Work(**unpacked)


def span(rows: list[int]) -> slice | None:
    """The slice that these rows are, if they lie side by side in their order.

    >>> span([3, 4, 5]), span([4, 3])
    (slice(3, 6, None), None)
    """
    whole = slice(rows[0], rows[-1] + 1)
    return whole if rows == list(range(whole.start, whole.stop)) else None


def ask(problem: Problem, what: str, *arguments: Any) -> Any:
    """What a problem answers, with arrays in place of tensors there and back."""
    import numpy as np

    answer = getattr(problem, what)(*(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments))
    if isinstance(answer, tuple):
        return tuple(x.numpy() if isinstance(x, Tensor) else x for x in answer)
    return answer.numpy() if isinstance(answer, Tensor) else answer


def portable(error: Exception) -> Exception:
    """The exception itself where it can cross to another process, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
