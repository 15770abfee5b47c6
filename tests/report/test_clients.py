"""Tables of single clients: on a terminal, in Markdown and in the report."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import arno
from arno.analysis.clients import served
from arno.analysis.comparison import Comparison
from arno.report.html import write_report
from arno.report.sections import clients
from arno.report.tables import clients_of, markdown, show

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


def test_clients_without_names_differ_from_seed_to_seed_and_have_no_table_over_seeds(tmp_path):
    words = ("clients=4", "data.limit=120", "data.client_test=0.3", "model=softmax", "engine=serial")
    runs = [arno.run(*words, seed=seed, rounds=1, out=str(tmp_path / f"{seed}")).path for seed in (0, 1)]
    assert clients_of(Comparison.of(runs)) == []
    (sheet,) = clients_of(Comparison.of(runs[:1]))
    assert [row[0] for row in sheet.places[""]] == ["0", "1", "2", "3"]
