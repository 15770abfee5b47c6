"""Every test works in an empty folder with a link to the examples, and calls the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arno.cli import main
from arno.records.metrics_file import read as recorded

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / ".store"))
    monkeypatch.setenv("COLUMNS", "80")
    Path("examples").symlink_to(EXAMPLES)


@pytest.fixture
def arno(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call a command that must succeed; returns what it printed."""

    def call(*words: Any) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert stopped.value.code == 0, said.err
        return said.out

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call a command that must fail with one line, without a traceback; returns the line."""

    def call(*words: Any) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert stopped.value.code == 2, said.out
        (line,) = said.err.splitlines()
        assert "Traceback" not in said.out + line
        assert "--debug" not in line, "an error that was foreseen"
        return line

    return call


@pytest.fixture
def rows() -> Callable[[str], list[dict[str, Any]]]:
    """The records of a run."""
    return lambda run: recorded(Path(run))
