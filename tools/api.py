"""Entries of the Python API for the site: the signature and the docstring of a public name, and of its methods."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import arno
from arno.methods.descriptions import EXPLAINED

#: A signature that is longer has a line for each parameter.
WIDTH = 88


def entry_of(name: str) -> str:
    """The entry of `arno.NAME`."""
    thing = getattr(arno, name)
    pieces = [f"## arno.{name}", signature(f"arno.{name}", thing), prose(thing)]
    if isinstance(thing, type):
        for member, value in members(thing):
            pieces.append(f"### {member}")
            pieces += [signature(member, value)] if inspect.isfunction(value) else []
            pieces.append(prose(value))
    return "\n\n".join(filter(None, pieces))


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, in the order of its sources."""
    for name, value in vars(thing).items():
        found = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        documented = inspect.isfunction(found) or isinstance(found, property)
        if documented and not name.startswith("_") and inspect.getdoc(found):
            yield name, found


def signature(name: str, thing: Callable[..., Any]) -> str:
    """The call as code; a line for each parameter if it is long."""
    found = inspect.signature(thing)
    texts, starred = [], False
    for one in found.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = "" if one.annotation is one.empty else f": {one.annotation}"
        default = "" if one.default is one.empty else f" = {'…' if repr(one.default)[0] == '<' else repr(one.default)}"
        texts.append(f"{stars}{one.name}{kind}{default}")
    result = found.return_annotation
    back = "" if result in (found.empty, None, "None") else f" -> {result}"
    line = f"{name}({', '.join(texts)}){back}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){back}"
    return f"```python\n{line}\n```"


def prose(thing: Any) -> str:
    """A docstring as Markdown: examples as code, explained names as a list."""
    return "\n\n".join(map(paragraph, re.split(r"\n\s*\n", inspect.getdoc(thing) or "")))


def paragraph(text: str) -> str:
    """One paragraph of a docstring."""
    if text.startswith(">>>"):
        code = re.sub(r"\s*# doctest:.*", "", text)
        return f"```pycon\n{code}\n```"
    if not EXPLAINED.match(text):
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        if found := EXPLAINED.fullmatch(line):
            lines.append(f"- **{found[1]}**: {found[2]}")
        else:
            lines[-1] += " " + line.strip()
    return "\n".join(lines)
