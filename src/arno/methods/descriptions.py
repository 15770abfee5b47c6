"""The description of a method, read from its source file, for listings and for the documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from ..core.method_part import Part
from ..errors import unknown
from . import FAMILIES, methods
from .kept_layers import Keep

#: A line of a docstring that explains settings: their names, then the text.
EXPLAINED = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*): (.*)")


@dataclass(frozen=True)
class Setting:
    """A setting of a method. range: what is worth searching, as `arno tune` reads it; empty if none is declared."""

    name: str
    default: Any
    text: str
    range: str


@dataclass(frozen=True)
class Entry:
    """The description of a method.

    sentence: what it changes. helps, hurts: when it helps and when it hurts. sends: what clients receive and send.
    defaults: general settings for which the method has another default.
    ranges: the ranges of general settings that are worth searching.
    origin: the docstring of its file, with formulas and deviations.
    """

    name: str
    family: str
    sentence: str
    helps: str
    hurts: str
    formula: str
    paper: str
    parts: str
    sends: str
    settings: tuple[Setting, ...]
    defaults: Mapping[str, Any]
    ranges: Mapping[str, str]
    origin: str

    @property
    def command(self) -> str:
        """A command that runs it."""
        tested = " data.client_test=0.2" if self.family == "personal" else ""
        parts = " method.parts=[proximal,scaffold]" if self.name == "compose" else ""
        return f"arno run method={self.name}{parts}{tested}"


def entry(name: str) -> Entry:
    """The description of one method."""
    factory, info = methods.get(name), methods.info(name)
    lead, texts = read(factory.__doc__ or "")
    tune: Mapping[str, str] = info.get("tune", {})
    parts = [] if info.get("nested") else methods.get(name)()
    return Entry(
        name=name,
        family=info["family"],
        sentence=lead,
        helps=texts.pop("Helps"),
        hurts=texts.pop("Hurts"),
        formula=info["formula"],
        paper=info["paper"],
        parts=composition(name, parts),
        sends="what its parts send" if info.get("nested") else sends(parts),
        settings=tuple(
            Setting(p.name, p.default, texts[p.name], tune.get(p.name, "")) for p in methods.settings(name).values()
        ),
        defaults=info.get("defaults", {}),
        ranges={key: text for key, text in tune.items() if key not in methods.settings(name)},
        origin=inspect.cleandoc(inspect.getmodule(factory).__doc__ or ""),
    )


def entries(family: str | None = None) -> list[Entry]:
    """The descriptions of all methods, or of the methods of a family, in the order of the families."""
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    found = [entry(name) for name in methods.names() if family in (None, methods.info(name)["family"])]
    return sorted(found, key=lambda one: (list(FAMILIES).index(one.family), one.name))


def read(docstring: str) -> tuple[str, dict[str, str]]:
    """The first sentence of a docstring, and its explained lines by name: `Helps`, `Hurts` and the settings.

    >>> read("It does this.\\n\\n    Helps: often.\\n    Hurts: with a large\\n        μ.\\n\\n    a, b: numbers.\\n")
    ('It does this.', {'Helps': 'often.', 'Hurts': 'with a large μ.', 'a': 'numbers.', 'b': 'numbers.'})
    """
    lead, _, rest = inspect.cleandoc(docstring).split(">>>")[0].strip().partition("\n")
    before, _, arguments = rest.partition("\nArgs:\n")
    lines = [*before.split("\n"), *dedent(arguments).split("\n")]
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        found = EXPLAINED.fullmatch(line) or re.fullmatch(r"(Helps|Hurts): (.*)", line)
        if found:
            names = found[1].split(", ")
            texts |= dict.fromkeys(names, found[2])
        elif line.startswith(" "):
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return lead, texts


def composition(name: str, parts: Sequence[Part]) -> str:
    """The parts of a method in words."""
    if nested := methods.info(name).get("nested"):
        return f"any of {', '.join(nested.names())}"
    return " + ".join(type(part).__name__ for part in parts) or "none, it is the round itself"


def sends(parts: Sequence[Part]) -> str:
    """What each client receives and sends in a round, as the parts declare it.

    >>> sends([])
    'to the client: the model; from the client: the model'
    >>> sends([Keep("full")])
    'nothing'
    """
    if any(isinstance(part, Keep) and part.group == "full" for part in parts):
        return "nothing"
    cut = ""
    if any("window" in part.roles for part in parts):
        cut += " within the client's window"
    if any(type(part).private is not Part.private for part in parts):
        cut += ", without what stays with the client"
    more = [sum(part.vectors[way] for part in parts) for way in (0, 1)]
    numbers = " and a few numbers" if any(type(part).answered is not Part.answered for part in parts) else ""
    further = [f" and {n} further vector{'s' if n > 1 else ''}" if n else "" for n in more]
    to, back = (f"the model{text}{cut}" for text in further)
    return f"to the client: {to}; from the client: {back}{numbers}"
