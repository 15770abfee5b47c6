"""`load=`: a run starts from the model of another run or of a .pth file, and continues to count its rounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config.settings import written
from ..core.federation import Federation
from ..errors import ArnoError
from ..limits import place
from ..records import checkpoint as checkpoints
from . import state_dict


def begin(fed: Federation, config: dict[str, Any]) -> None:
    """Put the model and the number of rounds of the checkpoint or state dict at `load` into a new federation.

    The state of the method (momentum, controls) is not loaded, because the method can be another one.
    """
    path = find(config["load"])
    what = f"load = {config['load']}"
    if fed.t != 0:
        rule = "this method begins with an additional round 0, so it cannot continue from a model"
        raise ArnoError(f"{what} with method={config['method']['kind']}", rule, "leave load out")
    if state_dict.is_archive(path):
        w, done = state_dict.read(path, fed.layout)
        refuse_rounds(config["rounds"], done)
        fed.begin_at(w, done)
        return
    saved = checkpoints.load(path)
    mine, theirs = config["model"], saved.config.get("model")
    start: Any = saved.federation.get("w")
    if not isinstance(start, Tensor) or start.dim() != 1 or not isinstance(theirs, dict) or "kind" not in theirs:
        raise ArnoError(what, f"{path} holds no model of a run", "give another checkpoint")
    same = all(mine.get(key, value) == value for key, value in theirs.items())  # a setting may be newer than the file
    if len(start) != len(fed.w) or (not same and "custom" not in (mine["kind"], theirs["kind"])):
        raise ArnoError(
            f"{what} holds {_model(theirs, len(start))}",
            f"this run trains {_model(mine, len(fed.w))}",
            f"set {' '.join(f'model.{k}={written(v)}' if k != 'kind' else f'model={v}' for k, v in theirs.items())} "
            "and the same data",
        )
    refuse_rounds(config["rounds"], saved.round)
    fed.begin_at(start, saved.round)


def refuse_rounds(rounds: int, done: int) -> None:
    """Refuse a run that would have no round."""
    if done >= rounds:
        rule = f"it counts all stages, and the model at load has already {done} rounds"
        raise ArnoError(f"rounds = {rounds}", rule, f"try rounds={done + 100}")


def find(text: str) -> Path:
    """The checkpoint that `load` names: a file, or the last checkpoint of a run's folder."""
    path = place(text)
    if os.path.isdir(path):
        saved = sorted([*path.glob("[0-9]*.safetensors"), *path.glob("checkpoints/[0-9]*.safetensors")])
        if not saved:
            raise ArnoError(f"load = {text}", "this folder holds no checkpoint", "give the folder of a run")
        return saved[-1]
    if not os.path.isfile(path):
        raise ArnoError(f"load = {text}", "there is no such file or folder", "give a run's folder or a checkpoint")
    return path


def _model(config: dict[str, Any], size: int) -> str:
    return f"{config['kind']} ({size:,} numbers)"
