"""Hyper-parameters that may differ per client and per round: a number, one number per client, or a distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ArnoError
from .distributions import Distribution, parse
from .seeds import key, numpy_stream
from .selection_draws import uniforms

#: What a user may write: `0.1`, `[0.1, 0.2, …]` (one per client), or a distribution (see `distributions.py`).
PerClient = float | str | Sequence[float]


class Values:
    """The values of one hyper-parameter for any clients, in any round.

    From a distribution, each client draws one value for the whole run; with `each_round(…)`, one value per round.

    >>> Values(0.5, 3)[torch.tensor([0, 2])].tolist()
    [0.5, 0.5]
    >>> Values([1, 2, 3], 3)[torch.tensor([0, 2])].tolist()
    [1.0, 3.0]
    >>> values = Values("choice(1, 5)", 100, seed=0, name="local.epochs")
    >>> sorted(set(values[torch.arange(100)].tolist()))
    [1.0, 5.0]
    >>> values = Values("each_round(integers(1, 3))", 100, seed=0, name="local.epochs", whole=True)
    >>> sorted({values.at(torch.tensor([7]), t).item() for t in range(50)})
    [1.0, 2.0, 3.0]
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
        self._spec, self._name, self._seed, self._dtype = spec, name, seed, dtype
        given = parse(spec, name) if isinstance(spec, str) else None
        self._each_round = given.inner[0] if given is not None and given.name == "each_round" else None
        table = _drawn(spec, given, n, seed, name) if self._each_round is None else self._each_round.ends
        self._table = torch.from_numpy(np.asarray(table, dtype=np.float64))
        wrong = ~torch.isfinite(self._table)
        if least is not None:
            wrong |= self._table < least
        if above is not None:
            wrong |= self._table <= above
        if most is not None:
            wrong |= self._table > most
        if whole:
            wrong |= self._table != self._table.round()
        rule = f"it must be {_rule(least, above, most, whole)}"
        if whole and given is not None and not given.whole:
            raise ArnoError(f"{name} = {spec!r}", rule, f"integers(a, b) draws whole numbers: {name}='integers(1, 5)'")
        if wrong.any():
            value = self._table[wrong].flatten()[0].item()
            raise ArnoError(f"{name} = {value:g}", rule, f"change {name}")
        self._table = self._table.to(dtype)

    def __getitem__(self, ids: Tensor) -> Tensor:
        """The values of these clients, the same in every round; an error if values change from round to round."""
        if self._each_round is not None:
            rule = "its values change in every round, and one value per client is needed here"
            raise ArnoError(f"{self._name} = {self._spec!r}", rule, "leave out each_round")
        return self._table.expand(len(ids)) if self._table.ndim == 0 else self._table[ids]

    def at(self, ids: Tensor, t: int) -> Tensor:
        """The values of these clients in round t."""
        if self._each_round is None:
            return self[ids]
        base = key(self._seed, f"values/{self._name}", t)
        u = uniforms(base, ids.cpu().numpy(), max(1, self._each_round.draws))
        return torch.from_numpy(self._each_round.quantile(u)).to(self._dtype)

    @property
    def varies(self) -> bool:
        """Whether the values change from round to round."""
        return self._each_round is not None

    @property
    def smallest(self) -> float:
        """The smallest value that a client can have in a round."""
        return float(self._table.min())

    @property
    def largest(self) -> float:
        """The largest value that a client can have in a round."""
        return float(self._table.max())


def _drawn(spec: PerClient, given: Distribution | None, n: int, seed: int, name: str) -> float | np.ndarray:
    """One value for all clients, or one value per client."""
    if given is not None:
        return given.numbers[0] if given.name == "number" else _once(given, n, numpy_stream(seed, f"values/{name}"))
    if isinstance(spec, int | float):
        return float(spec)
    values = np.asarray(list(spec), dtype=np.float64)
    if len(values) != n:
        raise ArnoError(f"{name} has {len(values)} values", f"there are {n} clients", "give one value per client")
    return values


def _once(given: Distribution, n: int, rng: np.random.Generator) -> np.ndarray:
    """One draw per client; uniform, loguniform and choice draw the same numbers as release 0.1."""
    if given.name == "choice":
        return np.asarray(given.numbers)[rng.integers(len(given.numbers), size=n)]
    if given.name not in ("uniform", "loguniform"):
        return given.quantile(rng.random((n, given.draws)))
    low, high = given.numbers
    if given.name == "uniform":
        return rng.uniform(low, high, size=n)
    return np.exp(rng.uniform(np.log(low), np.log(high), size=n))


def _rule(least: float | None, above: float | None, most: float | None, whole: bool) -> str:
    words = ["a whole number" if whole else "a finite number"]
    words += [f"at least {least:g}"] if least is not None else []
    words += [f"above {above:g}"] if above is not None else []
    words += [f"at most {most:g}"] if most is not None else []
    return " and ".join([words[0], ", ".join(words[1:])]) if len(words) > 1 else words[0]
