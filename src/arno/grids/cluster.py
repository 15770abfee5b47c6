"""Runs cells on a Ray cluster.

Each cell runs on an actor with one core and on the serial engine, which gives the same bits as the engine `ray`.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import settings as configs
from ..engines.actors import Actors, Call, Ray
from ..runs.progress import Quiet
from .cells import Config, Ended, Lost, Moved, Outcome, Workers, run_cell

#: What an actor returns: the fields of the outcome, and the files of the cell if they are not in its folder yet.
Answer = tuple[tuple[Any, ...], dict[str, bytes]]


def for_actors(words: Sequence[str]) -> list[str]:
    """The settings of the cells of a comparison with `engine=ray`: each cell trains on the serial engine."""
    return ["engine=serial", *(word for word in words if not _of_engine(word))]


class Cluster(Workers):
    """Actors of a Ray cluster. A lost actor is replaced, and its cell continues from its last checkpoint.

    words: the settings of the comparison; those of the engine say which cluster. folder: the folder of the comparison.
    """

    tries = 3

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self._engine = configs.compose([word for word in words if _of_engine(word)]).engine
        # An actor that sees this file can write into the folder of the comparison.
        self._token = folder / f".{secrets.token_hex(8)}"
        self._connection: Ray | None = None
        self._actors: Actors | None = None

    def room(self, config: Config) -> int:
        """As many cells as `engine.workers` says; by default one per core of the cluster."""
        return int(self._engine.workers) or max(1, self._connected().cpus)

    def start(self, jobs: int) -> None:
        """Connect to the cluster and start the actors that do not exist yet."""
        if self._actors is not None:
            self._actors.count = max(self._actors.count, jobs)
            self._actors.start()
            return
        self._connected()
        self._token.touch()
        import ray

        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(CellActor)
        self._actors = Actors(lambda: actor.remote(os.getcwd()), jobs)
        self._actors.start()

    def free(self) -> int:
        """How many actors are ready and have no cell."""
        return len(list(self._started().room()))

    def give(self, cell: int, config: Config) -> None:
        """Run a cell on a free actor."""
        actors = self._started()
        actors.send(next(iter(actors.room())), Call("run", (config, str(self._token)), what=(cell, config)))

    def wait(self) -> Sequence[Moved | Ended | Lost]:
        """The cells that have ended, and the cells whose actors were lost."""
        events: list[Moved | Ended | Lost] = []
        for call, _, reason in self._started().wait(1.0):
            cell, config = call.what
            events.append(Lost(cell, reason) if reason else Ended(cell, outcome_of(call.answer, config)))
        return events

    def stop(self, times: int) -> None:
        """Leave the loop. Cells continue from their last checkpoints when the command is repeated."""
        raise KeyboardInterrupt

    def close(self) -> None:
        """End the actors, and close the connection."""
        self._token.unlink(missing_ok=True)
        if self._actors is not None:
            self._actors.close()
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> Ray:
        if self._connection is None:
            self._connection = Ray(self._engine.address, self._engine.workers)
        return self._connection

    def _started(self) -> Actors:
        assert self._actors is not None
        return self._actors


class CellActor:
    """An actor that runs one cell after another. folder: the working directory of the comparison."""

    def __init__(self, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)

    def ready(self) -> bool:
        """True; the answer shows that the actor is ready."""
        return True

    def run(self, config: Config, token: str) -> Answer:
        """Run a cell in its folder. If this node cannot read the file `token`, return the files of the cell."""
        if Path(token).exists():
            return tuple(run_cell(config, Quiet())), {}
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "cell")
            outcome = run_cell(config | {"out": str(folder)}, Quiet())
            files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return tuple(outcome), files


def outcome_of(answer: Answer, config: Config) -> Outcome:
    """The outcome that an actor returned. Files that the actor returned are written into the folder of the cell."""
    outcome, files = answer
    for name, content in files.items():
        path = Path(config["out"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Outcome(*outcome)


def _of_engine(word: str) -> bool:
    """Whether a setting belongs to the engine."""
    return word.partition("=")[0].split(".")[0] == "engine"
