"""The studies behind pages run with the code of today: each made small."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import arno

ROOT = Path(__file__).parents[2]
SMALL = ["data=digits", "data.val=0", "clients=6", "participation=0.5", "local.epochs=1", "local.batch_size=20"]


@pytest.fixture
def study(monkeypatch, tmp_path, request):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "studies")
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)
    monkeypatch.chdir(tmp_path)
    return import_module(request.param)


@pytest.mark.parametrize("study", ["lorenzo"], indirect=True)
@pytest.mark.parametrize("arm", ["FedProx", "SCAFFOLD", "Lorenzo, reverse order"])
def test_every_arm_beside_lorenzo_has_a_short_first_round(study, arm):
    rounds = 1 if arm.startswith("Lorenzo") else 2
    result = arno.run(
        data="digits",
        model="softmax",
        method=study.ARMS[arm](),
        clients=4,
        rounds=rounds,
        local={"epochs": 3},
        checkpoint={"every": 0},
        out="run",
    )
    clients = result.clients
    assert len(result.rows) == 2
    steps = clients.groupby("round")["steps"].sum().tolist()
    assert steps[1] == 3 * steps[0]


@pytest.mark.parametrize("study", ["power_of_choice"], indirect=True)
def test_power_of_choice_says_whether_a_cause_explains_the_lead(study, monkeypatch):
    monkeypatch.setattr(study, "SETTINGS", [*SMALL, "rounds=11"])
    found = study.cell("powd d=6", "split 2, dropout", 0, ["model.target=" + str(Path(study.__file__)) + ":dropout"])
    assert 0 < found["accuracy"] < 1
    assert found["evaluations"] == 11 * 6
    assert 0.1 <= found["largest_share"] <= 1
    monkeypatch.setattr(study.build, "federation", None)
    assert study.cell("powd d=6", "split 2, dropout", 0, ["model.target=" + str(Path(study.__file__)) + ":dropout"])
    base = {"half_way": 0.5, "evaluations": 0.0, "largest_share": 0.4, "classes_held": 5.0}
    rows = {
        (case, name): [
            base | {"accuracy": 0.6 + 0.001 * seed + (0.05 if case == "split 0.05" and name != "rand" else 0)}
            for seed in range(3)
        ]
        for case in study.CASES
        for name in study.STRATEGIES
    }
    page = study.page(rows)
    assert "Dropout (a half) after the first layer, at 2: powd d=6 +0.0 [+0.0, +0.0]" in page
    assert len(re.findall("It does not explain the lead", page)) == 1
    assert len(re.findall("It may explain the lead", page)) == 1
    assert "| split 2 | powd d=6 | 0.601 ± 0.001 | +0.0 [+0.0, +0.0] | 0.500 ± 0.000 | 0.726 | 0 |" in page


@pytest.mark.parametrize("study", ["power_of_choice"], indirect=True)
def test_power_of_choice_with_other_settings_leaves_the_page_alone(study, monkeypatch, tmp_path):
    kept = {"accuracy": 0.5, "half_way": 0.5, "evaluations": 0.0, "largest_share": 0.4, "classes_held": 5.0}
    monkeypatch.setattr(study, "cell", lambda *about: kept)
    monkeypatch.setattr(study, "PAGE", tmp_path / "page.md")
    (tmp_path / study.DONE).mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["power_of_choice.py", "data.root=/here", "rounds=20"])
    study.main()
    assert (tmp_path / study.DONE / "page.md").exists()
    assert not (tmp_path / "page.md").exists()
    monkeypatch.setattr("sys.argv", ["power_of_choice.py", "data.root=/here"])
    study.main()
    assert (tmp_path / "page.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize("study", ["qrmix"], indirect=True)
def test_the_small_study_of_qrmix(study, monkeypatch, tmp_path, capsys):
    rules = {name: study.STAGE2[name] for name in ("mean, average", "seed, average", "seed, freeze", "lsq, average")}
    every = ["checkpoint.every=1", "checkpoint.keep=9", "model=mlp", "eval.every=1"]
    for name, value in (("FIRST", 1), ("LAST", 2), ("ALPHAS", (0.3,)), ("SETTING", [*SMALL, *every])):
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(study, "STAGE2", rules)
    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr("sys.argv", ["qrmix.py", "--seeds", "1"])
    study.main()
    page = (tmp_path / "docs/results/qrmix.md").read_text()
    assert "| stage 2: lsq, average | 2 |" in page
    assert "## What the numbers say" in page
