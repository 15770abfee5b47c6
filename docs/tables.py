"""Tables that the documentation takes from the code, so that they cannot go stale: `<!-- settings -->` and the like."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arno.cli.listing import parts_of, settings_of
from arno.config.settings import GROUPS, describe, registry, written
from arno.core.part import ROLES


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page."""
    for name, make in TABLES.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", make())
    return markdown


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def settings() -> str:
    return table(["key", "default", "meaning"], ([code(k), code(written(d)), text] for k, d, text in describe()))


def groups() -> str:
    rows = ([code(g), ", ".join(code(name) for name in registry(g).names())] for g in GROUPS)
    return table(["group", "choices"], rows)


def choices(group: str) -> str:
    known = registry(group)
    return table(
        [group, "what it is", "settings"],
        (
            [code(name), inspect.cleandoc(known.get(name).__doc__ or "").split("\n")[0], code(settings_of(known, name))]
            for name in known.names()
        ),
    )


def methods() -> str:
    known = registry("method")
    return table(
        ["method", "formula", "parts", "settings", "paper"],
        (
            [
                code(name),
                code(known.info(name).get("formula", "")),
                parts_of(known, name),
                code(settings_of(known, name)),
                known.info(name).get("paper", ""),
            ]
            for name in known.names()
        ),
    )


def example() -> str:
    return f"```python\n{(Path(__file__).parents[1] / 'examples' / 'my_method.py').read_text()}```"


def roles() -> str:
    return table(["role", "a part with this role"], ([code(role), text] for role, text in ROLES.items()))


TABLES = {
    "roles": roles,
    "example": example,
    "settings": settings,
    "groups": groups,
    "methods": methods,
    "data": lambda: choices("data"),
    "partition": lambda: choices("partition"),
}
