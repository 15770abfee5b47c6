"""A model that `torch.save` wrote: a state dict in a .pth file, as the start of a run.

torch's weights-only reader reads the file. It builds tensors and plain containers, and refuses everything else. Names
and shapes must be those of the network.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.layout import Layout
from ..core.work import Vec
from ..errors import ArnoError
from ..limits import regular, room, shortened

#: Keys under which programs store the state dict, if the file holds other objects, too; and keys of the round number.
INSIDE, ROUNDS = ("model_state_dict", "state_dict", "model"), ("round", "epoch")
#: The largest number of names in a file; and the first torch whose weights-only reader has no known vulnerability.
NAMES, SAFE = 100_000, (2, 6)
REMEDY, SAME = "save it with torch.save(model.state_dict(), 'model.pth')", "use the network it was saved from"


def is_archive(path: Path) -> bool:
    """Whether a file looks like one of `torch.save`: a zip archive, or a pickle of an early torch."""
    with path.open("rb") as file:
        start = file.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def read(path: Path, layout: Layout) -> tuple[Vec, int]:
    """The model as a vector, and the rounds behind it: the name model_e200.pth, an entry `round` or `epoch`, else 0.

    The name comes first: FedRCL's program counts epochs from 0 in the entry, and from 1 in the name.
    """
    stored = _stored(path)
    entry = next((stored[key] for key in ROUNDS if isinstance(stored.get(key), int)), 0)
    for key in INSIDE:
        if isinstance(stored.get(key), Mapping):
            stored = stored[key]
            break
    named = re.fullmatch(r"model_e(\d{1,9})\.pth", path.name)
    return vector(path, stored, layout), int(named[1]) if named else max(0, int(entry))


def vector(path: Path, stored: Mapping[Any, Any], layout: Layout) -> Vec:
    """The tensors as a vector in the order of the layout; an error if names or shapes differ."""
    given = {str(key): value for key, value in stored.items()}
    wanted = {slot.name for slot in layout.slots}
    if all(name.startswith("module.") for name in given) and not wanted & given.keys():  # torch's DataParallel adds it
        given = {name.removeprefix("module."): value for name, value in given.items()}
    counters = {name for name in given if name.endswith("num_batches_tracked")}
    lacking, odd = sorted(wanted - given.keys()), sorted(given.keys() - wanted - counters)
    if lacking or odd:
        rules = [
            f"{rule} {_first(names)}" for rule, names in (("it lacks", lacking), ("the network has no", odd)) if names
        ]
        inside = any(isinstance(given[name], Mapping) for name in odd)
        raise ArnoError(f"load = {path}", ", and ".join(rules), REMEDY if inside else SAME)
    parts = []
    for slot in layout.slots:
        tensor = given[slot.name]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != slot.shape:
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            rule = f"{slot.name} is {shape}, and the network has {list(slot.shape)}"
            raise ArnoError(f"load = {path}", rule, SAME)
        if tensor.layout != torch.strided or not (tensor.is_floating_point() and torch.isfinite(tensor).all()):
            raise ArnoError(f"load = {path}", f"{slot.name} must hold finite numbers only", REMEDY)
        parts.append(tensor.reshape(-1).to(torch.float64))
    return torch.cat(parts)


def _stored(path: Path) -> Mapping[Any, Any]:
    """The contents of the file, read by torch's weights-only reader. They are at most as large as the file."""
    room(regular(path, "load =").stat().st_size, f"load = {path}")
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < SAFE:
        raise ArnoError(f"load = {path}", f"torch {torch.__version__} cannot read it safely", "use torch 2.6 or later")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if packed or len(members) > NAMES or sum(member.file_size for member in members) > path.stat().st_size:
            raise ArnoError(f"load = {path}", "the archive is compressed, or has too many members", REMEDY)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise ArnoError(
            f"load = {path}", "it is no zip archive of torch.save (a pickle is never read)", REMEDY
        ) from error
    except (ArnoError, MemoryError):
        raise
    except Exception as error:  # any error that a hostile file can cause
        raise ArnoError(f"load = {path}", f"torch's weights-only reader refuses it ({_why(error)})", REMEDY) from error
    if not isinstance(stored, Mapping) or len(stored) > NAMES:
        raise ArnoError(f"load = {path}", "it holds no state dict", REMEDY)
    return stored


def _first(names: Sequence[str]) -> str:
    """The first of several names, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return shortened(names[0], 80) + more


def _why(error: Exception) -> str:
    """What the reader refused: the class or function that the file names, or the first sentence of the error.

    >>> _why(ValueError("Weights only load failed. … Unsupported global: GLOBAL my.Net was not an allowed global."))
    'it holds my.Net'
    >>> _why(ValueError("it is broken"))
    'it is broken'
    """
    asked = re.search(r"\bGLOBAL (\S+)", str(error))
    said = (str(error).splitlines() or [""])[0].partition(". ")[0]
    return shortened(f"it holds {asked[1]}" if asked else said or type(error).__name__, 120)
