"""Checkpoints. A checkpoint is one safetensors file, with the plain values as JSON in its header; never a pickle.

A file gets its name only when it is complete. A checksum of the whole contents shows whether the file is damaged. The
contents are described by `Federation.state` and `Part.state`, and by `Totals` in `runs/loop.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.table import ClientTable
from ..errors import ArnoError
from ..limits import Unreadable, readable
from .damage import Damaged
from .disk import sync_folder

FORMAT = "arno-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round` rounds.

    federation: the state of the federation, see `Federation.state`. run: the best model and the totals, see `Totals` in
    `runs/loop.py`. config: the configuration.
    """

    round: int
    federation: dict[str, Any]
    run: dict[str, Any]
    config: dict[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint completely or not at all."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"round": checkpoint.round, "config": checkpoint.config}
    for section, state in (("federation", checkpoint.federation), ("run", checkpoint.run)):
        values = {}
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{section}/{name}"] = value
            elif isinstance(value, ClientTable):
                tensors |= {f"{section}/{name}/{part}": t for part, t in value.tensors().items()}
            else:
                values[name] = value
        plain[section] = values
    text = json.dumps(plain)
    header = {"format": FORMAT, "checksum": _checksum(tensors, FORMAT + text), "plain": text}
    # One entry: safetensors writes several entries in a random order.
    write_tensors(path, tensors, {"arno": json.dumps(header)})


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; an error if the file is damaged or is not a checkpoint."""
    remedy = "give another checkpoint"
    tensors, meta = read_tensors(path, remedy)
    if "arno" not in meta:
        raise Damaged(
            f"{path}", "is no checkpoint of Arno", "give a run's folder or a file from its checkpoints folder"
        )
    try:
        header = json.loads(meta["arno"])
        version, text = header["format"], header["plain"]
        whole = header["checksum"] == _checksum(tensors, version + text)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise Damaged(f"{path}", "is damaged: its checksum does not match", remedy)
    if version != FORMAT:
        raise ArnoError(f"{path} has format {version}", f"this version reads {FORMAT}", "use the version that wrote it")
    try:
        return _assembled(json.loads(text), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path}", f"does not hold the state of a run ({error!r})", remedy) from error


def _assembled(plain: dict[str, Any], tensors: Mapping[str, Tensor]) -> Checkpoint:
    """The checkpoint that consists of these plain values and tensors; an exception if they contradict each other."""
    sections: dict[str, dict[str, Any]] = {name: dict(plain[name]) for name in ("federation", "run")}
    for key, tensor in tensors.items():
        section, name, *part = key.split("/")
        if part:
            sections[section].setdefault(name, {})[part[0]] = tensor
        else:
            sections[section][name] = tensor
    config, first = plain["config"], sections["run"].get("first")
    if type(plain["round"]) is not int or type(first) not in (int, type(None)) or not isinstance(config, dict):
        raise TypeError("round, first and config")
    return Checkpoint(plain["round"], sections["federation"], sections["run"], config)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file under a temporary name, flush it to the disk, and rename it."""
    temporary = path.with_name(path.name + ".part")
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, dict(meta or {}))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise ArnoError(
            f"cannot write {path}",
            (error.strerror if isinstance(error, OSError) else None) or str(error),
            "free some space or choose another folder; checkpoints saved before are intact: arno resume RUN",
        ) from error


def read_tensors(path: Path, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file and the strings of its header."""
    try:
        readable(path)  # reading a pipe would block
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except Unreadable:
        raise
    except ArnoError as error:
        raise Damaged(f"{path}", error.args[1], remedy) from error
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, RuntimeError) as error:  # of odd types too
        raise Damaged(f"{path}", f"cannot be read ({error})", remedy) from error


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
