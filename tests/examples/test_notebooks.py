"""The notebooks run, and show what they say."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what the notebook's machinery warns of


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[Any]]:
    """What a notebook prints, and its pictures."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ARNO_QUICK", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(str(output.get("text", "")) for output in outputs)
    return printed, [output for output in outputs if "image/png" in output.get("data", {})]


def test_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pictures = executed("first_steps.ipynb", tmp_path, monkeypatch)
    assert pictures
    assert (tmp_path / "first_steps" / "compare.json").exists()


def test_my_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed("my_table.ipynb", tmp_path, monkeypatch)
    page = (tmp_path / "my_table.html").read_text()
    for name in ("north", "east", "south", "ditto"):
        assert name in page


def test_the_quadratic_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, pictures = executed("quadratic_sim.ipynb", tmp_path, monkeypatch)
    assert len(pictures) == 1
    for label in ("rand", "powd d=9", "cpowd d=9", "rpowd d=9", "adapowd d=30"):
        assert re.search(rf"^{label} ", printed, re.M), label
    at_optimum, at_readme = (float(found) for found in re.findall(r"^gradient norm .* (\S+)$", printed, re.M))
    assert at_optimum < 1e-9 < 1 < at_readme


def test_the_quadratic_notebook_with_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed (the extra `mlflow`)")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed (the extra `mlflow`)")
    printed, pictures = executed("quadratic_sim_MLflow.ipynb", tmp_path, monkeypatch)
    assert len(pictures) == 1
    assert "'select.d': '9'" in printed
    assert "300 values of the gap" in printed
    assert (tmp_path / "mlruns.db").exists()
