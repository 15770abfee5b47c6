"""Which settings `arno tune` searches for each group of a comparison, and in which ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..config import settings as configs
from ..config.build import federation
from ..errors import ArnoError, described
from .compare import composed
from .grid import Cell, after_method, own_key, refuse_key
from .ranges import Range

if TYPE_CHECKING:
    from ..core.problem import Problem
    from .cells import Config

#: The range of a setting that every method has, unless a range or a value is given.
LEARNING_RATE = ("local.lr", "log(0.001, 1)")


def spaces(groups: Sequence[Cell], ranges: Mapping[str, Range], given: Sequence[str]) -> list[dict[str, Range]]:
    """The ranges of every group. Refuses ranges that no method has, and values that a run refuses.

    ranges: the ranges that the user gave, by key. given: the settings with a value.
    """
    methods = {method_of(cell) for cell in groups}
    for key in ranges:
        refuse_key(key, methods)
    fixed = [word.partition("=")[0] for word in given]
    found = [space_of(cell, ranges, fixed) for cell in groups]
    if not any(found):
        rule = "all settings are given, and nothing is searched"
        names = ", ".join(dict.fromkeys(cell.name for cell in groups))
        raise ArnoError(names, rule, "give a range, as local.lr='log(0.001, 1)'; or use arno compare")
    for cell, space in zip(groups, found, strict=True):
        list(examples(cell, space))
    return found


def space_of(cell: Cell, ranges: Mapping[str, Range], fixed: Collection[str]) -> dict[str, Range]:
    """The ranges of one group: a range for its method, else a range for all methods, else one that its method declares.

    A setting with a value is not searched. A range or a value for one method precedes one for all methods.

    >>> cell = Cell("fedprox", "", "", "", ("method=fedprox",))
    >>> {key: str(one) for key, one in space_of(cell, {"fedprox.mu": Range("linear", 0, 1)}, ["clients"]).items()}
    {'local.lr': 'log(0.001, 1.0)', 'method.mu': 'linear(0, 1)'}
    """
    method = method_of(cell)
    mine = {own_key(key, method): one for key, one in ranges.items() if after_method(key, {method})}
    shared = {key: one for key, one in ranges.items() if not after_method(key, known_methods())}
    mine_fixed = {own_key(key, method) for key in fixed if after_method(key, {method})}
    shared_fixed = {key for key in fixed if not after_method(key, known_methods())}
    usual = {LEARNING_RATE[0]: declared_range(*LEARNING_RATE), **declared(cell)}
    found = {key: one for key, one in usual.items() if key not in shared_fixed}
    found = {key: one for key, one in (found | shared).items() if key not in mine_fixed}
    return found | mine


def declared(cell: Cell) -> dict[str, Range]:
    """The ranges that the method of a group declares, for its own settings and for general ones."""
    method, registry = method_of(cell), configs.registry("method")
    target = next((word.partition("=")[2] for word in cell.overrides if word.startswith("method.target=")), None)
    texts: Mapping[str, str] = registry.info(method, target).get("tune", {})
    own = registry.settings(method, target)
    return {f"method.{name}" if name in own else name: declared_range(name, text) for name, text in texts.items()}


def declared_range(name: str, text: str) -> Range:
    """A range that the source file of a method declares."""
    found = Range.of(text)
    if found is None:
        raise ArnoError(f"tune: {name} = {text}", "it is not a range", "write log(0.001, 1), linear, int or any")
    return found


def examples(cell: Cell, space: Mapping[str, Range]) -> Iterator[Config]:
    """Configurations with values of the ranges. Refuses unknown settings, and values of the wrong type."""
    several = {key: one.examples() for key, one in space.items()}
    for i in range(max(map(len, several.values()), default=0)):
        yield composed(cell, [f"{key}={values[i % len(values)]}" for key, values in several.items()])


def refuse_values(cell: Cell, space: Mapping[str, Range], problem: Problem) -> None:
    """Refuse ranges with values that a method or a client refuses, before anything is trained."""
    for config in examples(cell, space):
        try:
            federation(config | {"state": "memory"}, on=problem)
        except ArnoError as error:
            value, rule, own = error.args
            other = "write int(1, 10)" if "whole number" in rule else "change the range"
            remedy = own if error.__cause__ else other  # if the user's own code raised it, another range does not help
            raise ArnoError(f"search for {cell.name}: {value}", rule, remedy) from error
        except Exception as error:  # a user's own method can raise any exception
            raise ArnoError(f"search for {cell.name}", described(error), "correct the method or the ranges") from error


def method_of(cell: Cell) -> str:
    """The name of the method of a group."""
    chosen = (word.partition("=")[2] for word in cell.overrides if word.startswith(("method=", "method.kind=")))
    return next(chosen, str(configs.Config.method))


def known_methods() -> set[str]:
    """The names that may precede a setting of one method."""
    return {*configs.registry("method").names(), "custom"}
