"""A model that `torch.save` wrote: a state dict in a .pth file, as the start of a run.

The file is read by torch's weights-only reader, which builds tensors and plain containers and refuses everything else.
Names and shapes must be those of the network; nothing is guessed.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.layout import Layout
from ..core.work import Vec
from ..errors import ArnoError
from ..limits import regular, room, shortened

#: Keys under which programs store the state dict next to other things, and the number of rounds.
INSIDE, ROUNDS = ("model_state_dict", "state_dict", "model"), ("round", "epoch")
#: The most names in a file, and the first torch whose weights-only reader has no known vulnerability.
NAMES, SAFE = 100_000, (2, 6)
REMEDY = "save it with torch.save(model.state_dict(), 'model.pth')"


def is_archive(path: Path) -> bool:
    """Whether a file looks like one of `torch.save`: a zip archive, or a pickle of an early torch."""
    with path.open("rb") as file:
        start = file.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def read(path: Path, layout: Layout) -> tuple[Vec, int]:
    """The model as a vector, and the rounds behind it: an entry `round` or `epoch`, the name model_e200.pth, else 0."""
    stored = _stored(path)
    rounds = next((stored[key] for key in ROUNDS if isinstance(stored.get(key), int)), None)
    for key in INSIDE:
        if isinstance(stored.get(key), Mapping):
            stored = stored[key]
            break
    named = re.fullmatch(r"model_e(\d{1,9})\.pth", path.name)
    done = rounds if rounds is not None else int(named[1]) if named else 0
    return vector(path, stored, layout), max(0, int(done))


def vector(path: Path, stored: Mapping[Any, Any], layout: Layout) -> Vec:
    """The tensors in the order of the layout; refuses names and shapes that differ."""
    given = {str(key).removeprefix("module."): value for key, value in stored.items()}
    counters = {name for name in given if name.endswith("num_batches_tracked")}
    wanted = {slot.name for slot in layout.slots}
    for odd, rule in (
        (sorted(wanted - given.keys()), "it lacks"),
        (sorted(given.keys() - wanted - counters), "the network has no"),
    ):
        if odd:
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            raise ArnoError(f"load = {path}", f"{rule} {shortened(odd[0], 80)}{more}", "use the network it was saved from")
    parts = []
    for slot in layout.slots:
        tensor = given[slot.name]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != slot.shape:
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            rule = f"{slot.name} is {shape}, and the network has {list(slot.shape)}"
            raise ArnoError(f"load = {path}", rule, "use the network it was saved from")
        if tensor.layout != torch.strided or not (tensor.is_floating_point() and torch.isfinite(tensor).all()):
            raise ArnoError(f"load = {path}", f"{slot.name} holds something else than finite numbers", REMEDY)
        parts.append(tensor.reshape(-1).to(torch.float64))
    return torch.cat(parts)


def _stored(path: Path) -> Mapping[Any, Any]:
    """What the file holds, read by torch's weights-only reader; at most as large as the file."""
    room(regular(path, "load =").stat().st_size, f"load = {path}")
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < SAFE:
        raise ArnoError(f"load = {path}", f"torch {torch.__version__} cannot read it safely", "use torch 2.6 or later")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if packed or len(members) > NAMES or sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("its members are packed, or too many")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise ArnoError(f"load = {path}", "it is no archive of torch.save (a pickle is never read)", REMEDY) from error
    except MemoryError:
        raise
    except Exception as error:  # any error that a hostile file can cause
        why = shortened((str(error).splitlines() or [type(error).__name__])[0], 120)
        raise ArnoError(f"load = {path}", f"torch's weights-only reader refuses it ({why})", REMEDY) from error
    if not isinstance(stored, Mapping) or len(stored) > NAMES:
        raise ArnoError(f"load = {path}", "it holds no state dict", REMEDY)
    return stored
