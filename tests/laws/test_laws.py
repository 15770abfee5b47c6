import inspect

import pytest

from arno.methods import methods
from laws import EVERY, LAWS


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_law(law):
    law()


def test_the_laws_cover_every_parallel_method():
    """A new method joins EVERY, so that streaming, order and composition are checked for it too."""
    own_files = {"compose", "lorenzo"}  # compose is every method; Lorenzo is sequential and has laws of its own
    assert {name for name, _ in EVERY} >= set(methods.names()) - own_files


@pytest.mark.parametrize("name", [name for name, _ in EVERY])
def test_every_method_says_what_it_is(name):
    factory = methods.get(name)
    assert methods.info(name)["paper"]
    assert methods.info(name)["formula"]
    text = inspect.getdoc(factory)
    assert text
    for setting in methods.settings(name):
        assert setting in text or "settings as for" in text, f"{name}: {setting} is not explained"
