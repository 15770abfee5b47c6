"""Factories by name, and what they may be given."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

import pytest

from arno.errors import ArnoError, need, unknown
from arno.registry import MOVED, Registry, load_target


@pytest.fixture
def tools() -> Registry:
    registry = Registry("tool", "arno.report")

    @registry.register("hammer", paper="of wood")
    def hammer(handle: str, *, weight: float = 1.5) -> tuple[str, float]:
        """Hits."""
        return handle, weight

    @registry.register("saw")
    @dataclass
    class Saw:
        teeth: int = 30

    return registry


def test_names_settings_and_build(tools):
    assert tools.names() == ["hammer", "saw"]
    assert {n: p.default for n, p in tools.settings("hammer").items()} == {"weight": 1.5}
    assert {n: p.default for n, p in tools.settings("saw").items()} == {"teeth": 30}
    assert tools.build({"kind": "hammer", "weight": 2.0}, "oak") == ("oak", 2.0)
    assert tools.info("hammer") == {"paper": "of wood"}
    assert tools.info("custom") == {}


def test_an_unknown_name(tools):
    with pytest.raises(
        ArnoError, match=r"unknown tool 'hamer': the known names are custom, hammer, saw; did you mean 'hammer'"
    ):
        tools.get("hamer")
    with pytest.raises(ArnoError, match=r"the known names are custom, hammer, saw; choose one of them$"):
        tools.get("xyz")


def test_a_target_in_a_file(tools, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def make(x, *, y=1):\n    return x + y\n")
    target = f"{tmp_path / 'mine.py'}:make"
    assert tools.build({"kind": "custom", "target": target, "y": 5}, 2) == 7
    assert load_target(target) is load_target(target), "a file is read once"
    monkeypatch.chdir(tmp_path)
    assert load_target("mine.py:make") is load_target(target)
    with pytest.raises(ArnoError, match=r"tool=custom without tool\.target"):
        tools.get("custom")


def test_a_target_in_a_module():
    from numpy import prod

    assert load_target("numpy:prod") is prod
    with pytest.raises(ArnoError, match="cannot import no_such_module"):
        load_target("no_such_module:f")


def test_a_file_that_fails_leaves_no_trace(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ArnoError, match=r"importing it failed: ZeroDivisionError: .* line 1: 1 / 0.; correct the code"):
        load_target(f"{path}:f")
    path.write_text("def f(): return 1\n")
    assert load_target(f"{path}:f")() == 1


def test_errors_say_value_rule_remedy():
    assert str(ArnoError("a = 1", "it must be 2", "write 2")) == "a = 1: it must be 2; write 2"
    assert str(ArnoError("a = 1", "it must be 2")) == "a = 1: it must be 2"
    many = [f"name{i}" for i in range(40)]
    assert str(unknown("thing", "nam3", many)).startswith("unknown thing 'nam3': 40 other names are known")
    assert "did you mean" not in str(unknown("thing", "qqq", ["abc"]))
    assert "pip install 'arno[mlflow]'" in str(need("mlflow", "mlflow"))


def test_a_loaded_target_is_kept_with_its_full_path(tmp_path, monkeypatch):
    from arno.registry import load_target, loaded_targets

    (tmp_path / "own.py").write_text("def factory():\n    return []\n")
    monkeypatch.chdir(tmp_path)
    load_target("own.py:factory")
    assert f"{tmp_path / 'own.py'}:factory" in loaded_targets()  # other processes have other working folders


@pytest.mark.parametrize("old", MOVED)
def test_a_module_of_release_0_1_is_refused_with_its_new_name(old, tmp_path):
    """Own files of release 0.1, and targets that name such a module; every new name exists, and no old one does."""
    (tmp_path / "mine.py").write_text(f"from {old} import *\n")
    for target in (f"{tmp_path / 'mine.py'}:factory", f"{old}:factory"):
        with pytest.raises(ArnoError, match=rf"{re.escape(old)} is now arno\..*; change the import"):
            load_target(target)
    for name in re.findall(r"arno\.[\w.]+", MOVED[old]):
        importlib.import_module(name)


def test_a_module_that_was_never_there_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("import arno.nowhere\n")
    with pytest.raises(ArnoError, match=r"importing it failed: ModuleNotFoundError: No module named .arno\.nowhere"):
        load_target(f"{tmp_path / 'mine.py'}:factory")
