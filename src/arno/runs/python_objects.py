"""Data and networks that a Python program gives as objects.

A configuration holds only their fingerprints. A run that was started with such objects continues only if the same
objects are given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ArnoError


def settings(data: Any, model: Any) -> dict[str, Any]:
    """`data` and `model` as settings: names and mappings do not change; objects become settings that name them.

    >>> settings("digits", None)
    {'data': 'digits'}
    """
    found: dict[str, Any] = {}
    if data is not None:
        found["data"] = data if isinstance(data, str | Mapping) else _data(data)
    if model is not None:
        found["model"] = model if isinstance(model, str | Mapping) else _model(model)
    return found


def from_python(config: Mapping[str, Any]) -> bool:
    """Whether a configuration names objects of a Python program."""
    return any(
        isinstance(config.get(group), Mapping) and config[group].get("kind") == "python" for group in ("data", "model")
    )


def again(folder: Path, config: Mapping[str, Any], data: Any, model: Any) -> None:
    """Use the given objects for a stored run; an error for other objects than those with which it was started."""
    found = settings(data, model)
    for group, key in (("data", "fingerprint"), ("model", "network")):
        mine = config[group].get(key) if config[group]["kind"] == "python" else None
        if group in found and found[group].get(key) != mine:
            kind = f"{group} {mine}" if mine else f"{group}={config[group]['kind']}"
            remedy = f"give the same {group}, or start a new run" if mine else f"leave out {group}="
            rule = f"the run was started with {kind}, and the given {group} differs"
            raise ArnoError(f"{group} of {folder}", rule, remedy)
    lacks = [group for group in ("data", "model") if config[group]["kind"] == "python" and not _is_here(group, config)]
    if lacks:
        objects = {"data": "data=arno.Data(…)", "model": "model=net"}
        were = "were objects" if lacks[0] == "data" else "was an object"
        rule = f"its {' and its '.join(lacks)} {were} of a Python program, not in a file"
        same = ", ".join(objects[group] for group in lacks)
        raise ArnoError(f"{folder}", rule, f"continue it in Python with the same: arno.resume({str(folder)!r}, {same})")


def _is_here(group: str, config: Mapping[str, Any]) -> bool:
    if group == "model":
        from ..models.python import is_given

        return is_given(config["model"].get("network"))
    from ..data.sources.python import is_given as is_made

    return is_made(config["data"].get("fingerprint"))


def _model(model: Any) -> Mapping[str, Any]:
    from torch import nn

    from ..models.python import give

    if not isinstance(model, nn.Module) and not callable(model):
        rule = f"it must be a name, a torch.nn.Module, its class or a function, not {type(model).__name__}"
        raise ArnoError("model", rule, "write model=net, model=Net or model='mlp'")
    return give(model)


def _data(data: Any) -> Mapping[str, Any]:
    rule = f"it must be a name or an arno.Data, not {type(data).__name__}"
    raise ArnoError("data", rule, "write data=arno.Data(x, y, client=ids) or data='digits'")
