"""The names of every group and their settings, read from the source files without an import of these files."""

from __future__ import annotations

import ast
from pathlib import Path


def registered(group: str) -> dict[str, list[str]]:
    """The names of a group and their settings.

    They are read from the source files, because to import these files takes too long for completion.

    >>> registered("partition")["shards"]
    ['shards']
    """
    root = Path(__file__).parents[1]
    register, place = {
        "method": ("methods.register", root / "methods"),
        "problem": ("problems.register", root / "config" / "build.py"),
        "model": ("models.register", root / "models"),
        "engine": ("engines.register", root / "engines"),
        "data": ("datasets.register", root / "data" / "sources"),
        "task": ("tasks.register", root / "tasks"),
        "partition": ("partitions.register", root / "data" / "partition"),
        "select": ("selections.register", root / "client_selection"),
    }[group]
    found = {}
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == register:
                    found[ast.literal_eval(call.args[0])] = [argument.arg for argument in node.args.kwonlyargs]
    return dict(sorted(found.items()))
