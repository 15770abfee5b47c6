"""A page of results notes what it was made from, and a change of that makes it stale."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "# A page\n\nNumbers.\n"


@pytest.fixture
def stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/stale.py, with a project of its own: two files of sources, a study and a page."""
    spec = importlib.util.spec_from_file_location("stale_under_test", ROOT / "benchmarks" / "stale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOURCES", {"mine": ("src/core", "src/one.py")})
    for name, text in (("core/a.py", "x = 1\n"), ("core/data.bin", "raw"), ("one.py", '"""Doc."""\n\ny = 2  # two\n')):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    (tmp_path / "benchmarks/studies").mkdir(parents=True)
    (tmp_path / "benchmarks/studies/mine.py").write_text("z = 3\n")
    (tmp_path / "mine.md").write_text(PAGE)
    return module


def test_a_marked_page_is_fresh_and_names_what_changes(stale, tmp_path):
    page = tmp_path / "mine.md"
    assert stale.changed(page, tmp_path) == ["it does not say what it was made from"]
    stale.mark(page, tmp_path)
    stale.mark(page, tmp_path)
    assert page.read_text().startswith(PAGE)
    assert page.read_text().count("<!-- made from: ") == 1
    assert stale.changed(page, tmp_path) == []
    for name, text, source in (
        ("src/core/a.py", "x = 2\n", "src/core"),
        ("src/core/data.bin", "other", "src/core"),
        ("src/core/new.py", "", "src/core"),
        ("src/one.py", "y = 3\n", "src/one.py"),
        ("benchmarks/studies/mine.py", "z = 4\n", "benchmarks/studies/mine.py"),
    ):
        before = (tmp_path / name).read_text() if (tmp_path / name).exists() else None
        (tmp_path / name).write_text(text)
        assert stale.changed(page, tmp_path) == [source], name
        if before is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(before)
    assert stale.changed(page, tmp_path) == []
    (tmp_path / "src/one.py").unlink()
    assert stale.changed(page, tmp_path) == ["src/one.py"]


def test_words_do_not_make_a_page_stale(stale, tmp_path):
    page = tmp_path / "mine.md"
    stale.mark(page, tmp_path)
    (tmp_path / "src/one.py").write_text('"""Another\n\ndoc."""\n# a comment\ny = 2  # two\n')
    (tmp_path / "src/core/__pycache__").mkdir()
    (tmp_path / "src/core/__pycache__/a.pyc").write_text("compiled")
    assert stale.changed(page, tmp_path) == []
    (tmp_path / "src/one.py").write_text('"""Doc."""\n\ny = "# two"\n')
    assert stale.changed(page, tmp_path) == ["src/one.py"]


def test_a_renamed_file_changes_a_folder(stale, tmp_path):
    before = stale.digest(tmp_path / "src/core")
    (tmp_path / "src/core/a.py").rename(tmp_path / "src/core/b.py")
    assert stale.digest(tmp_path / "src/core") != before


def test_the_command_names_stale_pages_and_marks_one_on_demand(stale, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stale, "PAGES", tmp_path)
    assert stale.main([]) == 1
    assert "mine.md: it does not say what it was made from\n1 of 1 pages" in capsys.readouterr().out
    mark, changed = stale.mark, stale.changed
    monkeypatch.setattr(stale, "mark", lambda page: mark(page, tmp_path))
    monkeypatch.setattr(stale, "changed", lambda page: changed(page, tmp_path))
    assert stale.main(["--made", "mine"]) == 0
    assert stale.main([]) == 0
    assert capsys.readouterr().out.startswith("0 of 1 pages")
    (tmp_path / "new.md").write_text(PAGE)
    assert stale.main([]) == 1
    assert "new.md: benchmarks/stale.py does not list its sources" in capsys.readouterr().out


def test_every_source_exists():
    spec = importlib.util.spec_from_file_location("stale_as_it_is", ROOT / "benchmarks" / "stale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.SOURCES:
        for source in module.sources(name):
            assert (ROOT / source).exists(), f"{name}: {source}"
