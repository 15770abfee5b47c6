"""A run, read from its folder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.metric import Metric
from ..errors import ArnoError
from ..pictures.card import card
from ..records import clients
from ..records.folder import COUNTS, RunFolder
from .python_objects import again
from .trust import check

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from ..core.problem import Problem


class RunResult:
    """A run, read from its folder. Only `problem` and `model` run code of the data or the network.

    rows: the record of each round. history: the records as a DataFrame. clients: one row per client and round.
    metrics: the declarations of the scores. final, best: the model after the last round, and the best model by
    validation data. model(): the network with the weights of one of them. plot(): a picture.
    trust: whether `problem` and `model` may import your own files that the run names, even if you did not start this
    run on this machine. data, network: the objects with which the run was started from Python; `problem` and `model`
    need them.
    """

    def __init__(self, path: Path | str, trust: bool = False, *, data: Any = None, network: Any = None) -> None:
        self._given = RunFolder.open(Path(path))
        self._there = RunFolder(self._given.path.absolute())
        self.path, self.trust, self._objects = self._given.path, trust, (data, network)

    @property
    def folder(self) -> RunFolder:
        """The folder of the run; also if the path is relative and the current folder has changed since."""
        return self._given if self._given.path.absolute() == self._there.path else self._there

    def __repr__(self) -> str:
        return f"RunResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """What notebooks show: method, data, rounds, last scores, the picture."""
        config, last = self.config, self.rows[-1] if self.rows else {}
        facts: dict[str, object] = {"method": config["method"]["kind"], "data": config["data"]["kind"]}
        facts |= {"round": f"{last.get('round', 0)} of {config['rounds']}", "folder": self.path}
        known = {
            metric.label: metric.show(last[metric.name]) for metric in self.metrics if last.get(metric.name) is not None
        }
        return card("Run", facts | known, figure=self.plot() if self.rows else None)

    def plot(self, *metrics: str) -> Figure:
        """A picture of the scores over the rounds: all that were recorded, or those that are named."""
        from ..pictures.curves import curves

        known = {metric.name: metric for metric in self.metrics}
        if odd := [name for name in metrics if name not in known]:
            raise ArnoError(f"plot({odd[0]!r})", "this run has no such score", f"there are: {', '.join(known)}")
        return curves(self.rows, [known[name] for name in metrics or known])  # type: ignore[no-any-return]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self.folder.config()

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The record of each round, from `metrics.jsonl`."""
        return self.folder.rows()

    @property
    def dropped(self) -> int:
        """How often a client was left out of a round because it diverged or its training failed."""
        return sum(row["dropped"] for row in self.rows if isinstance(row.get("dropped"), int))

    @cached_property
    def history(self) -> pd.DataFrame:
        """The records as a table, one row per round."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=None if self.rows else ["round"]).set_index("round")

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The declarations of the recorded scores, in order of preference."""
        return self.folder.metrics()

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client and round, from `clients.parquet`; for an unfinished run, the rows that it has saved."""
        import pandas as pd

        last = self.folder.complete()
        if last and not (self.folder.path / "clients.parquet").exists():
            from ..records.verify import verify_clients

            verify_clients(
                self.folder, last, {row["round"]: row["clients"] for row in self.rows if row["round"] <= last}
            )
        pieces = [clients.load(piece).to_pandas() for piece in self.folder.client_records()]
        return pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame(columns=["round", "client"])

    def client_scores(self) -> pd.DataFrame:
        """One row per client: its index and name, the numbers of its samples, and its scores after the last round.

        own_…: scores of the global model on the client's own test samples. personal_…: scores of the client's personal
        model on the same samples. The frame is empty if the run is not finished, or if clients have no test samples
        (`data.client_test=0.2` keeps some).
        """
        import pandas as pd

        path = self.folder.verified("client_scores.parquet")
        if not path.exists():
            return pd.DataFrame(columns=["round", "client", "samples", "tested"])
        frame: pd.DataFrame = clients.load(path).to_pandas()
        return frame

    @cached_property
    def counts(self) -> NDArray[np.int32] | None:
        """How many samples of each class each client holds, [clients, classes]; None if the run did not record it."""
        from ..data.archives import read_npy

        path = self.folder.verified(COUNTS)
        return read_npy(path) if path.exists() else None

    @cached_property
    def final(self) -> Tensor:
        """The model after the last round."""
        return self._vector("final")

    @cached_property
    def best(self) -> Tensor:
        """The best model by validation data; the last model if there are no validation data."""
        return self._vector("best")

    @cached_property
    def start(self) -> Tensor:
        """The model before the first round, if the network was an object of a Python program."""
        return self._vector("start")

    @cached_property
    def problem(self) -> Problem:
        """The problem (data, partition, network), built again from the configuration; see `runs/trust.py`."""
        from ..config import build
        from ..config.settings import current

        if not self.trust:
            check(self.folder.path, self.config)
        config = current(self.config)
        again(self.folder.path, config, *self._objects)
        problem: Problem = build.problems.build(config["problem"], config)
        return problem

    def model(self, which: str = "best") -> nn.Module:
        """The network with the weights of `best` or `final`, in evaluation mode."""
        if which not in ("best", "final"):
            raise ArnoError(f"model({which!r})", "there are the models best and final", 'write model("final")')
        return self.problem.model(self.best if which == "best" else self.final)

    def _vector(self, name: str) -> Tensor:
        from ..records.checkpoint import read_tensors

        remedy = f"arno resume {self.path} writes it again"
        return read_tensors(self.folder.verified(f"{name}.safetensors"), remedy)[0]["w"]
