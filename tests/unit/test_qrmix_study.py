"""The study of QR-Mix at its own size, made small: it stops, goes on, chooses β and writes its page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from arno.config.settings import compose

ROOT = Path(__file__).parents[2]
SMALL = ["data=digits", "model=mlp", "clients=4", "participation=0.5", "local.epochs=1", "local.augment=false"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("study", ROOT / "benchmarks" / "studies" / "qrmix_cifar10.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    monkeypatch.chdir(tmp_path)
    return module


def test_its_settings_are_valid_and_are_the_documents(study, tmp_path):
    cells = [*study.trials(0.3, None), study.first(0.3, 0, tmp_path)]
    for cell in cells:
        made = compose(cell.words)
        assert (made.clients, made.participation, made.data.kind) == (100, 0.05, "cifar10")
    assert [compose(cell.words).rounds for cell in cells[:2]] == [200, 300]
    assert compose(cells[-1].words).partition.path.endswith("cifar10_dirichlet0.3_clients100.txt.gz")
    assert (compose(cells[0].words).data.val, compose(cells[-1].words).data.val) == (0.1, 0)


@pytest.mark.slow
def test_it_stops_and_goes_on(study, tmp_path, monkeypatch, capsys):
    for name, value in (("FIRST", 2), ("LAST", 3), ("SEEDS", {0.3: (0, 1)}), ("BETAS", (0.01, 0.1))):
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)
    assert study.main(["--out", "runs", "--hours", "0", *SMALL]) == 1
    assert not Path("runs").exists()
    (cell,) = [cell for cell in study.trials(0.3, None) if cell.name.endswith("stage1")]
    study.perform(cell, Path("runs"), SMALL)
    began = (Path("runs") / cell.name / "metrics.jsonl").stat().st_mtime_ns
    assert study.main(["--out", "runs", *SMALL]) == 0
    assert (Path("runs") / cell.name / "metrics.jsonl").stat().st_mtime_ns == began, "what is done is not run again"
    assert capsys.readouterr().out.count(": done") == 4 + 2 * 4
    page = (tmp_path / "page.md").read_text()
    for name in ("FedRCL", "QR-Mix, rule seed", "QR-Mix, rule lsq"):
        assert f"| 0.3 | 2 | {name} | " in page
    scores = {}
    for beta in (0.01, 0.1):
        lines = (Path("runs") / f"0.3-1000-lsq-{beta}" / "metrics.jsonl").read_text().splitlines()
        scores[beta] = json.loads(lines[-1])["val_accuracy"]
    assert scores[study.beta_of(0.3, "lsq", Path("runs"))] == max(scores.values())
