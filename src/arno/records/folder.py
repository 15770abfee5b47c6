"""A run is a folder: what is in it, written so that a kill loses at most the rounds since a checkpoint."""

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

#: Clients × classes beyond which a run does not keep its counts (8 MB).
COUNTS = 2_000_000


#: What runs recorded before their manifests declared it.
EARLIER = (
    *(
        Metric(name, label, low=0, high=1, axis="score").on(split)
        for split in ("test", "val")
        for name, label in (("f1", "F1"), ("accuracy", "accuracy"))
    ),
    *(Metric("loss", "loss", "less", low=0, axis="loss").on(split) for split in ("test", "val")),
    Metric("gap", "F(w) − F(w*)", "less", low=0, log=True),
    Metric("distance", "‖w − w*‖", "less", low=0, log=True),
    *over_clients(Metric("accuracy", "accuracy", low=0, high=1, axis="score")),
    TRAIN_LOSS,
)


class RunFolder:
    """`config.yaml`, `manifest.json`, `metrics.jsonl`, `clients.parquet`, `checkpoints/`, models, pictures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics: TextIO | None = None
        self._clients: dict[str, list[Any]] = {}

    @classmethod
    def create(cls, config: dict[str, Any]) -> RunFolder:
        """A new folder for a run; refuses to write over another run."""
        stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{config['method']['kind']}-{secrets.token_hex(2)}"
        folder = cls(Path(config["out"] or Path("runs") / stamp))
        if (folder.path / "manifest.json").exists():
            raise ArnoError(
                f"out = {folder.path}", "it holds a run already", f"arno resume {folder.path}, or another out="
            )
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArnoError(
                f"out = {folder.path}", f"cannot be written ({error.strerror})", "choose another out="
            ) from error
        folder.write_config(config)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run."""
        if not (path / "config.yaml").is_file():
            with suppress(OSError, ValueError, KeyError):
                same = json.loads((path / "compare.json").read_text())["command"]
                raise ArnoError(f"{path}", "is no run but a comparison", f"the same command goes on with it: {same}")
            raise ArnoError(
                f"{path}", "is no run: it holds no config.yaml", "give the folder that arno run printed last"
            )
        return cls(path)

    def config(self) -> dict[str, Any]:
        """The run's resolved configuration; plain YAML, ten times faster to read than a user's with its ${…}."""
        import yaml

        try:
            loaded = yaml.load((self.path / "config.yaml").read_text(), _loader())
        except (OSError, yaml.YAMLError):
            loaded = None
        return loaded if isinstance(loaded, dict) else configs.read(self.path / "config.yaml")

    def write_config(self, config: dict[str, Any]) -> None:
        """Put the resolved configuration down; running it again reproduces the run."""
        self.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))

    def manifest(self) -> dict[str, Any]:
        """Versions, engine, fingerprints, status."""
        try:
            loaded: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        except (OSError, ValueError) as error:
            raise ArnoError(f"{self.path / 'manifest.json'}", f"cannot be read ({error})", "is this a run?") from error
        return loaded

    def metrics(self) -> tuple[Metric, ...]:
        """The declarations of the recorded scores; runs of releases before 0.2 have those of `EARLIER`."""
        declared = self.manifest().get("metrics")
        return EARLIER if declared is None else tuple(Metric.from_json(values) for values in declared)

    def update_manifest(self, **values: Any) -> None:
        """Set some of the manifest's values."""
        old = self.manifest() if (self.path / "manifest.json").exists() else {}
        self.write_text("manifest.json", json.dumps(old | values, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a small file whole or not at all."""
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
        """Put down who holds how much of which class, `counts.npy`, unless that is too much to keep with a run."""
        import numpy as np

        if counts.numel() <= COUNTS:
            file = BytesIO()
            np.save(file, counts.to("cpu").numpy().astype(np.int32))
            self.write_bytes("counts.npy", file.getvalue())

    def write_panels(self, panels: Sequence[Panel]) -> None:
        """Put down the pictures of the method as data, `panels.json`, so that nobody needs the method to show them."""
        self.write_text("panels.json", json.dumps([to_json(panel) for panel in panels], ensure_ascii=False) + "\n")

    def panels(self) -> list[Panel] | None:
        """The pictures of the method as data; None where the run has not written any."""
        try:
            return [from_json(values) for values in json.loads((self.path / "panels.json").read_text())]
        except (OSError, ValueError, TypeError):
            return None

    def client_records(self) -> list[Path]:
        """The files with the clients' rows: `clients.parquet`, or in a run that is not over what was flushed so far."""
        whole = self.path / "clients.parquet"
        return [whole] if whole.exists() else sorted(self.checkpoints.glob("clients-*.parquet"))

    def log(self, line: str) -> None:
        """Add a line to the log; a run does not fail for want of one."""
        with suppress(OSError), (self.path / "log.txt").open("a") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}\n")

    def add(self, row: dict[str, Any], clients: dict[str, list[Any]]) -> None:
        """Record a round."""
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

    def flush_clients(self, upto: int) -> None:
        """Put the clients' rows since the last flush on disk, beside the checkpoint of round `upto`."""
        if self._clients:
            import pyarrow as pa

            columns = {name: _column(values) for name, values in self._clients.items()}
            write_parquet(pa.table(columns), self.checkpoints / f"clients-{upto:08d}.parquet")
            self._clients = {}

    def merge_clients(self) -> None:
        """Make `clients.parquet` of all that was flushed."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        flushed = sorted(self.checkpoints.glob("clients-*.parquet"))
        pieces = [pq.ParquetFile(piece).read() for piece in flushed]  # `read_table` would import pandas
        if pieces:
            write_parquet(pa.concat_tables(pieces, promote_options="default"), self.path / "clients.parquet")

    def rewind(self, upto: int) -> None:
        """Forget the records of rounds after `upto`: they will be computed again."""
        if (self.path / metrics.NAME).exists():
            self.write_text(metrics.NAME, metrics.up_to(self.path, upto))
        for piece in [*self.checkpoints.glob("clients-*.parquet"), *self.saved()]:
            if int(piece.stem.split("-")[-1]) > upto:
                piece.unlink()

    def checkpoint_path(self, t: int) -> Path:
        """Where the checkpoint after round `t` lies."""
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
    """Versions of what computes the run."""
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
    """YAML that takes 1e-3 for a number, as Hydra and OmegaConf do."""
    import yaml

    class Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
        pass

    number = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def _column(values: list[Any]) -> Any:
    """Numbers go straight into a column: Arrow's own conversion imports pandas, which takes longer than to save."""
    import numpy as np
    import pyarrow as pa

    plain = values and isinstance(values[0], int | float)  # lists may be ragged
    array = np.asarray(values) if plain else None
    if array is None or array.dtype.kind not in "if":
        return pa.array(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(array)])


def write_parquet(table: Any, path: Path) -> None:
    """Write a table whole or not at all."""
    import pyarrow.parquet as pq

    temporary = path.with_name(path.name + ".part")
    try:
        pq.write_table(table, temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ArnoError(f"cannot write {path}", str(error), "free some space, then arno resume") from error
