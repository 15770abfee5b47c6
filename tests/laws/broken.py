"""Break one place of the code at a time and see whether a law notices it: `python tests/laws/broken.py [words]`.

A place is found by structure. A mutant names a module, a function in it and a pattern: Python code in which single
capital letters stand for any expression (the same letter twice: for equal expressions). `A.add_(B - C, alpha=J.mu)`
finds a call of `add_` with a difference and the keyword `alpha`, however the local variables are called and however the
code is laid out. A pattern must match one node of the function; the node becomes the replacement. A pattern that is
replaced by itself changes nothing and tells what its letters stand for.

Each mutant runs in a forked child that imports Arno with the broken module. Prints `killed`, `SURVIVED` or `CRASHED`
for each mutant and exits with the number of mutants that were not killed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / "src" / "arno"
#: The modules that hold laws.
FILES = (
    "method_laws",
    "lorenzo_laws",
    "part_laws",
    "task_laws",
    "kernel_laws",
    "run_laws",
    "baseline_laws",
    "personal_laws",
)
#: How a law fails when the code is broken; anything else means that the mutant itself is no valid code.
NOTICED = ("AssertionError", "ArithmeticError", "ArnoError")
KILLED, SURVIVED, CRASHED = 1, 0, 2


@dataclass(frozen=True)
class Mutant:
    """A mistake that is easy to make, and the law that must notice it.

    module: relative to `src/arno`. where: the function, method, class or constant in it.
    changes: patterns and what replaces them.
    """

    module: str
    where: str
    changes: Mapping[str, str]
    law: str

    def __str__(self) -> str:
        changes = "; ".join(f"{old}  →  {new}" for old, new in self.changes.items() if old != new)
        return f"{self.module}, {self.where}: {changes}  ({self.law})"


class Lost(Exception):
    """A mutant no longer finds its place."""


def broken(mutant: Mutant, tree: ast.Module) -> str:
    """The source of the module with the mistake."""
    scope, names, places = scope_of(tree, mutant), dict[str, ast.AST](), dict[int, ast.AST]()
    for pattern, replacement in mutant.changes.items():
        wanted, new = parsed(pattern), parsed(replacement)
        if isinstance(wanted, ast.expr) and not isinstance(new, ast.expr):
            wanted = ast.Expr(wanted)
        found = [(node, more) for node in ast.walk(scope) if (more := match(wanted, node, names)) is not None]
        if len(found) != 1:
            count = f"{len(found)} places match `{pattern}`, one should"
            raise Lost(f"{mutant}\n  {count}: bring the mutant up to date in tests/laws/mutants.py")
        place, names = found[0]
        places[id(place)] = new
    Replace(places, names).visit(tree)
    return ast.unparse(tree)


def scope_of(tree: ast.Module, mutant: Mutant) -> ast.AST:
    """The definition that a mutant names."""
    scope: ast.AST = tree
    for name in mutant.where.split("."):
        inside = [node for node in ast.iter_child_nodes(scope) if name in defined(node)]
        if len(inside) != 1:
            raise Lost(f"{mutant}\n  {mutant.module} has no {mutant.where}: bring the mutant up to date")
        scope = inside[0]
    return scope


def defined(node: ast.AST) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def parsed(code: str) -> ast.AST:
    """A pattern or replacement: an expression, else a statement."""
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def match(pattern: object, node: object, names: Mapping[str, ast.AST]) -> dict[str, ast.AST] | None:
    """What the letters stand for if a node matches a pattern, else None."""
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1 and pattern.id.isupper():
        if not isinstance(node, ast.expr):
            return None
        known = names.get(pattern.id)
        return {**names, pattern.id: node} if known is None or match(known, node, {}) is not None else None
    if isinstance(pattern, list) and isinstance(node, list):
        pairs = list(zip(pattern, node, strict=True)) if len(pattern) == len(node) else None
    elif isinstance(pattern, ast.AST) and type(pattern) is type(node):
        pairs = [(getattr(pattern, f), getattr(node, f)) for f in pattern._fields if f not in ("ctx", "type_comment")]
    else:
        return dict(names) if type(pattern) is type(node) and pattern == node else None
    for one, other in pairs or ():
        more = match(one, other, names)
        if more is None:
            return None
        names = more
    return None if pairs is None else dict(names)


class Replace(ast.NodeTransformer):
    """Puts replacements in their places."""

    def __init__(self, places: Mapping[int, ast.AST], names: Mapping[str, ast.AST]) -> None:
        self.places, self.names = places, names

    def visit(self, node: ast.AST) -> ast.AST:
        new = self.places.get(id(node))
        return self.generic_visit(node) if new is None else Fill(self.names).visit(deepcopy(new))


class Fill(ast.NodeTransformer):
    """Puts expressions in the place of letters."""

    def __init__(self, names: Mapping[str, ast.AST]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self.names.get(node.id, node))


class Import(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of Arno from other source text."""

    def __init__(self, path: Path, source: str) -> None:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        self.name, self.path, self.source = ".".join(parts).removesuffix(".__init__"), path, source

    def find_spec(self, name, where, target=None):  # type: ignore[no-untyped-def]
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        exec(compile(self.source, self.path, "exec"), module.__dict__)


def laws() -> dict[str, Callable[[], None]]:
    """All laws by name."""
    found = (vars(importlib.import_module(file)) for file in FILES)
    return {name.removeprefix("law_"): law for names in found for name, law in names.items() if name.startswith("law_")}


def home(law: str) -> str:
    """The module that holds a law."""
    (file,) = [file for file in FILES if re.search(rf"^def law_{law}\(", (HERE / f"{file}.py").read_text(), re.M)]
    return file


def judge(mutant: Mutant) -> int:
    """Run the law on the broken code; this process is good for nothing else afterwards."""
    path = ROOT / mutant.module
    sys.meta_path.insert(0, Import(path, broken(mutant, ast.parse(path.read_text("utf-8")))))
    law = getattr(importlib.import_module(home(mutant.law)), f"law_{mutant.law}")
    try:
        law()
    except Exception as error:
        if {kind.__name__ for kind in type(error).__mro__} & {*NOTICED}:
            return KILLED
        traceback.print_exc()
        return CRASHED
    return SURVIVED


def fates(mutants: Sequence[Mutant], at_once: int) -> Iterator[tuple[Mutant, int]]:
    """Every mutant with what became of it, in a child of its own; so many children at once."""
    waiting, running = list(mutants), dict[int, Mutant]()
    while waiting or running:
        while waiting and len(running) < at_once:
            mutant = waiting.pop(0)
            child = os.fork()
            if not child:
                status = CRASHED
                try:
                    status = judge(mutant)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            running[child] = mutant
        child, status = os.wait()
        yield running.pop(child), os.waitstatus_to_exitcode(status)


def main(words: Sequence[str]) -> int:
    """Try every mutant whose line holds all the words."""
    import torch
    from mutants import MUTANTS

    torch.set_num_threads(1)
    wrong = 0
    chosen = [mutant for mutant in MUTANTS if all(word in str(mutant) for word in words)]
    for mutant, fate in fates(chosen, at_once=min(4, os.cpu_count() or 1)):
        wrong += fate != KILLED
        print(f"{ {KILLED: 'killed', SURVIVED: 'SURVIVED'}.get(fate, 'CRASHED') } {mutant}", flush=True)
    return min(wrong, 100)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(ROOT.parent)]
    sys.exit(main(sys.argv[1:]))
