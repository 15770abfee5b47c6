"""Write the pages of the site: those of docs/, with tables from the code, and a page for every method.

    python tools/pages.py    # build/docs and build/mkdocs.yml, from which `make docs` builds the site

What the code says is taken from the code, so that it cannot go stale: `<!-- settings -->` and the like are replaced by
tables, `::: arno.run` by the signature and the docstring, formulas are set as MathML.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from api import entry_of
from arno.cli.abilities import engines_of, tasks_of
from arno.cli.listing import settings_of
from arno.config.settings import GROUPS, describe, registry, written
from arno.core.method_part import ROLES
from arno.methods import FAMILIES
from arno.methods.descriptions import Entry, entries
from mathml import mathml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: The pages of the studies, from which the pages of the methods take their figures.
RESULTS = DOCS / "results"
#: The sections of the navigation that take pages of a folder which it does not name; "" is any other folder.
SECTIONS = {"results": "Results", "adr": "Decisions", "": "How-to guides"}


def main() -> None:
    target = ROOT / "build" / "docs"
    shutil.rmtree(target, ignore_errors=True)
    for name, content in pages().items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(content)
    for path in DOCS.rglob("*"):
        if path.suffix in (".png", ".svg", ".css"):
            copy = target / path.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    settings |= {"docs_dir": "docs", "site_dir": "site", "nav": navigation(settings["nav"])}
    (target.parent / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def pages() -> dict[str, str]:
    """Every page by its path."""
    found = {path.relative_to(DOCS).as_posix(): filled(path.read_text()) for path in sorted(DOCS.rglob("*.md"))}
    return found | {f"methods/{one.name}.md": page(one) for one in entries()}


def filled(markdown: str) -> str:
    """A page with its tables, and with the entries of the Python API."""
    for name, make in TABLES.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", make())
    return re.sub(r"^::: arno\.(\w+)$", lambda found: entry_of(found[1]), markdown, flags=re.M)


def navigation(nav: list[Any]) -> list[Any]:
    """The navigation with the pages of the methods, and with every page of docs/ that it does not name."""
    families = [{family.capitalize(): [f"methods/{one.name}.md" for one in entries(family)]} for family in FAMILIES]
    text = json.dumps(nav)
    unnamed = [path for path in pages() if f'"{path}"' not in text and not path.startswith("methods/")]
    result = []
    for ((title, content),) in (item.items() for item in nav):
        folders = [folder for folder, section in SECTIONS.items() if section == title]
        more = [path for path in unnamed if folders == [path.split("/")[0] if path.split("/")[0] in SECTIONS else ""]]
        if title == "Reference":
            content = [*content, {"Methods": families}]
        result.append({title: [*content, *more] if isinstance(content, list) else content})
    return result


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
    """A table for each family; every method has a page of its own."""
    texts = []
    for family, what in FAMILIES.items():
        rows = ([f"[{one.name}](methods/{one.name}.md)", one.sentence] for one in entries(family))
        texts.append(f"### {family.capitalize()}: {what}\n\n{table(['method', 'what it does'], rows)}")
    return "\n\n".join(texts)


def page(one: Entry) -> str:
    """The page of a method, from what its sources declare and from the measured results."""
    settings = (
        [code(f"method.{s.name}"), code(written(s.default)), code(s.range), s.text] for s in one.settings
    )  # fmt: skip
    facts = {"Parts": one.parts, "Sends": one.sends, "Engines": engines_of(one.name), "Tasks": tasks_of(one.name)}
    facts["Defaults"] = ", ".join(code(f"{key}={written(value)}") for key, value in one.defaults.items())
    facts["Worth tuning"] = ", ".join(code(f"{key}={text}") for key, text in one.ranges.items())
    pieces = [
        f"# {one.name}",
        one.sentence,
        f'<div class="formula">\n{mathml(one.formula)}\n</div>',
        f"Paper: {one.paper}.",
        f"**It helps** {one.helps}",
        f"**It hurts** {one.hurts}",
        measured(one.name),
        table(["setting", "default", "[worth tuning](../tune.md)", "meaning"], settings)
        if one.settings
        else "It has no settings.",
        f"```sh\n{one.command}\n```",
        "\n".join(f"- {fact}: {text}" for fact, text in facts.items() if text),
        f"## In its file\n\n```text\n{one.origin}\n```",
    ]
    return "\n\n".join(filter(None, pieces)) + "\n"


def measured(name: str) -> str:
    """What the studies measured of a method."""
    lines = []
    skewed = figures("label_skew")
    if name in skewed:
        mine, base = (percent(skewed[which]) for which in (name, "fedavg"))
        rest = "" if name == "fedavg" else f"; FedAvg: {base}"
        lines.append(f"- [skewed digits](../results/label_skew.md): test accuracy {mine}{rest}")
    for problem, arms in figures("personal").items():
        for arm in (name, f"{name}, fine-tuned"):
            if arm in arms:
                bases = {"FedAvg": "fedavg", "fine-tuned FedAvg": "fedavg, fine-tuned", "training alone": "local"}
                others = [f"{text}: {percent(arms[base])}" for text, base in bases.items() if base != arm]
                rest = "" if name == "fedavg" else "; " + ", ".join(others)
                adapted = ", fine-tuned" if "," in arm else ""
                mine = f"own test accuracy {percent(arms[arm])}"
                lines.append(f"- [{problem}](../results/personal.md){adapted}: {mine}{rest}")
    return "\n".join(["Measured, each with a tuned learning rate:", "", *lines]) if lines else ""


def percent(row: dict[str, Any]) -> str:
    """The mean accuracy of an arm."""
    return f"{100 * fmean(row['accuracy']):.1f} %"


def figures(study: str) -> dict[str, Any]:
    """The numbers of a study."""
    found: dict[str, Any] = json.loads((RESULTS / f"{study}.json").read_text())
    return found


def example() -> str:
    return f"```python\n{(ROOT / 'examples' / 'my_method.py').read_text()}```"


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


if __name__ == "__main__":
    main()
