"""The page of published figures is made from lines in the repository, and says which runs are missing."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(tmp_path, monkeypatch, request):
    """A study of benchmarks/studies whose runs take no time."""
    for folder in ("benchmarks/studies", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    cells, made = import_module("cells"), import_module(request.param)

    class Result:
        path, rows = Path("nowhere"), ()

    monkeypatch.setattr(cells, "CELLS", tmp_path / "cells")
    monkeypatch.setattr(cells, "json_of", lambda path: {"seconds": 600})
    monkeypatch.setattr(cells, "fingerprint", lambda path: "0")
    monkeypatch.setattr(cells, "states", dict)
    monkeypatch.setattr(cells.Book, "_perform", lambda self, cell, path, words, env: Result())
    monkeypatch.setattr(made, "PAGE", tmp_path / "page.md")
    monkeypatch.delenv("ARNO_NOTES", raising=False)
    monkeypatch.chdir(tmp_path)
    yield made
    for name in ("cells", "stale", "figure_cells", request.param):
        sys.modules.pop(name, None)


def kept(readings):
    """What stands for the numbers of a run: they do not depend on the run."""
    signs = dict.fromkeys(readings, 1.0)
    return lambda figure: (
        lambda result: {"readings": readings, "signs": signs, "last": {"test_f1": 0.5, "local_steps": 3}}
    )


@pytest.mark.parametrize("study", ["reproduce"], indirect=True)
def test_a_figure_with_missing_runs_has_no_verdict(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "measure", kept({"decade": 1.0, "floor": 1.0}))
    assert study.main(["scaffold-figure3", "--minutes", "0"]) == study.UNFINISHED
    text = (tmp_path / "page.md").read_text()
    assert "\n0 of 24 figures have a verdict: 0 reproduced, 0 not.\n" in text.replace(" The\n", "\n")
    assert "| no verdict: 0 of 15 runs (about 0.1 h of two cores) |" in text
    assert study.main(["scaffold-figure3"]) == 0
    assert study.main(["scaffold-figure3"]) == 0
    assert capsys.readouterr().out.count("SGD, G=1 seed=0: ") == 1, "what is finished is not run again"
    text = (tmp_path / "page.md").read_text()
    assert "\n## scaffold-figure3: not reproduced\n" in text
    assert "15 of 15 runs are finished; together they took 2.5 h, pauses included." in text
    with pytest.raises(Exception, match="did you mean 'scaffold-figure3'"):
        study.main(["scaffold-figure"])


@pytest.mark.parametrize("study", ["lorenzo_cifar10"], indirect=True)
def test_lorenzo_is_judged_when_all_seeds_are_there(study, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "measure", kept({"f1": 0.5}))
    whole = study.cells
    monkeypatch.setattr(study, "cells", lambda figure: [cell for cell in whole(figure) if "seed=2" not in cell.name])
    monkeypatch.setattr(study, "ordered", lambda figure: [run for run in study.runs_of(figure) if run.seed != "2"])
    figure = study.load(study.FIGURE)
    book = study.Book(study.FIGURE, tmp_path)
    book.run(study.cells(figure), study.measure(figure))
    monkeypatch.undo()
    monkeypatch.setattr(import_module("cells"), "CELLS", tmp_path / "cells")
    monkeypatch.setattr(study, "PAGE", tmp_path / "page.md")
    assert study.main(["--minutes", "0"]) == study.UNFINISHED
    text = (tmp_path / "page.md").read_text()
    assert "6 of 9 runs are finished" in text
    assert "No verdict: 2 of 3 seeds are finished with every method." in text
    assert "| fedavg | 2 | 50.0 [50.0, 50.0] | +0.0 [+0.0, +0.0] | 3 | 10 |" in text
    line = book.records["scaffold seed=1"]
    assert study.scores(figure, book)["scaffold"] == {"f1": [50.0, 50.0], "steps": [3, 3], "minutes": [10.0, 10.0]}
    monkeypatch.setitem(book.records, "scaffold seed=1", line | {"scores": {"diverged": True}})
    assert study.scores(figure, book)["scaffold"]["f1"] == [50.0, 0.0]
    monkeypatch.setitem(book.records, "scaffold seed=1", line | {"scores": {"last": {"local_steps": 3}}})
    with pytest.raises(KeyError, match="test_f1"):
        study.scores(figure, book)
