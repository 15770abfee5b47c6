"""The grid of a comparison: the cells that commas and ranges in settings give."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from hashlib import blake2b
from itertools import product
from math import prod

from ..config import settings as configs
from ..config.lists import values
from ..errors import ArnoError

#: The largest number of runs of a grid.
MOST = 100_000
GENERAL = frozenset(f.name for f in fields(configs.Config))


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    name: what is compared: the method with its own settings or, with one method, the first key that varies.
    setting: the other keys that vary; only cells with the same setting are compared with each other.
    seed: as it was given; empty if it was not.
    varied: everything that varies except the seed.
    overrides: the settings of the run.
    """

    name: str
    setting: str
    seed: str
    varied: str
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The name of its folder; it is different for every cell of the grid."""
        text = re.sub(r"[^\w.=+-]+", "_", f"{self.varied}+seed={self.seed}" if self.seed else self.varied) or "run"
        return text if len(text) <= 200 else f"{text[:180]}-{blake2b(text.encode(), digest_size=6).hexdigest()}"

    @property
    def title(self) -> str:
        """The name of the cell in messages."""
        return " ".join(filter(None, (self.name, self.setting, f"seed={self.seed}" if self.seed else "")))


#: Keys with the values that each of them lists.
Lists = Sequence[tuple[str, Sequence[str]]]


def cells(overrides: Sequence[str]) -> list[Cell]:
    """The grid of settings that list several values: `a,b` or `0..4`.

    A setting of one method only, or with another value for one method, is written after the name of that method.

    >>> [c.folder for c in cells(["method=fedavg,fedprox", "seed=0..1", "rounds=5"])]
    ['method=fedavg+seed=0', 'method=fedavg+seed=1', 'method=fedprox+seed=0', 'method=fedprox+seed=1']
    >>> [c.overrides for c in cells(["method=fedavg,fedprox", "fedprox.mu=1", "fedprox.local.lr=0.1"])]
    [('method=fedavg',), ('method=fedprox', 'method.mu=1', 'local.lr=0.1')]
    >>> grid = cells(["partition.alpha=0.1,1", "method=fedavg,fedprox", "fedprox.mu=0.5,1"])
    >>> [(c.name, c.setting) for c in grid][-2:]
    [('fedprox mu=0.5', 'partition.alpha=1'), ('fedprox mu=1', 'partition.alpha=1')]
    """
    given = [_listed(text) for text in overrides]
    compared = {method for key, several in given if key == "method" for method in several}
    for key, _ in given:
        refuse_key(key.lstrip("+"), compared)
    shared = [(key, several) for key, several in given if not after_method(key, compared)]
    varying = [key for key, several in shared if len(several) > 1 and key != "seed"]
    subject = "method" if len(compared) > 1 else next(iter(varying), "method")
    found: dict[Cell, None] = {}
    _refuse_many(shared)
    for chosen in _choices(shared):
        method = chosen.get("method")
        own = [(key.partition(".")[2], several) for key, several in given if after_method(key, {method})]
        several_of_own = [key for key, several in own if len(several) > 1]
        _refuse_many([*shared, *own])
        for mine in _choices(own):
            told = [f"{key}={mine[key]}" for key in several_of_own]
            found[_cell(chosen, mine, told, varying, subject)] = None
    return list(found)


def after_method(key: str, methods: Collection[str | None]) -> bool:
    """Whether a key begins with the name of one of these methods; `local.lr` is a general setting for every method."""
    head, dot, _ = key.partition(".")
    return bool(dot) and head in methods and head not in GENERAL


def _listed(text: str) -> tuple[str, list[str]]:
    """The key of a setting and the values that it lists. Refuses a value that cannot be read."""
    key, equals, value = text.partition("=")
    several = list(values(value)) if equals else [value]
    for each in several:
        configs.parse(f"{key}{equals}{each}")
    return key, several


def _refuse_many(lists: Lists) -> None:
    """Refuse a grid with too many runs before the list of runs is made."""
    count = prod(len(several) for _, several in lists)
    if count > MOST:
        several = ", ".join(f"{len(several):,} values of {key}" for key, several in lists if len(several) > 1)
        raise ArnoError(f"{count:,} runs ({several})", f"a comparison has at most {MOST:,}", "list fewer values")


def _choices(lists: Lists) -> Iterator[dict[str, str]]:
    """Every combination of one value per key."""
    keys = [key for key, _ in lists]
    for choice in product(*(several for _, several in lists)):
        yield dict(zip(keys, choice, strict=True))


def _cell(
    chosen: Mapping[str, str], mine: Mapping[str, str], told: Sequence[str], varying: Sequence[str], subject: str
) -> Cell:
    """The cell of one combination.

    chosen: the settings of all methods. mine: the settings of its method only. told: those of `mine` that vary.
    varying: the keys of `chosen` that vary. subject: the key that is compared.
    """
    method = chosen.get("method")
    named = [f"{key}={chosen[key]}" for key in varying]
    name = [f"{subject}={chosen[subject]}".removeprefix("method=")] if subject in chosen else []
    setting = [word for word in named if word.partition("=")[0] != subject]
    varied = [*named, *(f"{method}.{word}" for word in told)]
    words = [f"{key}={value}" for key, value in chosen.items()]
    words += [f"{key if _general(key, method) else f'method.{key}'}={value}" for key, value in mine.items()]
    text = " ".join([*name, *told]) or str(configs.Config.method)
    return Cell(text, " ".join(setting), chosen.get("seed", ""), " ".join(varied), tuple(words))


def refuse_key(key: str, compared: set[str]) -> None:
    """Refuse a setting after the name of a method that is not compared, or that does not have this setting."""
    method, dot, rest = key.partition(".")
    if not dot or method in GENERAL:
        return
    head, registry = rest.split(".")[0], configs.registry("method")
    if method not in compared:
        near = get_close_matches(method, [*sorted({*registry.names()} - GENERAL), "custom"], 1, 0.7)
        if near and near[0] != method:
            raise ArnoError(f"unknown key {key!r}", "no method has this name", f"did you mean {near[0]}.{rest}?")
        if near:
            all_of_them = ",".join(dict.fromkeys([*(sorted(compared) or [str(configs.Config.method)]), method]))
            rule = f"{method} is not among the methods compared"
            raise ArnoError(f"key {key!r}", rule, f"write method={all_of_them}")
    if head in GENERAL or method not in registry.names():
        return
    inner = registry.info(method).get("nested")
    own = [*registry.settings(method), *(inner.names() if inner else ())]
    if head not in own:
        rule = f"its own settings are {', '.join(own)}" if own else f"{method} has no settings of its own"
        near = get_close_matches(head, [*own, *GENERAL], 1, 0.5)
        remedy = f"did you mean {method}.{near[0]}?" if near else f"see arno methods {method}"
        raise ArnoError(f"unknown key {key!r}", rule, remedy)


def own_key(key: str, method: str) -> str:
    """The key of a run for a setting that is written after the name of its method.

    >>> own_key("fedprox.mu", "fedprox"), own_key("fedprox.local.lr", "fedprox")
    ('method.mu', 'local.lr')
    """
    inner = key.partition(".")[2]
    return inner if _general(inner, method) else f"method.{inner}"


def _general(key: str, method: str | None) -> bool:
    """Whether a key after a method's name is a general setting and not one of the method's own."""
    head = key.split(".")[0]
    registry = configs.registry("method")
    return head in GENERAL and (method not in registry.names() or head not in registry.settings(str(method)))
