"""The folder of a run: its files, and how they are written. A kill loses at most the rounds since a checkpoint."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from omegaconf import OmegaConf

from ..config import settings as configs
from ..core.metric import TRAIN_LOSS, Metric, over_clients
from ..errors import ArnoError
from ..panels import Panel, from_json, to_json
from ..version import __version__
from . import metrics

if TYPE_CHECKING:
    from torch import Tensor

#: The largest table of counts, clients × classes, that a run keeps (8 MB).
COUNTS = 2_000_000

#: The metrics of runs of release 0.1, whose manifests do not declare them.
EARLIER = (
    *(
        Metric(name, label, low=0, high=1, axis="score").on(split)
        for split in ("test", "val")
        for name, label in (("f1", "F1"), ("accuracy", "accuracy"))
    ),
    *(Metric("loss", "loss", "less", low=0, axis="loss").on(split) for split in ("test", "val")),
    *over_clients(Metric("accuracy", "accuracy", low=0, high=1, axis="score")),
    TRAIN_LOSS,
)
#: The same for its runs on quadratics.
EARLIER_QUADRATIC = (
    Metric("gap", "F(w) − F(w*)", "less", low=0, log=True),
    Metric("distance", "‖w − w*‖", "less", low=0, log=True),
    TRAIN_LOSS,
)


class RunFolder:
    """`config.yaml`, `manifest.json`, `metrics.jsonl`, `clients.parquet`, `checkpoints/`, models, panels, pictures.

    Every file but `metrics.jsonl` and `log.txt`, which grow, is written completely or not at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics: TextIO | None = None
        self._clients: dict[str, list[Any]] = {}

    @classmethod
    def new(cls, config: dict[str, Any]) -> RunFolder:
        """The folder that a new run will have; nothing is written yet."""
        stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{config['method']['kind']}-{secrets.token_hex(2)}"
        return cls(Path(config["out"] or Path("runs") / stamp))

    def refuse_used(self) -> None:
        """Refuse a folder that already holds a run."""
        if (self.path / "manifest.json").exists():
            raise ArnoError(f"out = {self.path}", "it holds a run already", f"arno resume {self.path}, or another out=")

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder of a new run."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArnoError(
                f"out = {self.path}", f"cannot be written ({error.strerror})", "choose another out="
            ) from error
        self.write_config(config)

    def remove_if_empty(self) -> None:
        """Remove a folder that holds nothing but its lock: the run was refused before it began."""
        with suppress(OSError):
            if [path.name for path in self.path.iterdir()] == [".lock"]:
                (self.path / ".lock").unlink()
                self.path.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run."""
        if not (path / "config.yaml").is_file():
            with suppress(OSError, ValueError, KeyError):
                same = json.loads((path / "compare.json").read_text())["command"]
                raise ArnoError(f"{path}", "is no run but a comparison", f"the same command continues it: {same}")
            raise ArnoError(
                f"{path}", "is no run: it holds no config.yaml", "give the folder that arno run printed last"
            )
        return cls(path)

    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run, in the names of this version.

        It is read as plain YAML, ten times faster than with OmegaConf, which is needed only for ${…} that a user wrote.
        """
        import yaml

        try:
            loaded = yaml.load((self.path / "config.yaml").read_text(), _loader())
        except (OSError, yaml.YAMLError):
            loaded = None
        return configs.translated(loaded if isinstance(loaded, dict) else configs.read(self.path / "config.yaml"))

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the resolved configuration; `arno run --config` with this file repeats the run."""
        self.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))

    def manifest(self) -> dict[str, Any]:
        """Versions, engine, fingerprints, status."""
        path = self.path / "manifest.json"
        try:
            loaded = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ArnoError(f"{path}", f"cannot be read ({error})", "is this a run?") from error
        if not isinstance(loaded, dict):
            raise ArnoError(f"{path}", "cannot be read (it holds no names)", "is this a run?")
        return loaded

    def metrics(self) -> tuple[Metric, ...]:
        """The declarations of the recorded scores; a manifest without them is of release 0.1."""
        declared = self.manifest().get("metrics")
        if declared is None:
            quadratic = dict(configs.flat(self.config())).get("problem.kind") == "quadratic"
            return EARLIER_QUADRATIC if quadratic else EARLIER
        try:
            return tuple(Metric.from_json(values) for values in declared)
        except (TypeError, AttributeError) as error:
            path = self.path / "manifest.json"
            raise ArnoError(f"{path}", f"its metrics cannot be read ({error})", "was it edited?") from error

    def update_manifest(self, **values: Any) -> None:
        """Set some values of the manifest."""
        old = self.manifest() if (self.path / "manifest.json").exists() else {}
        self.write_text("manifest.json", json.dumps(old | values, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a small file completely or not at all."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """The same with bytes."""
        temporary = self.path / f"{name}.part"
        try:
            temporary.write_bytes(data)
            temporary.replace(self.path / name)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ArnoError(f"cannot write {self.path / name}", str(error.strerror), "free some space") from error

    def write_counts(self, counts: Tensor) -> None:
        """Write how many samples of each class each client holds, `counts.npy`, unless the table is too large."""
        import numpy as np

        if counts.numel() <= COUNTS:
            file = BytesIO()
            np.save(file, counts.to("cpu").numpy().astype(np.int32))
            self.write_bytes("counts.npy", file.getvalue())

    def write_panels(self, panels: Sequence[Panel]) -> None:
        """Write the panels of the method as data, `panels.json`: showing them then needs no code of the method."""
        self.write_text("panels.json", json.dumps([to_json(panel) for panel in panels], ensure_ascii=False) + "\n")

    def panels(self) -> list[Panel] | None:
        """The panels of the method; None if the run has not written them."""
        try:
            return [from_json(values) for values in json.loads((self.path / "panels.json").read_text())]
        except (OSError, ValueError, TypeError):
            return None

    def client_records(self) -> list[Path]:
        """The files with the rows of the clients: `clients.parquet`, or before the end of the run what is on disk."""
        whole = self.path / "clients.parquet"
        return [whole] if whole.exists() else sorted(self.checkpoints.glob("clients-*.parquet"))

    def log(self, line: str) -> None:
        """Add a line to the log; if that fails, the run continues without it."""
        with suppress(OSError), (self.path / "log.txt").open("a") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}\n")

    def add(self, row: dict[str, Any], clients: dict[str, list[Any]]) -> None:
        """Record a round: its row goes to disk at once, the rows of its clients with the next checkpoint."""
        try:
            if self._metrics is None:
                self._metrics = (self.path / metrics.NAME).open("a")
            self._metrics.write(json.dumps(row) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise ArnoError(
                f"cannot write {self.path / metrics.NAME}", str(error.strerror), "free some space, then arno resume"
            ) from error
        n = len(clients.get("client", []))
        for name, values in {"round": [row["round"]] * n, **clients}.items():
            self._clients.setdefault(name, []).extend(values)

    def flush_clients(self, t: int) -> None:
        """Write the rows of the clients since the last call, beside the checkpoint after round `t`."""
        if self._clients:
            import pyarrow as pa

            columns = {name: _column(values) for name, values in self._clients.items()}
            write_parquet(pa.table(columns), self.checkpoints / f"clients-{t:08d}.parquet")
            self._clients = {}

    def merge_clients(self) -> None:
        """Join what `flush_clients` wrote into `clients.parquet`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        flushed = sorted(self.checkpoints.glob("clients-*.parquet"))
        pieces = [pq.ParquetFile(piece).read() for piece in flushed]  # `read_table` would import pandas
        if pieces:
            write_parquet(pa.concat_tables(pieces, promote_options="default"), self.path / "clients.parquet")

    def rewind(self, t: int) -> None:
        """Remove the records and checkpoints of rounds after `t`, which will be computed again."""
        if (self.path / metrics.NAME).exists():
            self.write_text(metrics.NAME, metrics.up_to(self.path, t))
        for piece in [*self.checkpoints.glob("clients-*.parquet"), *self.saved()]:
            if int(piece.stem.split("-")[-1]) > t:
                piece.unlink()

    def checkpoint_path(self, t: int) -> Path:
        """The file of the checkpoint after round `t`."""
        return self.checkpoints / f"{t:08d}.safetensors"

    def saved(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.checkpoints.glob("[0-9]*.safetensors"))

    def close(self) -> None:
        """Close the files."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def environment() -> dict[str, Any]:
    """The versions of Python and of the libraries, and the machine."""
    import numpy
    import torch

    return {
        "arno": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }


@cache
def _loader() -> Any:
    """A YAML loader that reads 1e-3 as a number, as Hydra and OmegaConf do."""
    import yaml

    class Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
        pass

    number = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def _column(values: list[Any]) -> Any:
    """A column of a table. Numbers avoid Arrow's own conversion: it imports pandas, which takes longer than saving."""
    import numpy as np
    import pyarrow as pa

    plain = values and isinstance(values[0], int | float)  # lists may differ in length
    array = np.asarray(values) if plain else None
    if array is None or array.dtype.kind not in "if":
        return pa.array(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(array)])


def write_parquet(table: Any, path: Path) -> None:
    """Write a table completely or not at all."""
    import pyarrow.parquet as pq

    temporary = path.with_name(path.name + ".part")
    try:
        pq.write_table(table, temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ArnoError(f"cannot write {path}", str(error), "free some space, then arno resume") from error
