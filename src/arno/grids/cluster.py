"""The cells of a comparison on a Ray cluster: a core for each, on the serial engine, whose bits are those of `ray`."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import settings as configs
from ..engines.actors import Actors, Call, Ray
from ..runs.progress import Quiet
from .crew import Config, Runner, Watcher
from .worker import Outcome, record_failure, run_cell

#: A cell that was lost with its worker this often has failed.
TRIES = 3


def spread(words: Sequence[str], jobs: int | None) -> tuple[list[str], int, Runner]:
    """What `engine=ray` means to a comparison: the cells' own words, how many run at a time, and where."""
    asked = configs.compose([word for word in words if word.partition("=")[0].split(".")[0] == "engine"]).engine
    cluster = Ray(asked.address, asked.workers)
    rest = [word for word in words if word.partition("=")[0].split(".")[0] != "engine"]
    return ["engine=serial", *rest], jobs or asked.workers or max(1, cluster.cpus), on(cluster)


def on(cluster: Ray) -> Runner:
    """Actors of this cluster; it is left when they are done. One that is lost is replaced and its cell goes on."""

    def run(given: Sequence[Config], jobs: int, watcher: Watcher) -> bool:
        import ray

        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Runs)
        actors = Actors(lambda: actor.remote(os.getcwd()), min(jobs, len(given)), 0.0)
        actors.start()
        token = Path(given[0]["out"]).parent / f".{secrets.token_hex(8)}"  # who sees it shares our files
        token.touch()
        calls = [Call("run", (config, str(token)), what=cell) for cell, config in enumerate(given)]
        todo, left = deque(calls), len(calls)
        try:
            while left:
                for worker in actors.room():
                    if todo:
                        watcher.began(todo[0].what)
                        actors.send(worker, todo.popleft())
                for call, _, why in actors.wait():
                    call.tries += bool(why)
                    if why and call.tries < TRIES:
                        todo.appendleft(call)
                        continue
                    left -= 1
                    watcher.ended(call.what, _outcome(given[call.what], call, why))
        except KeyboardInterrupt:
            return False
        finally:
            token.unlink(missing_ok=True)
            actors.close()
            cluster.close()
        return True

    return run


def _outcome(config: Config, call: Call, why: str) -> Outcome:
    """How a cell ended; its files are put into its folder where they are not there yet."""
    if why:
        outcome = Outcome(f"{why}, {TRIES} times")
        record_failure(config, outcome)
        return outcome
    told, files = call.answer
    for name, content in files.items():
        path = Path(config["out"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    call.answer = None
    return Outcome(*told)


class Runs:
    """The actor's side: runs one cell after another."""

    def __init__(self, folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)

    def ready(self) -> bool:
        """It is up."""
        return True

    def run(self, config: dict[str, Any], token: str) -> tuple[tuple[Any, ...], dict[str, bytes]]:
        """Run a cell in its folder, or where that is out of reach in one of our own that is sent back."""
        if Path(token).exists():
            return tuple(run_cell(config, Quiet())), {}
        with tempfile.TemporaryDirectory() as own:
            outcome = run_cell(config | {"out": str(Path(own, "cell"))}, Quiet())
            files = {
                str(p.relative_to(own)).partition("/")[2]: p.read_bytes() for p in Path(own).rglob("*") if p.is_file()
            }
        return tuple(outcome), files
