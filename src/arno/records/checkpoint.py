"""Checkpoints: one safetensors file each, with its plain values as JSON in the header; never pickle.

A file appears under its name only when it is complete; a checksum over all of it tells when it is damaged.
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

FORMAT = "arno-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round` rounds: the federation's state, the run's own (best model, totals), the configuration."""

    round: int
    federation: dict[str, Any]
    run: dict[str, Any]
    config: dict[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint whole or not at all."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"round": checkpoint.round, "config": checkpoint.config}
    for section in ("federation", "run"):
        values = {}
        for name, value in getattr(checkpoint, section).items():
            if isinstance(value, Tensor):
                tensors[f"{section}/{name}"] = value
            elif isinstance(value, ClientTable):
                tensors |= {f"{section}/{name}/{part}": t for part, t in value.tensors().items()}
            else:
                values[name] = value
        plain[section] = values
    text = json.dumps(plain)
    header = {"format": FORMAT, "checksum": _checksum(tensors, FORMAT + text), "plain": text}
    write_tensors(path, tensors, {"arno": json.dumps(header)})  # one entry: their order in the file is left to chance


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, or say what is wrong with the file."""
    remedy = "try the one before it: arno resume RUN --previous"
    tensors, meta = read_tensors(path, remedy)
    if "arno" not in meta:
        raise ArnoError(f"{path}", "is no checkpoint of Arno", "give a file from a run's checkpoints folder")
    try:
        header = json.loads(meta["arno"])
        version, text = header["format"], header["plain"]
        whole = header["checksum"] == _checksum(tensors, version + text)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ArnoError(f"{path}", "is damaged: its checksum does not agree", remedy)
    if version != FORMAT:
        raise ArnoError(f"{path} has format {version}", f"this version reads {FORMAT}", "use its own version")
    plain = json.loads(text)
    sections: dict[str, dict[str, Any]] = {name: dict(plain[name]) for name in ("federation", "run")}
    for key, tensor in tensors.items():
        section, name, *part = key.split("/")
        if part:
            sections[section].setdefault(name, {})[part[0]] = tensor
        else:
            sections[section][name] = tensor
    return Checkpoint(plain["round"], sections["federation"], sections["run"], plain["config"])


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file under a temporary name, force it to disk, and rename it."""
    temporary = path.with_name(path.name + ".part")
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, dict(meta or {}))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise ArnoError(
            f"cannot write {path}",
            reason,
            "free some space or choose another folder; checkpoints saved before are intact: arno resume RUN",
        ) from error


def read_tensors(path: Path, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file and its header's strings."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise ArnoError(f"{path}", f"cannot be read ({error})", remedy) from error


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
