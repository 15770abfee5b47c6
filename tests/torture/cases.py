"""What a case of the torture is, how it is judged, and what a run computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from commands import HUNG, Said

#: The columns of the table. Every case ends in one of them; the last three are failures.
OUTCOMES = ("identical", "refused", "silent", "traceback", "hung")
BAD = OUTCOMES[2:]
#: What the manifest of a run says about its result.
TOLD = ("status", "best_round", "rounds", "data_fingerprint", "parameters", "report", "client_count", "metrics", "seed")


class Verdict(NamedTuple):
    """How a case ended. kills: how many processes it killed. why: what is wrong, or the line that refused it."""

    outcome: str
    why: str = ""
    kills: int = 0


@dataclass(frozen=True)
class Case:
    """kind: its row in the table. name: it repeats the case, with the same seed. act: does it in an empty folder."""

    kind: str
    name: str
    act: Callable[[Path, Random], Verdict]


class Bad(Exception):
    """A case that failed: its outcome and the reason."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(outcome, why)


def check(said: Said, what: str) -> Said:
    """A command that was not killed: it must have ended well, or be refused with one line."""
    text = " | ".join((said.err or said.out).strip().splitlines()[-6:])[-1200:]
    if said.status == HUNG:
        raise Bad("hung", f"{what}: {text}")
    if said.broken or (said.status != 0 and not said.refused):
        raise Bad("traceback", f"{what}: status {said.status}: {text}")
    return said


def computed(path: Path) -> dict[str, str]:
    """A digest of everything that a run computed and recorded, without times."""
    from arno.runs.result import RunResult

    run = RunResult(path)
    manifest = run.folder.manifest()
    rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in run.rows]
    clients = run.clients.drop(columns="seconds", errors="ignore")
    config = {k: v for k, v in run.config.items() if k not in ("out", "engine", "load", "track")}
    return {
        "final": _digest(run.final.numpy().tobytes()),
        "best": _digest(run.best.numpy().tobytes()),
        "records": _digest(json.dumps(rows).encode()),
        "clients": _digest(clients.to_json(orient="split").encode()),
        "counts": _digest(b"" if run.counts is None else run.counts.tobytes()),
        "panels": _digest(_panels(run.folder.path / "panels.json")),
        "manifest": _digest(json.dumps({k: manifest.get(k) for k in TOLD}).encode()),
        "config": _digest(json.dumps(config, sort_keys=True, default=str).encode()),
    }


def _panels(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b"missing"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def same(path: Path, want: dict[str, str], what: str, apart: tuple[str, ...] = ()) -> None:
    """Refuse a run that computed something else."""
    try:
        found = computed(path)
    except Exception as error:
        raise Bad("silent", f"{what}: its result cannot be read: {error}") from error
    odd = [name for name in want if name not in apart and found.get(name) != want[name]]
    if odd:
        raise Bad("silent", f"{what}: other {', '.join(odd)}")


def one_line(text: Any) -> str:
    return " ".join(str(text).split())[:400]
