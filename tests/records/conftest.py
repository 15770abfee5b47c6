"""Runs that tests damage: a finished one, a killed one, and what each must become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from outcome import Outcome, Said

import arno
from arno.records.folder import RunFolder

SETTINGS = (
    "clients=5",
    "model=softmax",
    "participation=0.6",
    "checkpoint.every=2",
    "checkpoint.keep=3",
    "engine=serial",
)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six rounds that is done."""
    return arno.run(*SETTINGS, rounds=6, out=str(tmp_path_factory.mktemp("finished") / "run")).path


@pytest.fixture(scope="session")
def killed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed in its sixth round, after it had recorded it and before the checkpoint."""
    path = shutil.copytree(finished, tmp_path_factory.mktemp("killed") / "run")
    folder = RunFolder(path)
    for late in folder.after(4):
        late.unlink()
    for name in ("final.safetensors", "best.safetensors", "clients.parquet", "panels.json", "curves.png"):
        (path / name).unlink(missing_ok=True)
    manifest = folder.manifest()
    for name in ("rounds", "best_round", "wall", "seconds"):
        del manifest[name]
    (path / "manifest.json").write_text(json.dumps(manifest | {"status": "running", "checksums": {}}))
    folder.update_manifest()
    folder.update_manifest()
    return path


@pytest.fixture(scope="session")
def six(finished: Path) -> Outcome:
    """What a run of six rounds computes."""
    return Outcome(finished)


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a run of eight rounds computes."""
    return Outcome(arno.run(*SETTINGS, rounds=8, out=str(tmp_path_factory.mktemp("eight") / "run")).path)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    """A copy of a run that a test may change."""
    return lambda run: shutil.copytree(run, tmp_path / "run")


@pytest.fixture
def said() -> Said:
    """A display that keeps what it is told."""
    return Said()
