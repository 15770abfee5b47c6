"""What notebooks show of runs, comparisons, partitions and data, and their pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import arno
from arno.data.partition import Partition
from arno.errors import ArnoError

PNG = b"\x89PNG"
SMALL = ["rounds=2", "clients=4", "data.limit=200", "model=softmax", "engine=serial"]


def test_a_run(tmp_path: Path) -> None:
    result = arno.run(*SMALL, out=str(tmp_path / "run"))
    shown = result._repr_html_()
    assert "<th>test F1</th>" in shown
    assert "2 of 2" in shown
    assert "data:image/png;base64," in shown
    assert len(result.plot("test_loss").axes) == 1 < len(result.plot().axes)
    assert result.plot()._repr_png_().startswith(PNG)  # type: ignore[attr-defined]
    with pytest.raises(ArnoError, match="this run has no such score; there are: test_f1"):
        result.plot("accuracy")


def test_a_comparison(tmp_path: Path) -> None:
    found = arno.compare(*SMALL, method=["fedavg", "scaffold"], seed=[0, 1], out=tmp_path / "grid")
    shown = found._repr_html_()
    assert "<td>scaffold</td>" in shown
    assert "<th>final test F1</th>" in shown
    assert "data:image/png;base64," in shown
    assert found.plot()._repr_png_() == found.figure()._repr_png_()  # type: ignore[attr-defined]


def test_a_partition() -> None:
    two = Partition(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 3]))
    assert "<td>1 to 2</td>" in two._repr_html_()
    labelled = two.plot([0, 1, 1], ["cat", "dog"])  # type: ignore[arg-type]
    assert [text.get_text() for text in labelled.axes[0].get_yticklabels()] == ["cat", "dog"]


def test_names_in_data_are_text(tmp_path: Path) -> None:
    x = np.arange(80.0).reshape(40, 2)
    data = arno.Data(x, ["yes", "<b>"] * 20, client=["<script>x</script>"] * 20 + ["rome"] * 20)
    shown = data._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert [text.get_text() for text in data.plot().axes[0].get_xticklabels()][1] == "rome"
    without = arno.Data(x, np.linspace(0, 1, 40))
    assert "data:image/png;base64," in without._repr_html_()
