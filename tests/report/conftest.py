"""Small real runs, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from arno.analysis.comparison import Comparison
from arno.config import settings as configs
from arno.runs.progress import Quiet
from arno.runs.run import execute

SMALL = ("clients=6", "rounds=4", "model=softmax", "eval.clients=true", "engine=serial")
Train = Callable[..., Path]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """A run in a folder of its own."""

    def run(*overrides: str) -> Path:
        out = tmp_path_factory.mktemp("run") / "it"
        config = configs.plain(configs.compose([*SMALL, f"out={out}", *overrides]))
        return execute(config, Quiet(), pictures=False).path

    return run


@pytest.fixture(scope="session")
def runs(train: Train) -> list[Path]:
    """Two methods, two seeds; half of the clients take part."""
    some = ("participation=0.5",)
    return [train(f"method={m}", f"seed={s}", *some) for m in ("fedavg", "scaffold") for s in (0, 1)]


@pytest.fixture
def comparison(runs: list[Path]) -> Comparison:
    return Comparison.of(runs)
