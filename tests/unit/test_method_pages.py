"""The page of every method in the documentation says what a reader needs, with measured figures."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from unicodedata import normalize
from xml.etree import ElementTree

import pytest
import yaml

from arno.config.settings import compose, plain
from arno.methods.descriptions import entries

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Combinations by name have no figure of their own.
NOT_MEASURED = {"compose"}


@pytest.fixture(scope="module")
def tables():
    """`tools/pages.py`, which writes the pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("pages")


@pytest.mark.parametrize("one", entries(), ids=lambda one: one.name)
def test_a_page_says_all_that_a_reader_needs(one, tables):
    page = tables.page(one)
    assert one.sentence.endswith(".")
    assert ". " not in one.sentence, "one sentence"
    assert one.sentence[0].isupper()
    for words in (one.sentence, f"Paper: {one.paper}", "**It helps** ", "**It hurts** ", one.command):
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


@pytest.mark.parametrize("one", entries(), ids=lambda one: one.name)
def test_a_formula_is_set_without_losing_a_symbol(one, tables):
    blocks = re.findall(r"<math .*?</math>", tables.page(one))
    assert len(blocks) == one.formula.count(";  ") + 1
    shown = "".join("".join(ElementTree.fromstring(block).itertext()) for block in blocks)
    assert symbols(shown) == symbols(one.formula.replace(";  ", " "))


def symbols(text):
    """The letters and signs of a formula, without what only lays it out."""
    same = str.maketrans({"∑": "Σ", "-": "−", "ḡ": "g"})
    flat = normalize("NFKC", text.replace("ḡ", "g").replace("\u0304", "")).translate(same).replace("¯", "")
    return sorted(re.sub(r"[\s_^{}()\[\]/√\u0304]", "", normalize("NFKD", flat).replace("\u0304", "")))


@pytest.mark.parametrize(
    ("formula", "piece"),
    [
        ("x_k²", "<msubsup><mi>x</mi><mrow><mi>k</mi></mrow><mrow><mn>2</mn></mrow></msubsup>"),
        ("a/(b c)", "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi>"),
        ("a / b", "<mi>a</mi><mo>/</mo><mi>b</mi>"),
        ("√V", "<msqrt><mi>V</mi></msqrt>"),
        ("Σ_{k<n} p", "<munder>"),
        ("steps_k", "<msub><mtext>steps</mtext>"),
        (") a (", "<mo>)</mo>"),
    ],
)
def test_formulas_become_mathml(formula, piece, tables):
    text = tables.mathml(formula)
    ElementTree.fromstring(text)
    assert piece in text


def test_every_page_is_in_the_navigation_once(tables):
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = re.findall(r'"([^"]+\.md)"', json.dumps(tables.navigation(settings["nav"])))
    assert sorted(named) == sorted(tables.pages())


def test_a_page_has_no_table_left_to_fill(tables):
    for path, text in tables.pages().items():
        assert not re.search(r"^:::|^<!-- (settings|groups|methods|roles|example|data|partition) -->", text, re.M), path
    assert "arno.run(" in tables.pages()["api.md"]
