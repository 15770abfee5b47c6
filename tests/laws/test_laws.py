"""Every law holds."""

from __future__ import annotations

import inspect

import pytest
from broken import laws
from method_laws import EVERY

from arno.methods import methods

LAWS = laws()


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    LAWS[name]()


def test_the_laws_cover_every_parallel_method() -> None:
    """A new method joins EVERY, so that streaming, order and composition are checked for it too."""
    own_files = {"compose", "lorenzo"}  # compose is every method; Lorenzo is sequential and has laws of its own
    assert {name for name, _ in EVERY} >= set(methods.names()) - own_files


@pytest.mark.parametrize("name", [name for name, _ in EVERY])
def test_every_method_says_what_it_is(name: str) -> None:
    factory = methods.get(name)
    assert methods.info(name)["paper"]
    assert methods.info(name)["formula"]
    text = inspect.getdoc(factory)
    assert text
    for setting in methods.settings(name):
        assert setting in text or "settings as for" in text, f"{name}: {setting} is not explained"
