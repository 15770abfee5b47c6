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
    command = re.findall(r"^arno run (.*?)(?: +#.*)?$", README, re.M)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *drawn: None)
    monkeypatch.setattr("socket.socket.connect", None)
    assert arno.run(*command.split(), "clients=4", "model=softmax", rounds=1).config["data"]["kind"] == "digits"


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target and not target.startswith("results/"):  # studies write those; `make docs` is strict
                assert (page.parent / target).exists(), f"{page.name}: {target}"
