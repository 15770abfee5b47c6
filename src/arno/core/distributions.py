"""Distributions from which the values of a hyper-parameter are drawn: one value per client, or per client and round.

`uniform(a, b)`, `loguniform(a, b)`, `choice(a, b, …)`, `integers(a, b)` (whole numbers, a and b included),
`mix(p, A, B)` (A with probability p, else B; A and B are numbers or distributions), and `each_round(DISTRIBUTION)`
(a new draw for every client in every round).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ..errors import ArnoError
from ..limits import shortened

_CALL = re.compile(r"(uniform|loguniform|choice|integers|mix|each_round)\((.*)\)")
REMEDY = "write uniform(a, b), loguniform(a, b), choice(a, b, …), integers(a, b), mix(p, A, B) or each_round(…)"


@dataclass(frozen=True)
class Distribution:
    """A distribution: its name, its numbers, and the distributions inside it.

    A plain number is the distribution `number`, which always gives this number.

    >>> found = parse("each_round(mix(0.9, integers(1, 20), 20))", "local.epochs")
    >>> found.name, found.inner[0].name, found.inner[0].ends, found.inner[0].whole
    ('each_round', 'mix', (1.0, 20.0, 20.0), True)
    """

    name: str
    numbers: tuple[float, ...] = ()
    inner: tuple[Distribution, ...] = ()

    @property
    def ends(self) -> tuple[float, ...]:
        """Values between which all draws lie; for `choice`, the values themselves."""
        if self.inner:
            return tuple(end for one in self.inner for end in one.ends)
        return self.numbers

    @property
    def whole(self) -> bool:
        """Whether all draws are whole numbers."""
        if self.inner:
            return all(one.whole for one in self.inner)
        return self.name not in ("uniform", "loguniform") and all(x == round(x) for x in self.numbers)

    @property
    def draws(self) -> int:
        """How many uniform random numbers are needed to draw one value."""
        if self.name == "mix":
            return 1 + max(one.draws for one in self.inner)
        return int(self.name != "number") if not self.inner else self.inner[0].draws

    def quantile(self, u: np.ndarray) -> np.ndarray:
        """One value per client from uniform numbers in (0, 1), [clients, draws]."""
        if self.inner and self.name == "mix":
            first, second = (one.quantile(u[:, 1:]) for one in self.inner)
            return np.where(u[:, 0] < self.numbers[0], first, second)
        if self.name == "number":
            return np.full(len(u), self.numbers[0])
        if self.name == "choice":
            return np.asarray(self.numbers)[(u[:, 0] * len(self.numbers)).astype(np.int64)]
        low, high = self.numbers
        if self.name == "integers":
            return low + np.floor(u[:, 0] * (high - low + 1))
        if self.name == "loguniform":
            low, high = np.log(low), np.log(high)
        values = low + (high - low) * u[:, 0]
        return np.exp(values) if self.name == "loguniform" else values


def parse(text: str, name: str) -> Distribution:
    """The distribution that a user wrote. name: the name of the setting, for errors."""
    whole = text.replace(" ", "")
    try:
        return _parse(whole)
    except ArnoError as error:
        raise ArnoError(f"{name} = {shortened(text)!r}", error.args[1], error.args[2]) from error
    except ValueError as error:
        rule = "it must be a number, a list with one number per client, or a distribution"
        raise ArnoError(f"{name} = {shortened(text)!r}", rule, REMEDY) from error


def _parse(text: str) -> Distribution:
    call = _CALL.fullmatch(text)
    if call is None:
        return Distribution("number", (float(text),))
    kind, given = call[1], _split(call[2])
    if kind == "each_round":
        (inside,) = given
        return Distribution(kind, (), (_inside(inside),))
    if kind == "mix":
        share, *both = given
        p = float(share)
        if len(both) != 2:
            raise ValueError(text)
        if not 0 <= p <= 1:
            raise ArnoError(text, "the first number of mix is a probability", "use a number from 0 to 1")
        return Distribution(kind, (p,), tuple(_inside(one) for one in both))
    numbers = tuple(float(one) for one in given)
    if kind != "choice":
        _refuse(kind, *numbers)
    return Distribution(kind, numbers)


def _inside(text: str) -> Distribution:
    found = _parse(text)
    if found.name == "each_round":
        raise ArnoError(text, "each_round must be the outermost distribution", "write each_round(mix(…))")
    return found


def _refuse(kind: str, *numbers: float) -> None:
    if len(numbers) != 2:
        raise ValueError(kind)
    low, high = numbers
    if not isfinite(high - low):
        raise ArnoError(kind, f"the bounds of {kind} must be finite", "change the bounds")
    if not low < high:
        raise ArnoError(kind, f"the first bound of {kind} must be smaller than the second", "change the bounds")
    if kind == "loguniform" and low <= 0:
        raise ArnoError(kind, "the bounds of loguniform must be positive", "change the bounds")
    if kind == "integers" and (low != round(low) or high != round(high)):
        raise ArnoError(kind, "the bounds of integers must be whole numbers", "change the bounds")


def _split(text: str) -> list[str]:
    """Split a text at the commas that are outside all parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
