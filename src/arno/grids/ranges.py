"""Ranges of a search: the values of a setting among which `arno tune` looks for the best one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite, log10
from typing import TYPE_CHECKING, Any, Literal

from ..config import settings as configs
from ..config.lists import values
from ..errors import ArnoError
from .grid import after_method, own_key

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

#: Settings that are not searched: those of the problem, of the budget and of the machine.
FIXED = {"problem", "data", "task", "partition", "clients", "participation", "rounds", "seed", "eval", "checkpoint"}
FIXED |= {
    "engine",
    "state",
    "device",
    "dtype",
    "load",
    "track",
    "out",
    "target",
    "metric",
    "test",
    "on_divergence",
    "on_client_error",
}
#: A value at most this far from an end of its range, as a share of the range, lies at the border.
BORDER = 0.05
#: The position of an example between the ends. It is near the lower end, where a value of three digits can have a
#: fraction.
NEAR = 0.06


@dataclass(frozen=True)
class Range:
    """The values that a setting may take.

    scale: `log` and `linear`: numbers between two ends; `int`: whole numbers from one end to the other; `any`: a list
    of values.

    >>> Range.of("log(0.001, 1)"), Range.of("any(adam, yogi)").options, Range.of("uniform(0, 1)")
    (Range(scale='log', low=0.001, high=1.0, options=()), ('adam', 'yogi'), None)
    """

    scale: Literal["log", "linear", "int", "any"]
    low: float = 0.0
    high: float = 0.0
    options: tuple[Any, ...] = ()

    @classmethod
    def of(cls, text: str) -> Range | None:
        """The range that the value of a setting describes; None if the value is not a range."""
        found = re.fullmatch(r"\s*(log|linear|int|any)\((.*)\)\s*", text)
        if found is None and re.match(r"\s*(log|linear|int|any)\s*\(", text, re.IGNORECASE):
            raise ArnoError(text, "it is not a range", "write log(0.001, 1), linear(0, 1), int(1, 10) or any(a, b)")
        if found is None:
            return None
        scale, inside = found[1], [configs.parse(f"value={each.strip()}")[1] for each in values(found[2])]
        if scale == "any":
            if len({configs.written(x) for x in inside}) < max(len(inside), 2):
                raise ArnoError(text, "it must list different values, at least two", "write any(1, 5, 10)")
            return cls("any", options=tuple(inside))
        if len(inside) != 2 or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in inside):
            raise ArnoError(text, "a range has two ends, which are numbers", f"write {scale}(0.001, 1)")
        low, high = inside
        if not all(isfinite(end) for end in inside):
            raise ArnoError(text, "its ends must be finite", f"write {scale}(1, 10)")
        if low == high:
            raise ArnoError(text, "its ends are equal", f"give the value instead: {low:g}")
        if not low < high:
            raise ArnoError(text, "the first end must be below the second", f"write {scale}({high:g}, {low:g})")
        if scale == "log" and low <= 0:
            raise ArnoError(text, "a logarithmic range begins above zero", "try log(1e-4, 1), or linear(0, 1)")
        if scale == "int" and (low != int(low) or high != int(high)):
            raise ArnoError(text, "its ends must be whole numbers", f"write int({int(low)}, {int(high) + 1})")
        return cls(scale, float(low), float(high))  # type: ignore[arg-type]

    def __str__(self) -> str:
        inside = self.options or ((int(self.low), int(self.high)) if self.scale == "int" else (self.low, self.high))
        return f"{self.scale}({', '.join(configs.written(x) for x in inside)})"

    def distribution(self) -> BaseDistribution:
        """The range as a distribution of Optuna."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.scale == "any":
            return CategoricalDistribution([configs.written(x) for x in self.options])
        if self.scale == "int":
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(self.low, self.high, log=self.scale == "log")

    def examples(self) -> list[str]:
        """Values at the ends of the range and one between them, or all values of a list, as a run takes them.

        >>> Range.of("linear(1, 3)").examples(), Range.of("int(1, 3)").examples()
        (['1.0', '3.0', '1.12'], ['1', '3'])
        """
        if self.scale in ("any", "int"):
            return [configs.written(x) for x in self.options or (int(self.low), int(self.high))]
        ratio = self.high / self.low if self.scale == "log" else 1.0
        between = self.low * ratio**NEAR if self.scale == "log" else self.low + NEAR * (self.high - self.low)
        return [configs.written(self.low), configs.written(self.high), self.written(between)]

    def accepts(self, value: Any) -> bool:
        """Whether a value, as Optuna chose it, lies in the range."""
        if self.scale == "any":
            return value in [configs.written(x) for x in self.options]
        number = isinstance(value, int if self.scale == "int" else int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def written(self, value: Any) -> str:
        """A value that Optuna chose, as a run takes it: numbers with three digits, within the range.

        >>> Range.of("log(0.001, 1)").written(0.0123456)
        '0.0123'
        """
        if self.scale in ("log", "linear"):
            return configs.written(min(max(float(f"{value:.3g}"), self.low), self.high))
        return str(value)

    def border(self, value: str) -> str:
        """The end of the range (`lower` or `upper`) near which the value is; empty if it is near neither.

        >>> ends = Range.of("log(0.001, 1)")
        >>> ends.border("0.0011"), ends.border("0.1"), ends.border("1")
        ('lower', '', 'upper')
        """
        if self.scale == "any":
            return ""
        at, low, high = (log10(x) if self.scale == "log" else x for x in (float(value), self.low, self.high))
        place = (at - low) / (high - low)
        return "lower" if place <= BORDER else "upper" if place >= 1 - BORDER else ""


def ranges_in(words: list[str]) -> tuple[dict[str, Range], list[str]]:
    """The settings that are ranges, by key, and the other settings.

    >>> ranges_in(["method=fedavg,fedprox", "local.lr=log(0.01, 1)", "fedprox.mu=any(0.1, 1)"])[1]
    ['method=fedavg,fedprox']
    """
    found, rest = dict[str, Range](), []
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        several = Range.of(value)
        if several is None:
            refuse_mixed(word, value)
            rest.append(word)
        elif fixed(key):
            rule = f"{key} is not searched: all trials have the same problem, cohorts and number of rounds"
            raise ArnoError(word, rule, f"list values with commas to compare within each: {key}=a,b")
        else:
            found[key] = several
    return found, rest


def refuse_mixed(word: str, value: str) -> None:
    """Refuse a list in which an entry is a range."""
    for each in values(value):
        if Range.of(each) is not None:
            raise ArnoError(word, f"{each.strip()} is a range in a list of values", "give one range, or values only")


def fixed(key: str) -> bool:
    """Whether a setting is not searched; also for a setting after the name of a method.

    >>> fixed("rounds"), fixed("fedprox.rounds"), fixed("fedprox.mu"), fixed("local.epochs")
    (True, True, False, False)
    """
    method = key.partition(".")[0]
    bare = own_key(key, method) if after_method(key, {*configs.registry("method").names(), "custom"}) else key
    return bare in configs.GROUPS or bare.split(".")[0] in FIXED
