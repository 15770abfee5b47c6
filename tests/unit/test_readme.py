"""The README's own method runs, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import arno

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_method_in_the_readme_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    (method,) = [block for block in blocks if "def factory" in block]
    (command,) = re.findall(r"arno run (method=custom.*damped\.py.*)", README)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)
    Path("damped.py").write_text(method)
    small = ("clients=4", "rounds=1", "model=softmax")
    damped = arno.run(*command.split(), *small, out="a")
    fedavg = arno.run(*small, out="b")
    start = fedavg.problem.init(0)
    assert ((damped.final - start) / 0.2 - (fedavg.final - start)).abs().max() < 1e-5


def test_the_first_run_in_the_readme_needs_no_network(tmp_path, monkeypatch):
    command = re.findall(r"^arno run (method=.*?)(?: +#.*)?$", README, re.M)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)
    monkeypatch.setattr("socket.socket.connect", None)
    assert arno.run(*command.split(), "clients=4", "model=softmax", rounds=1).config["data"]["kind"] == "digits"


def test_the_table_in_the_readme_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    (code,) = [block for block in blocks if "arno.Data(" in block]
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 3},{i % 2},{('bern', 'oslo')[i // 40]}" for i in range(80)]
    Path("heart.csv").write_text("\n".join(["age,chol,target,hospital", *rows]))
    whole = arno.compare
    monkeypatch.setattr(arno, "compare", lambda **given: whole(**given | {"seed": [0], "rounds": 1}), raising=False)
    exec(code, {})
    page = Path("heart.html").read_text()
    for name in ("bern", "oslo", "ditto, personal"):
        assert f">{name}</th>" in page


def test_the_readme_begins_with_the_question_and_shows_no_formula_on_its_first_screen():
    first = README.split("## What the demo prints")[0]
    assert first.splitlines()[2] == "**Which method works on data split like mine, and am I sure?**"
    assert "docs/demo.png" in first
    assert not re.search(r"[Σ∇←η]", first)


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target and not target.startswith("results/"):  # studies write those; `make docs` is strict
                assert (page.parent / target).exists(), f"{page.name}: {target}"
