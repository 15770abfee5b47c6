"""Every test has a store of its own, and nothing here reaches the network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def shared() -> Path:
    """The real files, where there are any."""
    place = Path(os.environ.get("ARNO_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not place.is_dir():
        pytest.skip("the real data is not here: set ARNO_SHARED_DATA to a folder with fashion-mnist/ and cifar10/")
    return place
