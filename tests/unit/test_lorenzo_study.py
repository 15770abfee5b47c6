"""What the page of Lorenzo says follows from its numbers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_the_numbers_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "studies")
    study = import_module("lorenzo")
    last = {"FedAvg": 0.5, "FedProx": 0.9, "SCAFFOLD": 0.7, "Lorenzo": 0.7}
    cells = {}
    for alpha in study.ALPHAS:
        for arm in study.ARMS:
            scores = [last.get(arm, 0.7) + (0.01 * i if arm == "Lorenzo" else 0.02) for i in range(3)]
            path = 600 if arm == "Lorenzo" else 100
            cells[arm, alpha] = [SimpleNamespace(curve=[{"f1": f1, "path": path}]) for f1 in scores]
    said = study.reading(cells)
    assert "- α = 0.1, final test F1: Lorenzo against FedAvg: +0.190 [+0.165, +0.215]: better than it." in said
    assert "Lorenzo against FedProx: -0.210 [-0.235, -0.185]: worse than it." in said
    assert "Lorenzo against SCAFFOLD: -0.010 [-0.035, +0.015]: not told apart from it." in said
    assert "- α = 0.5, time: Lorenzo's critical path is 6.0 times as long as FedAvg's" in said
    page = (ROOT / "docs" / "results" / "lorenzo.md").read_text()
    assert page.index("<!-- numbers: begin -->") < page.index("## What the numbers say") < page.index("numbers: end")
