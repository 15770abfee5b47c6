"""Tables of single clients: on a terminal, in Markdown and in the report."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import arno
from arno.analysis.clients import overview, served
from arno.analysis.comparison import Comparison
from arno.errors import ArnoError
from arno.report.html import write_report
from arno.report.sections import clients, verdict
from arno.report.tables import clients_of, markdown, sheets, show

LONG = "the hospital with the longest name of all the hospitals <i>"


@pytest.fixture(scope="module")
def twenty(tmp_path_factory) -> list[Path]:
    """Two seeds of a method with personal models, on twenty named clients; client 7 has labels at random."""
    folder = tmp_path_factory.mktemp("twenty")
    random = np.random.default_rng(0)
    who = np.repeat([LONG if k == 7 else f"clinic {k}" for k in range(20)], 40)
    x = random.normal(size=(800, 2))
    y = np.where(who == LONG, random.integers(0, 2, 800), x[:, 0] > 0).astype(int)
    data = arno.Data(x, y, client=who)
    words = ("model=softmax", "local.lr=0.5", "engine=serial")
    return [
        arno.run(*words, data=data, method="ditto", seed=seed, rounds=4, out=str(folder / f"{seed}")).path
        for seed in (0, 1)
    ]


def test_the_worst_of_many_clients_are_printed_with_names_that_fit(twenty):
    found = Comparison.of(twenty)
    (sheet,) = clients_of(found)
    assert sheet.title == "scores, by client; the 5 worst of 20, mean ± standard deviation over 2 seeds"
    rows = sheet.places[""]
    assert len(rows) == 5
    assert rows[0][0] == "the hospital with the l…"
    console = Console(width=80, record=True, file=StringIO())
    show([sheet], console)
    assert "the hospital" in console.export_text()
    assert r"| the hospital" in markdown([sheet])


def test_the_report_has_all_of_forty_clients_marks_the_worst_and_escapes_names(twenty, tmp_path):
    found = Comparison.of(twenty)
    table = clients(found)
    assert table.count("<tr>") == 21
    assert "<i>" not in table
    assert "longest name of all the hospitals &lt;i&gt; is served worst: F1 0." in table
    column = served(found, "").columns[0]
    assert column.worst() == LONG
    scores = found.client_scores()
    mine = scores[scores["client"] == LONG]["own_f1"]
    assert column.scores[LONG].mean == pytest.approx(mine.mean())
    assert column.scores[LONG].std == pytest.approx(mine.std())
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "F1 of the clients on their own test samples" in page  # the chart of many clients
    assert "<i>" not in page.replace("<i></i>", "")


@pytest.fixture(scope="module")
def methods(tmp_path_factory) -> Comparison:
    """Two seeds of a method without and of one with personal models, on three hospitals of two laws."""
    folder = tmp_path_factory.mktemp("methods")
    random = np.random.default_rng(0)
    who, x = np.repeat(["cleveland", "hungarian", "switzerland"], [50, 40, 30]), random.normal(size=(120, 2))
    y = np.where(who == "switzerland", x[:, 0] < 0, x[:, 0] > 0).astype(int)
    data = arno.Data(x, y, client=who)
    words = ("model=softmax", "local.lr=0.5", "engine=serial")
    found = [
        arno.run(*words, data=data, method=name, seed=seed, rounds=3, out=str(folder / f"{name}{seed}")).path
        for name in ("fedavg", "ditto")
        for seed in (0, 1)
    ]
    return Comparison.of(found)


def test_the_models_of_a_comparison_are_scored_together_and_over_the_clients(methods):
    rows = overview(methods, "")
    assert [one.name for one in rows] == ["fedavg", "ditto, global", "ditto, personal"]
    scores, runs = methods.client_scores(), methods.groups["ditto"]
    for one, column, name in zip(rows, ("own_f1", "own_f1", "personal_f1"), ("fedavg", "ditto", "ditto"), strict=True):
        mine = scores[scores["name"] == name].groupby("seed")[column]
        assert one.values["mean"].mean == pytest.approx(mine.mean().mean())
        assert one.values["std"].mean == pytest.approx(mine.std(ddof=0).mean())
        assert one.values["worst"].mean == pytest.approx(mine.min().mean())
    assert rows[2].values["together"].mean == pytest.approx(np.mean([run.rows[-1]["personal_f1"] for run in runs]))
    assert rows[1].values["together"].mean == pytest.approx(np.mean([run.rows[-1]["test_f1"] for run in runs]))
    assert "<th scope='row'>ditto, personal</th>" in clients(methods)
    assert methods.column("worst_decile").name == "own_f1_worst_decile"


def test_the_compared_scores_are_said_to_be_those_of_the_global_models(methods):
    said = (
        "ditto has personal models: these scores are those of the global model, personal_f1 are those of the personal"
    )
    assert any(note.startswith(said) for note in sheets(methods)[0].notes)
    assert f"<p>{said}" in verdict(methods, methods.table())
    with pytest.raises(ArnoError, match=r"^metric = personal_f1: it was not recorded by all runs; .*eval\.finetune=5"):
        methods.table(metric="personal_f1")


def test_a_table_that_is_too_wide_has_several_parts_with_all_names(methods):
    console = Console(width=48, record=True, file=StringIO())
    (sheet,) = (sheet for sheet in clients_of(methods) if "by client" in sheet.title)
    show([sheet], console)
    text = console.export_text()
    assert text.count("switzerland") == 2
    assert "ditto, personal" in text
    assert "…" not in text


def test_clients_without_names_differ_from_seed_to_seed_and_have_no_table_over_seeds(tmp_path):
    words = ("clients=4", "data.limit=120", "data.client_test=0.3", "model=softmax", "engine=serial")
    runs = [arno.run(*words, seed=seed, rounds=1, out=str(tmp_path / f"{seed}")).path for seed in (0, 1)]
    assert clients_of(Comparison.of(runs)) == []
    (sheet,) = clients_of(Comparison.of(runs[:1]))
    assert [row[0] for row in sheet.places[""]] == ["0", "1", "2", "3"]
