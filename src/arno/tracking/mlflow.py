"""MLflow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..config.settings import flat
from ..records.folder import RunFolder
from . import trackers
from .tracker import Record, State, Tracker, files

#: MLflow accepts at most so many values, and so many parameters, in one request.
VALUES, PARAMETERS = 1000, 100
#: Statuses of a run and MLflow's names for them.
STATUS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
#: Values of the manifest that become tags.
TAGS = ("arno", "python", "torch", "numpy", "platform", "command", "data_fingerprint", "seed")


@trackers.register("mlflow", needs=("mlflow", "sqlalchemy"))
class Mlflow(Tracker):
    """An MLflow store at `uri`; by default at MLFLOW_TRACKING_URI, or in the SQLite file `mlruns.db` in this folder."""

    def __init__(self, uri: str = "") -> None:
        local = f"sqlite:///{Path('mlruns.db').resolve()}"
        super().__init__(uri or os.environ.get("MLFLOW_TRACKING_URI", "") or local)
        self.remote = self.uri.startswith(("http:", "https:", "databricks"))

    def open(self, folder: RunFolder, state: State) -> None:
        """Create the run. Its configuration becomes parameters, and values of its manifest become tags."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self.uri)
        if state.get("uri") != self.uri:
            state.pop("run", None)
            state["uri"] = self.uri
        if "run" not in state:
            made = self._client.create_run(self._experiment(), run_name=folder.path.name)
            state |= {"run": made.info.run_id, "described": False, "sent": 0, "finished": ""}
        self._run = state["run"]
        if not state.get("described"):
            self._describe(folder)
            state["described"] = True

    def send(self, records: Sequence[Record]) -> None:
        """Send the values, up to a thousand in one request."""
        from mlflow.entities import Metric

        values = [
            Metric(name, value, int(1000 * record.time), record.round)
            for record in records
            for name, value in record.values.items()
        ]
        for at in range(0, len(values), VALUES):
            self._client.log_batch(self._run, metrics=values[at : at + VALUES])

    def finish(self, folder: RunFolder, status: str) -> None:
        """Send the files as artifacts, and set the status of the run."""
        for path in files(folder):
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, STATUS.get(status, "FAILED"))

    def close(self) -> None:
        """Do nothing: each request has its own connection."""

    def _experiment(self) -> str:
        """The id of the experiment, which is created if necessary. An SQLite store has its artifacts beside it."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "arno")
        found = self._client.get_experiment_by_name(name)
        if found:
            return str(found.experiment_id)
        artifacts = None
        if self.uri.startswith("sqlite:///"):
            artifacts = (Path(self.uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
        return str(self._client.create_experiment(name, artifacts))

    def _describe(self, folder: RunFolder) -> None:
        from mlflow.entities import Param, RunTag

        manifest = folder.manifest()
        parameters = [Param(key, str(value)[:500]) for key, value in flat(folder.config())]
        tags = [RunTag(key, str(manifest[key])[:5000]) for key in TAGS if manifest.get(key) is not None]
        for at in range(0, len(parameters), PARAMETERS):
            self._client.log_batch(self._run, params=parameters[at : at + PARAMETERS])
        self._client.log_batch(self._run, tags=tags)
