"""The grid of a comparison: what commas and ranges in settings span."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from hashlib import blake2b
from itertools import product

from ..config import settings as configs
from ..errors import ArnoError

GENERAL = frozenset(f.name for f in fields(configs.Config))


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    name: what is compared: the method with its own settings or, where there is one method, the first key that varies.
    setting: the other keys that vary; groups are compared within it.
    """

    name: str
    setting: str
    seed: str
    varied: str
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        """A folder name of its own."""
        text = re.sub(r"[^\w.=+-]+", "_", f"{self.varied}+seed={self.seed}" if self.seed else self.varied) or "run"
        return text if len(text) <= 200 else f"{text[:180]}-{blake2b(text.encode(), digest_size=6).hexdigest()}"

    @property
    def title(self) -> str:
        """The cell for a reader."""
        return " ".join(filter(None, (self.name, self.setting, f"seed={self.seed}" if self.seed else "")))


def cells(overrides: Sequence[str]) -> list[Cell]:
    """The grid that commas (`a,b`) and ranges (`0..4`) span; brackets and parentheses protect their commas.

    A setting that only one of the methods has, or has otherwise, is written after that method's name.

    >>> [c.folder for c in cells(["method=fedavg,fedprox", "seed=0..1", "rounds=5"])]
    ['method=fedavg+seed=0', 'method=fedavg+seed=1', 'method=fedprox+seed=0', 'method=fedprox+seed=1']
    >>> [c.overrides for c in cells(["method=fedavg,fedprox", "fedprox.mu=1", "fedprox.local.lr=0.1"])]
    [('method=fedavg',), ('method=fedprox', 'method.mu=1', 'local.lr=0.1')]
    >>> grid = cells(["partition.alpha=0.1,1", "method=fedavg,fedprox", "fedprox.mu=0.5,1"])
    >>> [(c.name, c.setting) for c in grid][-2:]
    [('fedprox mu=0.5', 'partition.alpha=1'), ('fedprox mu=1', 'partition.alpha=1')]
    """
    given = []
    for text in overrides:
        key, equals, value = text.partition("=")
        several = list(values(value)) if equals else [value]
        for each in several:
            configs.parse(f"{key}{equals}{each}")
        given.append((key, several))
    compared = {method for key, several in given if key == "method" for method in several}
    for key, _ in given:
        _refuse(key.lstrip("+"), compared)
    shared = [(key, several) for key, several in given if key.split(".")[0] not in compared]
    varying = [key for key, several in shared if len(several) > 1 and key != "seed"]
    subject = "method" if len(compared) > 1 else next(iter(varying), "method")
    found: dict[Cell, None] = {}
    for choice in product(*(several for _, several in shared)):
        chosen = dict(zip((key for key, _ in shared), choice, strict=True))
        method = chosen.get("method")
        own = [(key.partition(".")[2], several) for key, several in given if key.split(".")[0] == method]
        for more in product(*(several for _, several in own)):
            mine = dict(zip((key for key, _ in own), more, strict=True))
            told = [f"{key}={mine[key]}" for key, several in own if len(several) > 1]
            named = [f"{key}={chosen[key]}" for key in varying]
            name = [f"{subject}={chosen[subject]}".removeprefix("method=")] if subject in chosen else []
            setting = [word for word in named if word.partition("=")[0] != subject]
            varied = [*named, *(f"{method}.{word}" for word in told)]
            words = [f"{key}={value}" for key, value in chosen.items()]
            words += [f"{key if _general(key, method) else f'method.{key}'}={value}" for key, value in mine.items()]
            text = " ".join([*name, *told]) or str(configs.Config.method)
            found[Cell(text, " ".join(setting), chosen.get("seed", ""), " ".join(varied), tuple(words))] = None
    return list(found)


def _refuse(key: str, compared: set[str]) -> None:
    """Settings written after the name of a method that is not compared, or that the method does not have."""
    method, dot, rest = key.partition(".")
    if not dot or method in GENERAL:
        return
    head, registry = rest.split(".")[0], configs.registry("method")
    if method not in compared:
        near = get_close_matches(method, [*registry.names(), "custom"], 1, 0.7)
        if near and near[0] != method:
            raise ArnoError(f"unknown key {key!r}", "no method is called so", f"did you mean {near[0]}.{rest}?")
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


def _general(key: str, method: str | None) -> bool:
    """Whether a key written after a method's name is a general setting and none of the method's own."""
    head = key.split(".")[0]
    registry = configs.registry("method")
    return head in GENERAL and (method not in registry.names() or head not in registry.settings(str(method)))


def values(text: str) -> Iterator[str]:
    """The values that a setting of a grid lists.

    >>> list(values("0..2")), list(values("[8, 8],[16]"))
    (['0', '1', '2'], ['[8, 8]', '[16]'])
    """
    bounds = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text)
    if bounds:
        low, high = int(bounds[1]), int(bounds[2])
        if high < low:
            raise ArnoError(f"range {text}", "it must rise", f"write {high}..{low}")
        yield from (str(i) for i in range(low, high + 1))
        return
    depth, piece = 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield piece
            piece = ""
        else:
            piece += character
    yield piece
