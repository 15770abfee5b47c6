"""The command line, called in this process wherever that is enough: importing torch anew takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arno.cli import main
from arno.records.metrics_file import read as recorded


@dataclass(frozen=True)
class Output:
    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error; anything else fails the test."""
        assert self.status == 2, self
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in self.out + self.err
        return lines[0]

    @property
    def folder(self) -> Path:
        """The run's folder: the last line printed."""
        assert self.status == 0, self
        return Path(self.out.splitlines()[-1])


Arno = Callable[..., Output]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in an empty folder and reaches neither the network nor the user's own data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / ".store"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than training here: only tests that ask for `pictures` draw."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *arguments: None)


@pytest.fixture
def pictures() -> None:
    """Draw as usual."""


@pytest.fixture
def arno(capsys: pytest.CaptureFixture[str]) -> Arno:
    def call(*arguments: Any) -> Output:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(a) for a in arguments])
        said = capsys.readouterr()
        return Output(stopped.value.code, said.out, said.err)  # type: ignore[arg-type]

    return call


#: A run that takes a tenth of a second.
SMALL = ("clients=5", "rounds=4", "model=softmax", "participation=0.6", "checkpoint.every=2")


@pytest.fixture
def small() -> tuple[str, ...]:
    return SMALL


def metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run without the times."""
    rows = recorded(run)
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture
def same_run() -> Callable[[Path, Path], None]:
    """Asserts that two runs computed the same, to the bit, and recorded the same but for the times."""

    def check(a: Path, b: Path) -> None:
        for name in ("final.safetensors", "best.safetensors"):
            assert (a / name).read_bytes() == (b / name).read_bytes(), name
        assert metrics(a) == metrics(b)
        tables = [pq.read_table(run / "clients.parquet").drop_columns(["seconds"]) for run in (a, b)]
        assert tables[0].equals(tables[1])

    return check
