"""A law that no mistake can break is no law: every broken copy of the code must be noticed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from broken import ROOT, Lost, Mutant, broken, defined, laws, scope_of
from mutants import MUTANTS


def place(mutant: Mutant) -> str:
    return f"{mutant.module}:{mutant.where}"


def tree(mutant: Mutant) -> ast.Module:
    return ast.parse((ROOT / mutant.module).read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants run in forked children")
def test_every_broken_copy_is_noticed() -> None:
    driver = Path(__file__).with_name("broken.py")
    done = subprocess.run([sys.executable, str(driver)], capture_output=True, text=True, timeout=900)
    lines = done.stdout.splitlines()
    assert len(lines) == len(MUTANTS), done.stderr
    assert not [line for line in lines if not line.startswith("killed")], done.stderr


@pytest.mark.parametrize("mutant", MUTANTS, ids=place)
def test_a_mutant_finds_its_place_and_names_a_law(mutant: Mutant) -> None:
    assert broken(mutant, tree(mutant)) != ast.unparse(tree(mutant))
    assert mutant.law in laws()


class Rename(ast.NodeTransformer):
    """Gives every local variable of a function another name."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"{node.id}_renamed", node.ctx) if node.id in self.names else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(f"{node.arg}_renamed", node.annotation) if node.arg in self.names else node


@pytest.mark.parametrize("mutant", MUTANTS, ids=place)
def test_other_names_of_local_variables_do_not_matter(mutant: Mutant) -> None:
    whole = tree(mutant)
    scope = scope_of(whole, mutant)
    if isinstance(scope, ast.FunctionDef):
        stored = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        Rename((stored | {a.arg for a in ast.walk(scope) if isinstance(a, ast.arg)}) - {"self"}).visit(scope)
        broken(mutant, whole)


def test_a_mutant_that_lost_its_place_says_which_one_it_is() -> None:
    source = "class A:\n    def f(self, x):\n        return x + 1, x + 2\n"
    for where, pattern, words in (
        ("A.f", "X * Y", "0 places match `X * Y`"),
        ("A.f", "X + Y", "2 places match `X + Y`"),
        ("A.g", "X + Y", "no A.g"),
    ):
        with pytest.raises(Lost, match=re.escape(words)) as found:
            broken(Mutant("some/file.py", where, {pattern: "X"}, "a_law"), ast.parse(source))
        assert f"some/file.py, {where}: {pattern}  →  X  (a_law)" in str(found.value)


def test_letters_stand_for_equal_expressions() -> None:
    def changed(source: str, pattern: str, new: str) -> str:
        return broken(Mutant("file.py", "f", {pattern: new}, ""), ast.parse(source)).split("\n    ", 1)[1]

    assert changed("def f(a, b):\n    return a / b + b.x / b.x.sum()", "A / A.sum()", "A") == "return a / b + b.x"
    assert changed("def f(a):\n    a.go(1)\n    a.stop()", "A.stop()", "pass") == "a.go(1)\n    pass"
    assert changed("def f(a):\n    a.x = a.y = 2", "A = B = 2", "A = B = 3") == "a.x = a.y = 3"
    assert changed("def f(a):\n    return {'x': 1, 'y': -1}[a]", '{"x": 1, "y": -1}', "{}") == "return {}[a]"


def test_what_a_statement_defines() -> None:
    statements = ast.parse("A = B = 1\nC: int = 2\ndef d(): ...\nclass E: ...\nF.g = 3\nH += 1").body
    assert [defined(statement) for statement in statements] == [["A", "B"], ["C"], ["d"], ["E"], [], []]
