"""The notebook of a comparison, and the pages that are made from committed studies."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from arno.errors import ArnoError
from arno.grids import compare
from arno.grids.grid import cells

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/results.py, with folders of its own."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("ARNO_NOTES", "PYTHONPATH"):  # a study sets them; they are put back after the test
        monkeypatch.setenv(name, os.environ.get(name, ""))
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STUDIES", tmp_path)
    monkeypatch.setattr(module, "PAGES", tmp_path)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.slow
def test_a_comparison_becomes_a_page_that_says_how_long_it_took(results, tmp_path, capsys):
    words = ["method=fedavg,fedprox", "clients=5", "rounds=2", "model=softmax", "seed=0..1"]
    plan = {"title": "Small", "before": "Two methods.\n", "compare": words, "after": "Nobody wins."}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(plan))
    assert results.main(["small"]) == 0
    page = (tmp_path / "small.md").read_text()
    assert page.startswith("# Small\n\n    arno compare method=fedavg,fedprox clients=5 rounds=2")
    assert "| fedavg | " in page
    assert "Nobody wins." in page
    assert page.count("\nMade by `make results NAME=small`; took 0:00:") == 1
    assert (tmp_path / "small.png").exists()
    results.main(["small"])
    assert (tmp_path / "small.md").read_text().count("Made by") == 1
    for source in ("methods/fedprox", "models/linear", "analysis/comparison", "engines/batched"):
        assert (tmp_path / "small.md").read_text().count(f"src/arno/{source}.py=") == 1


def test_a_program_writes_its_page_itself(results, tmp_path):
    program = "import sys\nimport arno.core.seeds\nopen('mine.md', 'w').write('# ' + sys.argv[1])\n"
    (tmp_path / "mine.py").write_text(program + "sys.exit(int(sys.argv[2]))\n")
    assert results.main(["mine", "Mine", "0"]) == 0
    page = (tmp_path / "mine.md").read_text()
    assert page.startswith("# Mine\n\nMade by `make results NAME=mine`; took 0:00:0")
    assert page.count("\nsrc/arno/core/seeds.py=") == 1
    assert "src/arno/cli/" not in page
    (tmp_path / "runs/made/mine").write_text("src/arno/core/seeds.py=0123456789ab\n")
    assert results.main(["mine", "Mine", "0"]) == 0
    line = next(line for line in (tmp_path / "mine.md").read_text().splitlines() if "core/seeds.py=" in line)
    assert line.startswith("src/arno/core/seeds.py=0123456789ab+"), "a run of an earlier call may be on the page"
    assert results.main(["mine", "Mine", "1"]) == 1
    assert "Made by" not in (tmp_path / "mine.md").read_text(), "a study that fails has taken no time"
    assert results.main(["mine", "Mine", "3"]) == 3
    assert "made from" in (tmp_path / "mine.md").read_text(), "the page of a study that was not finished is kept"
    (tmp_path / "mine.py").write_text("")  # as a trial with other settings: the page is not its own
    before = (tmp_path / "mine.md").read_text()
    assert results.main(["mine"]) == 0
    assert (tmp_path / "mine.md").read_text() == before
    (tmp_path / "mine.md").unlink()
    assert results.main(["mine"]) == 0
    assert not (tmp_path / "mine.md").exists()
    with pytest.raises(ArnoError, match="did you mean 'mine'"):
        results.main(["mien"])


@pytest.mark.parametrize("study", sorted((ROOT / "benchmarks" / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_committed_comparisons_have_valid_settings(study):
    plan = yaml.safe_load(study.read_text())
    _, words = compare.own_keys(plan["compare"])
    assert len(list(compare.resolve(cells(words)))) > 1
    assert plan.keys() == {"title", "before", "compare", "after"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the notebook's machinery warns of
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    monkeypatch.setenv("ARNO_QUICK", "1")
    notebook = nbformat.read(ROOT / "examples" / "compare.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert len([o for o in outputs if "image/png" in o.get("data", {})]) == 1
    tables = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    assert len(tables) == 5  # the comparison's card, and four frames
    assert all("scaffold" in table for table in tables)
