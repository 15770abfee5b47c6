"""Laws that a hyper-parameter may follow over the clients, and over the rounds.

`uniform(a, b)`, `loguniform(a, b)`, `choice(a, b, …)`, `integers(a, b)` (whole numbers, both ends included),
`mix(p, A, B)` (A with probability p, else B; each a number or a law), and `each_round(LAW)`: a new draw for every
client in every round.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ..errors import ArnoError
from ..limits import shortened

_CALL = re.compile(r"(uniform|loguniform|choice|integers|mix|each_round)\((.*)\)")
REMEDY = "write uniform(a, b), loguniform(a, b), choice(a, b, …), integers(a, b), mix(p, A, B) or each_round(LAW)"


@dataclass(frozen=True)
class Law:
    """A law: its name, its numbers, and the laws inside it.

    >>> law = parse("each_round(mix(0.9, integers(1, 20), 20))", "local.epochs")
    >>> law.name, law.inner[0].name, law.inner[0].ends, law.inner[0].whole
    ('each_round', 'mix', (1.0, 20.0, 20.0), True)
    """

    name: str
    numbers: tuple[float, ...] = ()
    inner: tuple[Law, ...] = ()

    @property
    def ends(self) -> tuple[float, ...]:
        """Values between which all draws lie; for a law with a list of values, all of them."""
        if self.inner:
            return tuple(end for law in self.inner for end in law.ends)
        return self.numbers

    @property
    def whole(self) -> bool:
        """Whether all draws are whole numbers."""
        if self.inner:
            return all(law.whole for law in self.inner)
        return self.name not in ("uniform", "loguniform") and all(x == round(x) for x in self.numbers)

    @property
    def draws(self) -> int:
        """The number of uniform numbers that one value needs."""
        if self.name == "mix":
            return 1 + max(law.draws for law in self.inner)
        return int(self.name != "number") if not self.inner else self.inner[0].draws

    def quantile(self, u: np.ndarray) -> np.ndarray:
        """Values from uniform numbers, [clients, draws]."""
        if self.inner and self.name == "mix":
            first, second = (law.quantile(u[:, 1:]) for law in self.inner)
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


def parse(text: str, name: str) -> Law:
    """The law that a user wrote. name: the setting, for errors."""
    whole = text.replace(" ", "")
    try:
        return _parse(whole)
    except ArnoError as error:
        raise ArnoError(f"{name} = {shortened(text)!r}", error.args[1], f"change {name}") from error
    except ValueError as error:
        rule = "it must be a number, a list with one number per client, or a law"
        raise ArnoError(f"{name} = {shortened(text)!r}", rule, REMEDY) from error


def _parse(text: str) -> Law:
    call = _CALL.fullmatch(text)
    if call is None:
        return Law("number", (float(text),))
    kind, given = call[1], _split(call[2])
    if kind == "each_round":
        (inside,) = given
        return Law(kind, (), (_inside(inside),))
    if kind == "mix":
        share, *both = given
        p = float(share)
        if len(both) != 2:
            raise ValueError(text)
        if not 0 <= p <= 1:
            raise ArnoError(text, "the first number of mix is a probability", "use 0 to 1")
        return Law(kind, (p,), tuple(_inside(one) for one in both))
    numbers = tuple(float(one) for one in given)
    if kind != "choice":
        _refuse(kind, *numbers)
    return Law(kind, numbers)


def _inside(text: str) -> Law:
    law = _parse(text)
    if law.name == "each_round":
        raise ArnoError(text, "each_round must be the outermost law", "write each_round(mix(…))")
    return law


def _refuse(kind: str, *numbers: float) -> None:
    if len(numbers) != 2:
        raise ValueError(kind)
    low, high = numbers
    if not isfinite(high - low):
        raise ArnoError(kind, "its bounds must be finite", "change them")
    if not low < high or (kind == "loguniform" and low <= 0):
        raise ArnoError(kind, "its bounds must rise (and be positive for loguniform)", "change them")
    if kind == "integers" and (low != round(low) or high != round(high)):
        raise ArnoError(kind, "the bounds of integers must be whole numbers", "change them")


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside all parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
