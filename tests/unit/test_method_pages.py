"""The page of every method in the documentation says what a reader needs, with measured figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from arno.config.settings import compose, plain
from arno.methods.catalogue import entries

DOCS = Path(__file__).parents[2] / "docs"
STUBS = {"config.defaults": ("MkDocsConfig",), "structure.files": ("File", "Files")}
#: Combinations by name have no figure of their own.
NOT_MEASURED = {"compose"}


@pytest.fixture(scope="module")
def tables():
    """`docs/tables.py`, which MkDocs imports; MkDocs itself is not needed to write a page."""
    with pytest.MonkeyPatch.context() as patch:
        for name, classes in STUBS.items():
            module = ModuleType(f"mkdocs.{name}")
            for each in classes:
                setattr(module, each, object)
            patch.setitem(sys.modules, module.__name__, module)
        spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("one", entries(), ids=lambda one: one.name)
def test_a_page_says_all_that_a_reader_needs(one, tables):
    page = tables.page(one)
    assert one.sentence.endswith(".")
    assert ". " not in one.sentence, "one sentence"
    assert one.sentence[0].isupper()
    for words in (one.sentence, one.formula, f"Paper: {one.paper}", "**It helps** ", "**It hurts** ", one.command):
        assert words in page
    for setting in one.settings:
        assert f"`method.{setting.name}`" in page
        assert setting.text
    assert ("Measured, each with a tuned learning rate" in page) == (one.name not in NOT_MEASURED)
    for link in ("label_skew", "personal"):
        assert (DOCS / "results" / f"{link}.md").exists()


@pytest.mark.parametrize("one", entries(), ids=lambda one: one.name)
def test_the_command_of_a_page_is_accepted(one):
    words = one.command.split()
    assert words[:2] == ["arno", "run"]
    assert plain(compose(words[2:]))["method"]["kind"] == one.name
