"""Hyper-parameters that may differ per client: a number, one number per client, or a distribution."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ArnoError
from .seeds import numpy_stream

#: What a user may write: `0.1`, `[0.1, 0.2, …]` (one per client), `uniform(a, b)`, `loguniform(a, b)`, `choice(a, …)`.
PerClient = float | str | Sequence[float]

_LAW = re.compile(r"(uniform|loguniform|choice)\((.*)\)")


class Values:
    """The value of one hyper-parameter for any clients.

    >>> Values(0.5, 3)[torch.tensor([0, 2])].tolist()
    [0.5, 0.5]
    >>> Values([1, 2, 3], 3)[torch.tensor([0, 2])].tolist()
    [1.0, 3.0]
    >>> values = Values("choice(1, 5)", 100, seed=0, name="local.epochs")
    >>> sorted(set(values[torch.arange(100)].tolist()))
    [1.0, 5.0]
    """

    def __init__(
        self,
        spec: PerClient,
        n: int,
        *,
        seed: int = 0,
        name: str = "value",
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
        whole: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._table = torch.from_numpy(np.asarray(_parse(spec, n, seed, name), dtype=np.float64))
        wrong = ~torch.isfinite(self._table)
        if least is not None:
            wrong |= self._table < least
        if above is not None:
            wrong |= self._table <= above
        if most is not None:
            wrong |= self._table > most
        if whole:
            wrong |= self._table != self._table.round()
        if wrong.any():
            value = self._table[wrong].flatten()[0].item()
            raise ArnoError(f"{name} = {value:g}", f"it must be {_rule(least, above, most, whole)}", f"change {name}")
        self._table = self._table.to(dtype)

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self._table.expand(len(ids)) if self._table.ndim == 0 else self._table[ids]

    @property
    def smallest(self) -> float:
        """The smallest value any client has."""
        return float(self._table.min())

    @property
    def largest(self) -> float:
        """The largest value any client has."""
        return float(self._table.max())


def _parse(spec: PerClient, n: int, seed: int, name: str) -> float | np.ndarray:
    if isinstance(spec, str):
        law = _LAW.fullmatch(spec.replace(" ", ""))
        try:
            numbers = [float(x) for x in law[2].split(",")] if law else [float(spec)]
        except ValueError:
            law, numbers = None, []
        if law is None and numbers:
            return numbers[0]
        if law is None or (law[1] != "choice" and len(numbers) != 2):
            raise ArnoError(
                f"{name} = {spec!r}",
                "it must be a number, a list with one number per client, or a law",
                "write uniform(a, b), loguniform(a, b) or choice(a, b, …)",
            )
        rng = numpy_stream(seed, f"values/{name}")
        if law[1] == "choice":
            return np.asarray(numbers)[rng.integers(len(numbers), size=n)]
        low, high = numbers
        if not low < high or (law[1] == "loguniform" and low <= 0):
            raise ArnoError(
                f"{name} = {spec!r}", "its bounds must rise (and be positive for loguniform)", f"change {name}"
            )
        if law[1] == "uniform":
            return rng.uniform(low, high, size=n)
        return np.exp(rng.uniform(np.log(low), np.log(high), size=n))
    if isinstance(spec, int | float):
        return float(spec)
    values = np.asarray(list(spec), dtype=np.float64)
    if len(values) != n:
        raise ArnoError(f"{name} has {len(values)} values", f"there are {n} clients", "give one value per client")
    return values


def _rule(least: float | None, above: float | None, most: float | None, whole: bool) -> str:
    words = ["a whole number" if whole else "a finite number"]
    words += [f"at least {least:g}"] if least is not None else []
    words += [f"above {above:g}"] if above is not None else []
    words += [f"at most {most:g}"] if most is not None else []
    return " and ".join([words[0], ", ".join(words[1:])]) if len(words) > 1 else words[0]
