"""What a run computed, and what it said."""

from __future__ import annotations

from pathlib import Path

from arno.runs.progress import Quiet
from arno.runs.result import RunResult


class Outcome:
    """What a run computed and recorded, without times."""

    def __init__(self, path: Path) -> None:
        run = RunResult(path)
        self.models = [run.final.numpy().tobytes(), run.best.numpy().tobytes()]
        self.rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in run.rows]
        self.clients = run.clients.drop(columns="seconds").to_dict("list")
        manifest = run.folder.manifest()
        self.told = {k: v for k, v in manifest.items() if k in ("status", "best_round", "rounds", "data_fingerprint")}
        self.config = {k: v for k, v in run.config.items() if k != "out"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Said(Quiet):
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """Keep the line."""
        self.lines.append(line)
