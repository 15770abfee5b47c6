"""The shape of the source: imports go one way, names stay private, functions stay short, abilities are declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "arno"
#: A room may import the rooms on the lines below it, and itself.
ROOMS = [
    ("__main__",),
    ("cli",),
    ("__init__",),
    ("ui",),
    ("report",),
    ("reproduce",),
    ("grids",),
    ("analysis",),
    ("runs",),
    ("tracking",),
    ("records",),
    ("config",),
    ("conform",),
    ("engines",),
    ("methods", "client_selection"),
    ("problems",),
    ("models", "data"),
    ("kernels",),
    ("tasks",),
    ("pictures",),
    ("quadratic",),
    ("core",),
    ("registry",),
    ("limits",),
    ("machine",),
    ("errors", "version"),
]
PRIVATE = re.compile(r"_[^_]")
#: A function has fewer lines.
LONGEST = 60
#: Modules that look for an attribute by a constant name, and why. Abilities of Arno's own classes are declared.
LOOKED_FOR = {
    ("cli", "__notes__"): "an exception has notes once one was added",
}


def module(path: Path) -> str:
    """The name of a module within arno."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


FILES = {module(path): path for path in sorted(SRC.rglob("*.py"))}
EVERY_FILE = pytest.mark.parametrize("path", FILES.values(), ids=FILES)


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """What a module imports, now or later: (module, name in it). What only type checkers see does not count."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    whole = tree(path)
    checks = [n for n in ast.walk(whole) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    unseen = {id(node) for check in checks for statement in check.body for node in ast.walk(statement)}
    package = path.parts[len(SRC.parts) - 1 : -1]  # of a file in the source
    for node in ast.walk(whole):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            where = ".".join([*base, *filter(None, [node.module])])
            yield from ((where, alias.name) for alias in node.names)


def room(where: str, name: str = "") -> str:
    """The room that holds what is imported; a name may be a module of its own."""
    inside = [*where.split(".")[1:], name]
    return inside[0] if inside[0] in {file.split(".")[0] for file in FILES} else "__init__"


@EVERY_FILE
def test_imports_go_down(path: Path) -> None:
    height = {name: i for i, line in enumerate(ROOMS) for name in line}
    mine = module(path).split(".")[0]
    for where, name in imports(path):
        if where.split(".")[0] == "arno":
            other = room(where, name)
            assert mine == other or height[mine] < height[other], f"{mine} must not import {other} ({where}, {name})"


def test_every_room_is_listed() -> None:
    assert {name for line in ROOMS for name in line} == {file.split(".")[0] for file in FILES}


@EVERY_FILE
def test_private_names_stay_in_their_module(path: Path) -> None:
    nodes = list(ast.walk(tree(path)))
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom) and (n.level or (n.module or "").startswith("arno"))]
    aliases = [alias for node in froms for alias in node.names]
    assert not [alias.name for alias in aliases if PRIVATE.match(alias.name)]
    ours = {alias.asname or alias.name for alias in aliases}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
            assert not PRIVATE.match(node.attr), f"{node.attr} is private to {node.value.id}"


@EVERY_FILE
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines < LONGEST, f"{node.name} has {lines} lines"


def test_abilities_are_declared_and_not_looked_for() -> None:
    calls = (
        (name, node) for name, path in FILES.items() for node in ast.walk(tree(path)) if isinstance(node, ast.Call)
    )
    found = {
        (name, str(node.args[1].value))
        for name, node in calls
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if isinstance(node.args[1], ast.Constant)
    }
    assert found == LOOKED_FOR.keys()


#: Distributions that have another name than the module that they bring.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def declared(extra: str = "") -> set[str]:
    """The distributions that pyproject.toml asks for: the dependencies, and those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]
    extras = [name for line in asked if line.startswith("arno[") for name in line[5:-1].split(",")]
    names = {re.split(r"[\[<>=]", line)[0].lower() for line in asked} - {"arno"}
    return names.union(*map(declared, extras))


def needed(folder: Path) -> set[str]:
    """The distributions that the files of a folder import."""
    found = {where.split(".")[0] for path in folder.rglob("*.py") for where, _ in imports(path)}
    return {DISTRIBUTIONS.get(name, name) for name in found - {"arno", *sys.stdlib_module_names}}


def test_everything_imported_is_declared() -> None:
    assert needed(SRC) - declared() == {
        "mlflow",
        "numba",
        "optuna",
        "ray",
        "starlette",
        "tensorboard",
        "uvicorn",
        "wandb",
    }, "these are optional"
    assert needed(SRC) <= declared("dev") | declared("wandb")
    helpers = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    assert needed(ROOT / "tests") - helpers <= declared("dev")
