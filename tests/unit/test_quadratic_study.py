"""The paper's behaviour over 20 seeds, and the notebook that shows it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def test_power_of_choice_is_faster_early_and_has_a_higher_floor() -> None:
    """The study's claims; four times its learning rate stands for four times its rounds."""
    pytest.importorskip("numba", reason="numba is not installed (the extra `fast`)")
    spec = importlib.util.spec_from_file_location("study", ROOT / "benchmarks" / "studies" / "quadratic.py")
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    rows = study.claims(study.simulations(8e-5, 15_000), early=750)
    assert len(rows) == 11
    for words, ratio, holds in rows:
        assert holds, (words, ratio)


@pytest.mark.filterwarnings("ignore")  # what the notebook's machinery warns of
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    monkeypatch.setenv("ARNO_QUICK", "1")
    notebook = nbformat.read(ROOT / "examples" / "quadratic.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 2
    assert any("powd d=9" in str(o.get("text", "")) for o in outputs)
