"""The folder of a run: its files, and how they are written. A kill loses only the rounds since the last checkpoint."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import stat
from collections import Counter
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
from ..limits import CONFIG as CONFIG_SIZE
from ..limits import check_yaml, named_in_text
from ..pictures.panel_types import Panel, from_json, to_json
from ..version import __version__
from . import checksummed, clients, disk, metrics_file
from .checksummed import CONFIG
from .damage import Damaged, checksum, content, damaged, file_checksum
from .metrics_file import Row

if TYPE_CHECKING:
    from torch import Tensor

#: The file with the number of samples of each class at each client; and the most numbers in it (8 MB).
COUNTS, MOST = "counts.npy", 2_000_000
#: The size of a block of common file systems, in bytes.
BLOCK = 4096
#: The manifest before its last change.
PREVIOUS = "manifest.json.previous"
#: The types of the values of a manifest that Arno reads; each value may be missing.
TYPES: dict[str, type] = {
    **dict.fromkeys(("status", "command", "reason", "started", "data_fingerprint"), str),
    **dict.fromkeys(("rounds", "best_round", "client_count", "resumed_after"), int),
    **dict.fromkeys(("engine", "checksums", "sizes", "references"), dict),
    **dict.fromkeys(("classes", "clients"), list),
}
#: The files that a run writes at its end; the manifest of a finished run holds their checksums.
RESULTS = (
    *("final.safetensors", "best.safetensors", "panels.json"),
    *("clients.parquet", "client_scores.parquet", COUNTS),
)

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
#: The metrics of runs on quadratics of release 0.1.
EARLIER_QUADRATIC = (
    Metric("gap", "F(w) − F(w*)", "less", low=0, log=True),
    Metric("distance", "‖w − w*‖", "less", low=0, log=True),
    TRAIN_LOSS,
)


class RunFolder:
    """`config.yaml`, `manifest.json`, `metrics.jsonl`, tables of the clients, `checkpoints/`, models, panels, pictures.

    `metrics.jsonl` and `log.txt` grow during a run. Every other file is written completely or not at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics: TextIO | None = None
        self._named = False  # whether the name of the records' file was flushed to the disk
        self._clients: dict[str, list[Any]] = {}
        self._mark: str | None = None

    @property
    def mark(self) -> str:
        """The mark of the run: a checksum of the settings on which the result depends.

        The configuration, the manifest and the records hold it, so a file of another run is noticed. It is empty in a
        folder of release 0.1.
        """
        if self._mark is None:
            found = self.marks()
            self._mark = found.get("config.yaml") or next(iter(found.values()), "")
        return self._mark

    def marks(self) -> dict[str, str]:
        """The mark in every file that has a mark and can be read, by the name of the file."""
        found: dict[str, str] = {}
        with suppress(ArnoError):
            head, _, _ = content(self.path / "config.yaml", self.path).partition(b"\n")
            first = CONFIG.fullmatch(head.decode(errors="replace"))
            found |= {"config.yaml": first[1]} if first else {}
        for name in ("manifest.json", PREVIOUS):
            with suppress(Damaged):
                found[name] = str(self.manifest(name).get("run", ""))
        with suppress(Damaged, StopIteration):
            reader = metrics_file.Reader(self.path / metrics_file.NAME)
            next(reader.rows())
            found[metrics_file.NAME] = reader.mark
        return {name: mark for name, mark in found.items() if mark}

    def stranger(self) -> str | None:
        """The file that belongs to another run, because its mark differs from the others; None if there is none."""
        found = self.marks()
        counts = Counter(found.values()).most_common()
        if len(counts) < 2:
            return None
        if counts[0][1] == counts[1][1]:
            rule = f"{' and '.join(found)} belong to different runs"
            raise ArnoError(f"{self.path}", rule, "put the right files back, or start again with another out=")
        usual = counts[0][0]
        return next(name for name, mark in found.items() if mark != usual)

    @classmethod
    def new(cls, config: dict[str, Any]) -> RunFolder:
        """The folder that a new run will have; nothing is written yet."""
        stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{config['method']['kind']}-{secrets.token_hex(2)}"
        return cls(Path(config["out"] or Path("runs") / stamp))

    def refuse_used(self) -> None:
        """Refuse a folder that already holds a run."""
        if self.saved() or any((self.path / name).exists() for name in ("manifest.json", PREVIOUS, metrics_file.NAME)):
            remedy = f"continue it with: arno resume {self.path}, or choose another out="
            raise ArnoError(f"out = {self.path}", "it holds a run already", remedy)

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder of a new run."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArnoError(
                f"out = {self.path}", f"cannot be written ({error.strerror})", "choose another out="
            ) from error
        self.write_config(config)

    def remove_if_empty(self, runs: bool) -> None:
        """Remove a folder into which nothing was written, because the run was refused. runs: also its parent folder."""
        with suppress(OSError):
            self.path.rmdir()
            if runs:
                self.path.parent.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run."""
        named_in_text(path)
        if not (path / "config.yaml").is_file():
            with suppress(Damaged, KeyError):
                same = checksummed.read(path / "compare.json", path, "command")["command"]
                raise ArnoError(f"{path}", "is no run but a comparison", f"the same command continues it: {same}")
            if cls(path).saved() or (path / metrics_file.NAME).exists():
                raise damaged(path / "config.yaml", "is missing", path)
            raise ArnoError(
                f"{path}", "is no run: it holds no config.yaml", "give the folder that arno run printed last"
            )
        return cls(path)

    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run, with the names of this version.

        It is read as plain YAML, which is ten times faster than OmegaConf. OmegaConf is needed only for ${…} in a file
        that the user wrote.
        """
        import yaml

        path = self.path / "config.yaml"
        try:
            text = content(path, self.path, CONFIG_SIZE).decode()
            head, _, rest = text.partition("\n")
            first = CONFIG.fullmatch(head)
            if text.startswith("#") and (first is None or first[2] != checksum((first[1] + rest).encode())):
                raise damaged(path, "is damaged: its checksum does not match", self.path)
            loaded = yaml.load(check_yaml(text, f"config {path}"), _loader())
        except (OSError, yaml.YAMLError, ValueError, RecursionError):
            loaded = None
        try:
            found = loaded if isinstance(loaded, dict) else configs.read(path)
        except ArnoError as error:
            raise damaged(path, f"cannot be read ({error.args[1]})", self.path) from error
        if not found:
            raise damaged(path, "is empty", self.path)
        return configs.translated(found)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the resolved configuration; `arno run --config` with this file repeats the run."""
        text, mark = OmegaConf.to_yaml(OmegaConf.create(config)), self.mark or configs.mark(config)
        head = f"# arno configuration of run {mark}, crc32 {checksum((mark + text).encode())}"
        self.write_text("config.yaml", f"{head}\n{text}", sync=True)
        self._mark = mark

    def manifest(self, name: str = "manifest.json") -> dict[str, Any]:
        """The manifest: versions, engine, fingerprints, status."""
        found = checksummed.read(self.path / name, self.path, "status")
        for key, kind in TYPES.items():
            if not isinstance(found.get(key), kind | None):
                raise damaged(self.path / name, f"its value of {key} is not of type {kind.__name__}", self.path)
        if not isinstance((found.get("engine") or {"name": ""}).get("name"), str):
            raise damaged(self.path / name, "its engine has no name", self.path)
        return found

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
            raise ArnoError(
                f"{path}", f"its metrics cannot be read ({error})", "if somebody edited it, undo that"
            ) from error

    def update_manifest(self, **values: Any) -> None:
        """Set some values of the manifest; the previous manifest is kept as `manifest.json.previous`."""
        path = self.path / "manifest.json"
        if path.exists():
            self.manifest()
            self.write_bytes(PREVIOUS, content(path, self.path), sync=True)
        self._set(values)

    def end_manifest(self, **values: Any) -> None:
        """Set values of the manifest at the end of a run. If the disk is full, unfinished files are deleted."""
        try:
            self.update_manifest(**values)
        except ArnoError:
            for path in [self.path / PREVIOUS, *self.unfinished()]:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            self._set(values)

    def _set(self, values: dict[str, Any]) -> None:
        old = self.manifest() if (self.path / "manifest.json").exists() else {}
        marked = {"run": self.mark} if self.mark else {}
        self.write_text("manifest.json", checksummed.text(old | values | marked), sync=True)

    def write_text(self, name: str, text: str, sync: bool = False) -> None:
        """Write a small file completely or not at all; with `sync` a power cut cannot lose it."""
        self.write_bytes(name, text.encode(), sync)

    def write_bytes(self, name: str, data: bytes, sync: bool = False) -> None:
        """Write a small file of bytes completely or not at all; with `sync` a power cut cannot lose it."""
        try:
            disk.write(self.path / name, data, sync)
            if sync:
                disk.sync_folder(self.path)
        except OSError as error:
            raise ArnoError(f"cannot write {self.path / name}", str(error.strerror), "free some space") from error

    def checksums(self, names: Sequence[str] = RESULTS) -> dict[str, dict[str, Any]]:
        """Checksums and sizes, for the manifest, of the files with these names that exist."""
        found = [self.path / name for name in names if (self.path / name).is_file()]
        return {
            "checksums": {path.name: file_checksum(path, self.path) for path in found},
            "sizes": {path.name: path.stat().st_size for path in found},
        }

    def intact(self, name: str) -> bool:
        """Whether a result has the size and the checksum in the manifest; true if the manifest does not hold them."""
        about = self.manifest() if (self.path / "manifest.json").exists() else {}
        known, sizes = (about.get(key) or {} for key in ("checksums", "sizes"))
        return name not in known or file_checksum(self.path / name, self.path, sizes.get(name)) == known[name]

    def verified(self, name: str) -> Path:
        """The path of a result; an error if the manifest holds another checksum."""
        if not self.intact(name):
            raise damaged(self.path / name, "is damaged: its checksum does not match", self.path)
        return self.path / name

    def write_counts(self, counts: Tensor) -> None:
        """Write how many samples of each class each client holds into `counts.npy`, unless the table is too large."""
        import numpy as np

        if counts.numel() <= MOST:
            file = BytesIO()
            np.save(file, counts.to("cpu").numpy().astype(np.int32))
            self.write_bytes(COUNTS, file.getvalue())

    def write_panels(self, panels: Sequence[Panel]) -> None:
        """Write the panels of the method as data into `panels.json`, so that they can be shown without its code."""
        self.write_text("panels.json", json.dumps([to_json(panel) for panel in panels], ensure_ascii=False) + "\n")

    def panels(self) -> list[Panel] | None:
        """The panels of the method; None if they are not recorded, or recorded by another release in another form."""
        path = self.verified("panels.json")
        try:
            found = json.loads(content(path, self.path)) if path.is_file() else None
            return None if found is None else [from_json(values) for values in found]
        except (Damaged, ValueError, TypeError, KeyError, RecursionError):
            return None

    def rows(self) -> list[Row]:
        """The record of each round; an error if finished rounds are missing, or if records belong to another run."""
        odd, saved = self.stranger(), self.saved()
        if odd is not None:
            raise damaged(self.path / odd, "belongs to another run", self.path)
        rows = list(metrics_file.Reader(self.path / metrics_file.NAME, self.mark).rows())
        manifest = self.manifest() if (self.path / "manifest.json").exists() else {}
        last = rows[-1]["round"] if rows else None
        if manifest.get("status") == "done" and manifest.get("rounds", last) != last:
            rule = f"its last complete line is of round {last}, but the run ended after round {manifest['rounds']}"
            raise damaged(self.path / metrics_file.NAME, rule, self.path)
        if saved and int(saved[-1].stem) > (last or 0) and manifest.get("status") != "done":
            rule = f"its last complete line is of round {last or 0}, but {saved[-1].name} was saved"
            raise damaged(self.path / metrics_file.NAME, rule, self.path)
        return rows

    def complete(self) -> int:
        """The last round up to which the rows of the clients must exist; 0 if there is no such round.

        A checkpoint is written after its piece of rows, and before the next piece. So the newest piece counts only if
        its checkpoint exists; otherwise `arno resume` computes its rounds again.
        """
        pieces = sorted({clients.number(piece) for piece in clients.pieces(self.checkpoints)})
        return max([*(int(path.stem) for path in self.saved()[-1:]), *pieces[:-1]], default=0)

    def client_records(self) -> list[Path]:
        """The files with the rows of the clients: `clients.parquet`; before the end of the run, complete pieces."""
        pieces = clients.pieces(self.checkpoints)
        if pieces and not (self.path / "clients.parquet").exists():
            last = self.complete()
            return [piece for piece in pieces if clients.number(piece) <= last]
        whole = self.verified("clients.parquet")
        return [whole] if whole.exists() else []

    def log(self, line: str) -> None:
        """Add a line to the log; if this fails, the run continues."""
        path = self.path / "log.txt"
        if path.exists() and not path.is_file():  # reading a pipe would block
            return
        with suppress(OSError), path.open("a") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}\n")

    def add(self, row: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        """Record a round. Its row is written at once; the rows of its clients are written with the next checkpoint."""
        try:
            if self._metrics is None:
                self._metrics = (self.path / metrics_file.NAME).open("a")
            self._metrics.write(metrics_file.line(row, self.mark))
            self._metrics.flush()
        except OSError as error:
            raise ArnoError(
                f"cannot write {self.path / metrics_file.NAME}",
                str(error.strerror),
                "free some space, then arno resume",
            ) from error
        n = len(columns.get("client", []))
        for name, values in {"round": [row["round"]] * n, **columns}.items():
            self._clients.setdefault(name, []).extend(values)

    def sync(self) -> None:
        """Flush the records to the disk, so that a power cut loses no round before the next checkpoint."""
        if self._metrics is None:
            return
        try:
            os.fsync(self._metrics.fileno())
            if not self._named:
                disk.sync_folder(self.path)
                self._named = True
        except OSError as error:
            raise ArnoError(
                f"cannot write {self.path / metrics_file.NAME}",
                str(error.strerror),
                "free some space, then arno resume",
            ) from error

    def flush_clients(self, t: int) -> None:
        """Write the rows of the clients since the last call, into the folder of the checkpoint after round `t`."""
        if self._clients:
            clients.write_piece(clients.table(self._clients), self.checkpoints, t)
            self._clients = {}

    def merge_clients(self) -> None:
        """Join the pieces that `flush_clients` wrote into `clients.parquet`."""
        import pyarrow as pa

        pieces = [clients.load(piece) for piece in clients.pieces(self.checkpoints)]
        if not pieces:
            return
        try:
            table = pa.concat_tables(pieces, promote_options="default")
        except pa.ArrowException as error:
            rule = f"their columns differ ({str(error).splitlines()[0][:200]})"
            raise damaged(self.checkpoints / "clients-*.parquet", rule, self.path) from error
        clients.write_parquet(table, self.path / "clients.parquet")

    def write_client_scores(self, columns: dict[str, list[Any]]) -> None:
        """Write one row per client with its scores, `client_scores.parquet`."""
        clients.write_parquet(clients.table(columns), self.path / "client_scores.parquet")

    def rewind(self, t: int) -> None:
        """Remove unfinished files, and the files and lines of rounds after `t`, which will be computed again."""
        for path in self.unfinished():
            disk.remove(path)
        for path in self.after(t):  # before the records, because a checkpoint must never be without its rounds
            disk.remove(path)
        if (self.path / metrics_file.NAME).exists():
            self.write_bytes(metrics_file.NAME, metrics_file.up_to(self.path, t), sync=True)

    def unfinished(self) -> list[Path]:
        """Files that were not complete when a run was killed; they still have their temporary names."""
        return [path for folder in (self.path, self.checkpoints) for path in folder.glob("*.part")]

    def after(self, t: int) -> list[Path]:
        """The checkpoints after round `t`, and the pieces with rows of the clients after this round."""
        late = [path for path in self.saved() if int(path.stem) > t]
        return late + [path for path in clients.pieces(self.checkpoints) if clients.number(path) > t]

    def size(self) -> int:
        """How many bytes of the disk the files of the run use; a file uses whole blocks."""
        files = [path.lstat() for folder in (self.path, self.checkpoints) for path in folder.glob("*")]
        return sum(-(-file.st_size // BLOCK) * BLOCK for file in files if stat.S_ISREG(file.st_mode))

    def checkpoint_path(self, t: int) -> Path:
        """The file of the checkpoint after round `t`."""
        return self.checkpoints / f"{t:08d}.safetensors"

    def saved(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(path for path in self.checkpoints.glob("[0-9]*.safetensors") if path.stem.isdecimal())

    def close(self) -> None:
        """Close the files. An earlier error has reported what could not be written; `arno resume` computes it again."""
        if self._metrics is not None:
            with suppress(OSError):
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
