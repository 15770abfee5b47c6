"""The study of QR-Mix at its own size, made small: it stops, goes on, chooses β and writes its page."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from arno import run
from arno.config.settings import compose
from arno.runs.result import RunResult

ROOT = Path(__file__).parents[2]
SMALL = ["data=digits", "clients=4", "participation=0.5", "local.epochs=1", "local.augment=false"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    for folder in ("benchmarks/studies", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    cells, made = import_module("cells"), import_module("qrmix_cifar10")
    monkeypatch.setattr(cells, "CELLS", tmp_path / "cells")
    monkeypatch.setattr(made, "PAGE", tmp_path / "page.md")
    monkeypatch.delenv("ARNO_NOTES", raising=False)
    monkeypatch.chdir(tmp_path)
    yield made
    for name in ("cells", "stale", "qrmix_cifar10"):
        sys.modules.pop(name, None)


def test_its_settings_are_valid_and_are_the_documents(study, tmp_path):
    block = study.BLOCKS[0]
    trials, stage1 = study.trials(block, None, 0.01), study.first(block, 0, tmp_path, 0.01)
    for cell in (*trials, stage1):
        made = compose(list(cell.words))
        assert (made.clients, made.participation, made.data.kind) == (100, 0.05, "cifar10")
    assert [compose(list(cell.words)).rounds for cell in trials[:2]] == [200, 300]
    assert compose(list(stage1.words)).partition.path.endswith("cifar10_dirichlet0.3_clients100.txt.gz")
    assert (compose(list(trials[0].words)).data.val, compose(list(stage1.words)).data.val) == (0.1, 0)
    assert len({cell.start for cell in trials[1:]}) == 1, "the trials share their first stage"


def test_what_says_most_comes_first_and_a_seed_has_one_first_stage(study, tmp_path):
    book = study.Book("qrmix_cifar10", tmp_path)
    last = dict(study.plan(None, book))
    blocks = [(block.model[0], block.alpha, len(cells)) for block, cells in last.items()]
    assert blocks == [
        ("model=lenet5", 0.3, 20),
        ("model=lenet5", 0.1, 12),
        ("model=lenet5", 0.6, 12),
        ("model=resnet18", 0.3, 12),
    ]
    cells = study.every(None, book)
    assert [cell.name.rpartition("stage 1 with rate ")[2] for cell in cells[:3]] == ["0.1", "0.03", "0.01"]
    assert {cell.name.rpartition(": ")[2] for cell in cells[3:8]} == {"stage 1"}, "several run at a time"
    assert [cell.name.rpartition(": ")[2] for cell in cells[14:17]] == ["FedRCL", "seed", "lsq"]


def test_a_network_has_the_rate_that_is_best_at_its_first_block(study, tmp_path, monkeypatch):
    book = study.Book("qrmix_cifar10", tmp_path)
    other = study.BLOCKS[1]
    assert study.rates(other, None) == study.rates(study.BLOCKS[0], None) != study.rates(study.BLOCKS[3], None)
    monkeypatch.setattr(book, "record", lambda cell: {"settings": cell.words})
    monkeypatch.setattr(book, "scores", lambda cell: {"val_accuracy": 0.4 if "rate 0.03" in cell.name else 0.1})
    assert study.chosen(other, None, book)[0] == 0.03
    assert study.chosen(study.BLOCKS[3], None, book)[0] == 0.1  # ResNet-18 has the published rate
    assert [line.partition(":")[0] for line in study.chosen_rates(None, book)] == ["- `lenet5`"]


@pytest.mark.slow
def test_it_stops_goes_on_and_judges_whole_blocks_only(study, tmp_path, monkeypatch, capsys):
    small = study.Block(("model=mlp",), 0.3, (0, 1))
    for name, value in (
        ("FIRST", 1),
        ("LAST", 2),
        ("BLOCKS", [small]),
        ("BETAS", (0.01, 0.1)),
        ("SETTING", SMALL),
        ("RATES", {"model=mlp": (0.1, 0.05)}),
    ):
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)

    def here(book, cell, path, words, env) -> RunResult:
        """The run in this process, so that the test does not start 14 of them."""
        return run(*cell.words, *words, out=str(path))

    monkeypatch.setattr(study.Book, "_perform", here)
    assert study.main(["--minutes", "0"]) == study.UNFINISHED
    page = tmp_path / "page.md"
    assert "0 of 14 runs are finished" in page.read_text()
    assert "`mlp`, α = 0.3: no verdict: 0 of 2 seeds are finished." in page.read_text()
    whole = study.Book.run

    def some(book, cells, measure, jobs=1) -> bool:
        """Only the runs that choose β, and the first seed."""
        return whole(book, [cell for cell in cells if "seed 1:" not in cell.name], measure) and False

    monkeypatch.setattr(study.Book, "run", some)
    assert study.main([]) == study.UNFINISHED
    assert study.main([]) == study.UNFINISHED
    monkeypatch.setattr(study.Book, "run", whole)
    assert study.main([]) == 0
    assert capsys.readouterr().out.count("{'") == 14, "what is finished is not run again"
    text = page.read_text()
    for name in ("FedRCL", "QR-Mix, rule seed, β = ", "QR-Mix, rule lsq, β = "):
        assert f"| mlp | 0.3 | 2 | {name}" in text
    assert "`mlp`, α = 0.3, rule seed: " in text
    book = study.Book("qrmix_cifar10", tmp_path)
    rate, betas = study.chosen(small, None, book)
    tried = study.trials(small, None, rate)[1:]
    scores = {beta: book.scores(tried[i])["val_accuracy"] for i, beta in enumerate((0.01, 0.1))}
    assert scores[betas["seed"]] == max(scores.values())
    assert study.main(["--plan"]) == 0
    assert "finished mlp, α = 0.3, seed 1: lsq" in capsys.readouterr().out
