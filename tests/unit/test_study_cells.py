"""Finished runs of a long study are lines of a file: a clone goes on from there and runs nothing twice."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from arno import run
from arno.core.metric import Metric
from arno.errors import Diverged
from arno.reproduce.figure import Figure, parse

ROOT = Path(__file__).parents[2]
SMALL = ("data=digits", "model=softmax", "clients=4", "checkpoint.every=0")
FIGURE = {
    "source": "Somebody",
    "claim": "b is better",
    "setting": "small",
    "hours": 0.1,
    "run": [*SMALL, "rounds=2"],
    "seeds": [0, 1],
    "arms": {"a": {"settings": ["method=fedavg"], "best_of": ["local.lr=1e30", "local.lr=0.1"]}, "b": {}},
    "readings": {"accuracy": {"kind": "final", "metric": "test_accuracy"}},
    "checks": [{"says": "as good", "left": "b", "right": "a", "difference": [-0.5, 0.5]}],
}


def module(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A program of benchmarks; lines and pages go to a folder of this test."""
    for folder in ("benchmarks/studies", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    made = import_module(name)
    monkeypatch.setattr(import_module("cells"), "CELLS", tmp_path / "cells")
    monkeypatch.delenv("ARNO_NOTES", raising=False)
    return made


@pytest.fixture
def cells(tmp_path, monkeypatch):
    yield module("cells", monkeypatch, tmp_path)
    for name in ("cells", "stale", "figure_cells"):
        sys.modules.pop(name, None)


def measure(result):
    return {"accuracy": result.rows[-1]["test_accuracy"]}


@pytest.mark.slow
def test_a_clone_goes_on_with_the_lines_alone(cells, tmp_path, capsys):
    first = cells.Cell("one: stage 1", (*SMALL, "rounds=1"))
    second = cells.Cell("one: stage 2", (*SMALL, "rounds=2"), first.name)
    assert not cells.Book("mine", tmp_path / "runs", minutes=0).run([first, second], measure)
    assert "2 runs are left" in capsys.readouterr().out
    assert not (tmp_path / "cells").exists()
    assert cells.Book("mine", tmp_path / "runs").run([first, second], measure)
    lines = [json.loads(line) for line in (tmp_path / "cells/mine.jsonl").read_text().splitlines()]
    (sources, *records) = lines
    assert [record["cell"] for record in records] == [first.name, second.name], "both have the same sources"
    assert {"src/arno/methods/fedavg.py", "src/arno/models/linear.py"} <= sources["files"].keys()
    assert not any(file.startswith("src/arno/cli/") for file in sources["files"])
    assert records[1]["start"] == records[0]["model"] != records[1]["model"]
    assert str(tmp_path) not in (tmp_path / "cells/mine.jsonl").read_text()

    shutil.rmtree(tmp_path / "runs")
    book = cells.Book("mine", tmp_path / "runs")
    assert book.missing([first, second]) == []
    assert book.scores(second) == {"accuracy": records[1]["scores"]["accuracy"]}
    third = cells.Cell("one: another stage 2", (*SMALL, "rounds=2", "method=fedprox"), first.name)
    assert book.run([first, second, third], measure)
    assert not book.path(second).exists(), "what is finished is not run again"
    assert book.record(third)["start"] == records[0]["model"], "the same model again"


@pytest.fixture
def quick(cells, monkeypatch):
    """Books whose runs take no time: the names of the cells that were run."""
    ran: list[str] = []

    def perform(book, cell, path, words, env):
        ran.append(" ".join([cell.name, *words]))
        path.mkdir(parents=True)
        (path / "final.safetensors").touch()
        return SimpleNamespace(path=path)

    monkeypatch.setattr(cells.Book, "_perform", perform)
    monkeypatch.setattr(cells, "json_of", lambda path: {"seconds": 1800})
    monkeypatch.setattr(cells, "fingerprint", lambda path: "0")
    monkeypatch.setattr(cells, "losses", lambda result: {"0": 0.1, "1": 0.5})
    monkeypatch.setattr(cells, "imported", lambda names: {"src/arno/version.py", "benchmarks/stale.py"})
    monkeypatch.setattr(cells, "states", dict)
    return ran


def test_other_settings_and_older_sources_are_run_again(cells, quick, tmp_path, monkeypatch):
    one, two = cells.Cell("one", ("rounds=1",)), cells.Cell("two", ("partition.path=/here/split.txt",))
    book = cells.Book("mine", tmp_path)
    assert book.run([one, two], lambda result: {"x": 1})
    assert cells.Book("mine", tmp_path).missing([one, two._replace(words=("partition.path=/there/split.txt",))]) == []
    assert cells.Book("mine", tmp_path).missing([one._replace(words=("rounds=2",)), two]) == [
        one._replace(words=("rounds=2",))
    ]
    assert book.state([one, two]) == "2 of 2 runs are finished; together they took 1.0 h, pauses included."
    monkeypatch.setattr(cells, "other", lambda files: ["src/arno/version.py"])
    assert book.missing([one, two]) == []
    assert book.state([one, two, one._replace(name="three")]) == (
        "2 of 3 runs are finished; 2 of them are older than the last change of the sources; "
        "together they took 1.0 h, pauses included."
    )
    again = cells.Book("mine", tmp_path, again=True)
    assert again.missing([one, two]) == [one, two]
    assert quick == ["one", "two"]


def test_older_runs_count_when_their_first_rounds_repeat(cells, quick, tmp_path, monkeypatch, capsys):
    """A change that moves no bit costs a few rounds of one seed of each kind, not the whole study."""
    made = [cells.Cell(f"{arm} seed {seed}", (f"method={arm}", f"seed={seed}")) for arm in "ab" for seed in (0, 1)]
    stage2 = cells.Cell("a, stage 2", ("method=a", "rounds=9"), made[0].name)
    book = cells.Book("mine", tmp_path)
    assert book.run([*made, stage2], lambda result: {})
    now = {"src/arno/version.py": "1" * 12}
    monkeypatch.setattr(cells, "other", lambda files: [] if files == now else list(files))
    monkeypatch.setattr(cells, "sources_of", lambda notes, before: now)
    monkeypatch.setattr(cells, "losses", lambda result: {"0": 0.1, "1": 0.5 if len(quick) < 3 else 0.6})
    again = cells.Book("mine", tmp_path, confirm=True)
    assert all(map(again.older, made))
    quick.clear()
    assert again.run([*made, stage2], lambda result: {})
    assert quick == ["a seed 0 rounds=1", "b seed 0 rounds=1", f"a, stage 2 load={book.path(made[0])} rounds=1"]
    assert "a seed 0: the same losses\nb seed 0: the same losses\na, stage 2: other losses" in capsys.readouterr().out
    clone = cells.Book("mine", tmp_path)
    assert [clone.older(cell) for cell in (*made, stage2)] == [False] * 4 + [True]
    assert clone.missing([*made, stage2]) == []
    assert cells.Book("mine", tmp_path, again=True).missing([*made, stage2]) == [stage2]
    assert clone.state([*made, stage2]) == (
        "5 of 5 runs are finished; 1 of them are older than the last change of the sources; 4 of them were made before "
        "a change of the sources: then the first 5 rounds of 2 of these runs were repeated and gave the same losses to "
        "the last bit; together they took 2.5 h, pauses included."
    )
    notes = tmp_path / "notes"
    monkeypatch.setenv("ARNO_NOTES", str(notes))
    clone.note(made)
    assert notes.read_text() == "src/arno/version.py=111111111111\n"


def test_sources_are_those_of_the_begin_of_a_run(cells, quick, tmp_path, monkeypatch):
    """A run takes hours: what is edited meanwhile, or while it is stopped, is not what it was made from."""
    one = cells.Cell("one", ("rounds=1",))
    book = cells.Book("mine", tmp_path)
    monkeypatch.setattr(cells, "states", lambda: {"src/arno/version.py": "0" * 12})
    book.run([one], lambda result: {})
    now = cells.digest(ROOT / "src/arno/version.py")
    files = book.sources[book.record(one)["sources"]]
    assert files["src/arno/version.py"] == "+".join(sorted(["0" * 12, now]))
    assert book.older(one)

    two = cells.Cell("two", ("rounds=1",))
    assert book._begin(two) == {"src/arno/version.py": "0" * 12}
    book.path(two).mkdir()
    (book.path(two) / "manifest.json").write_text('{"status": "interrupted"}')
    monkeypatch.setattr(cells, "json_of", lambda path: json.loads(path.read_text()))
    monkeypatch.setattr(cells, "states", lambda: {"src/arno/version.py": "1" * 12})
    assert book._begin(two) == {"src/arno/version.py": "0" * 12}, "it is continued"
    assert book.path(two).exists()
    (tmp_path / f"{book.path(two).name}.sources.json").unlink()
    assert book._begin(two) == {"src/arno/version.py": "1" * 12}, "its sources are not known: it begins anew"
    assert not book.path(two).exists()


def test_runs_of_a_seed_start_from_the_model_of_the_line(cells, quick, tmp_path, monkeypatch):
    """On another machine the first stage may give other bits: what started from the earlier model is run again."""
    first, second, third = (
        cells.Cell(name, ("rounds=1",), "first" * (name != "first")) for name in ("first", "b", "c")
    )
    book = cells.Book("mine", tmp_path)
    assert book.run([first, second], lambda result: {})
    monkeypatch.setattr(cells, "fingerprint", lambda path: "1")
    assert book.missing([first, second, third]) == [third]
    quick.clear()
    assert book.run([first, second, third], lambda result: {})
    assert [words.split()[0] for words in quick] == ["first", "c", "b"]
    assert {book.record(cell)["start"] for cell in (second, third)} == {"1"}
    assert book.missing([first, second, third]) == []
    with pytest.raises(AssertionError, match="no cell is called first"):
        book.run([second], lambda result: {})


def test_a_torn_line_is_named(cells, tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells/mine.jsonl").write_text('{"sources": "1", "files": {}}\n{"cell": "one", "set')
    with pytest.raises(SystemExit, match=r"mine\.jsonl, line 2: it is no line of a cell"):
        cells.Book("mine", tmp_path)


def test_a_page_is_told_what_its_runs_were_made_from(cells, quick, tmp_path, monkeypatch):
    one = cells.Cell("one", ("rounds=1",))
    book = cells.Book("mine", tmp_path)
    book.run([one], lambda result: {})
    monkeypatch.setenv("ARNO_NOTES", str(tmp_path / "notes"))
    book.note([one, one._replace(name="missing")])
    here = cells.digest(ROOT / "benchmarks/stale.py")
    assert f"benchmarks/stale.py={here}" in (tmp_path / "notes").read_text().splitlines()


def test_a_trial_with_other_settings_stays_beside_its_runs(cells, quick, tmp_path):
    book = cells.Book("mine", tmp_path / "out", words=["rounds=1"])
    (tmp_path / "out").mkdir()
    book.run([cells.Cell("one", ())], lambda result: {})
    assert (tmp_path / "out/mine.jsonl").exists()
    assert book.page(tmp_path / "page.md") == tmp_path / "out/page.md"
    assert not (tmp_path / "cells").exists()


@pytest.mark.slow
def test_a_figure_gets_its_verdict_from_lines(cells, tmp_path, monkeypatch):
    figures = module("figure_cells", monkeypatch, tmp_path)
    figure: Figure = parse("small", FIGURE)
    grid = figures.cells(figure)
    assert [cell.name for cell in grid] == [
        f"{arm} seed={seed}" for seed in (0, 1) for arm in ("a local.lr=1e30", "a local.lr=0.1", "b")
    ]

    def here(book, cell, path, words, env):
        """The run in this process, so that the test does not start six of them."""
        try:
            return run(*cell.words, *words, out=str(path))
        except Diverged:
            return None

    monkeypatch.setattr(cells.Book, "_perform", here)
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)
    book = cells.Book("small", tmp_path / "runs")
    assert figures.verdict(figure, book) is None
    assert book.run(grid, figures.measure(figure))
    assert book.scores(grid[0]) == {"diverged": True}
    shutil.rmtree(tmp_path / "runs")
    found = figures.verdict(figure, cells.Book("small", tmp_path / "runs"))
    assert found.chosen == {"a": "local.lr=0.1"}
    assert found.reproduced
    assert set(found.read["b"]["accuracy"]) == {0, 1}


def test_a_run_that_ends_with_nan_diverged(cells, tmp_path, monkeypatch):
    """As in `arno reproduce`: no mean and no choice of a setting is made with NaN."""
    figures = module("figure_cells", monkeypatch, tmp_path)
    result = SimpleNamespace(
        rows=[{"round": 1, "test_accuracy": 0.5, "test_loss": float("nan")}],
        metrics=[Metric("test_accuracy", ""), Metric("test_loss", "")],
        config={"rounds": 1},
    )
    assert figures.measure(parse("small", FIGURE))(result) == {"diverged": True}
