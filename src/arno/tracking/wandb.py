"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..records.folder import RunFolder
from . import trackers
from .tracker import Record, State, Tracker, files


@trackers.register("wandb", needs=("wandb",))
class Wandb(Tracker):
    """Weights & Biases. Its own environment variables configure it."""

    remote = True

    def open(self, folder: RunFolder, state: State) -> None:
        """Create or continue the run."""
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "arno"),
            id=state.get("run"),
            name=folder.path.name,
            config=folder.config() | {"manifest": folder.manifest()},
            resume="allow",
            dir=str(folder.path),
        )
        state["run"] = self._run.id

    def send(self, records: Sequence[Record]) -> None:
        """Log each round; the library sends the rounds in batches."""
        for record in records:
            self._run.log(record.values, step=record.round)

    def finish(self, folder: RunFolder, status: str) -> None:
        """Send the files of the run's folder."""
        for path in files(folder):
            self._run.save(str(path), base_path=str(folder.path), policy="now")

    def close(self) -> None:
        """End the run."""
        self._run.finish()
