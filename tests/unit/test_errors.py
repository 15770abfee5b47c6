"""Errors that a user sees cross to another process as what they are."""

from __future__ import annotations

import pickle

import pytest

from arno.engines.packing import portable
from arno.errors import ArnoError, Diverged


@pytest.mark.parametrize("error", [ArnoError("a", "b", "c"), ArnoError("a", "b"), Diverged("a", "b")])
def test_a_copy_in_another_process_says_the_same(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
    assert portable(error) is error, "an engine need not put it into words"
