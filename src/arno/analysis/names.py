"""The names of the runs of a comparison: the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config import settings as configs

Flat = Mapping[str, Any]  #: the settings of a run as `section.name` → value

#: The largest length of a name that consists of settings.
LONGEST = 48
#: Runs that differ only in these settings are in the same group.
APART = ("seed", "out", "engine", "checkpoint", "track", "state")


def names(flat: Sequence[Flat], called: Sequence[str] = ()) -> list[tuple[str, str]]:
    """A name and a setting for each run.

    If every setting has runs of several methods, the name is the method with its own settings, and the setting holds
    the other differences. Otherwise the name holds all differences, so that all runs are compared with each other.

    called: other names of the runs, which are used if the differences are too long for names.

    >>> names([{"method.kind": "fedprox", "method.mu": mu} for mu in (0.1, 1.0)])
    [('method.mu=0.1', ''), ('method.mu=1.0', '')]
    >>> names([{"method.kind": kind, "clients": n} for kind, n in (("fedavg", 5), ("fedavg", 9), ("scaffold", 9))])
    [('fedavg clients=5', ''), ('fedavg clients=9', ''), ('scaffold clients=9', '')]
    >>> long = [{"method.kind": "fedavg", "data.path": "x" * 50, "seed": s, "clients": 5 + s // 2} for s in range(3)]
    >>> names(long, ["runs/a", "runs/b", "runs/c"])
    [('clients=5', ''), ('clients=5', ''), ('clients=6', '')]
    >>> names([one | {"data.path": str(one["clients"]) * 50} for one in long], ["runs/a", "runs/b", "runs/c"])
    [('runs/a (fedavg)', ''), ('runs/a (fedavg)', ''), ('runs/c (fedavg)', '')]
    """
    kinds = [config["method.kind"] for config in flat]
    several = len(set(kinds)) > 1
    keys = {key: None for config in flat for key in config if key.split(".")[0] not in APART and key != "method.kind"}
    for key in _defaults_only(flat) if several else ():
        keys.pop(key, None)

    def differing(config: Flat, among: Sequence[Flat], own: bool) -> str:
        mine = [k for k in keys if k in config and k.startswith("method.") == own]
        varied = [k for k in mine if len({shown(other, k) for other in among}) > 1]
        return " ".join(f"{k.removesuffix('.kind')}={configs.written(config[k])}" for k in varied)

    alike = [[other for other in flat if other["method.kind"] == kind] for kind in kinds]
    owns = [differing(config, others, own=True) for config, others in zip(flat, alike, strict=True)]
    rests = [differing(config, flat, own=False) for config in flat]
    methods = {rest: {kind for kind, there in zip(kinds, rests, strict=True) if there == rest} for rest in rests}
    grid = all(len(there) > 1 for there in methods.values())
    found = []
    for kind, own, rest in zip(kinds, owns, rests, strict=True):
        words = [kind if several else "", own, "" if grid else rest]
        found.append((" ".join(filter(None, words)) or kind, rest if grid else ""))
    if not called or all(len(name) <= LONGEST for name, _ in found):
        return found
    first = {one: f"{name} ({kind})" for one, name, kind in reversed(list(zip(found, called, kinds, strict=True)))}
    return [(first[one], one[1]) for one in found]


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run as `section.name` → value, with the names of this release."""
    return dict(configs.flat(configs.translated(config)))


def shown(config: Flat, key: str) -> str:
    """The text of a value, for comparisons; a missing key differs from the value None."""
    return repr(config[key]) if key in config else ""


def _defaults_only(flat: Sequence[Flat]) -> list[str]:
    """The settings that have their default in every run. They differ only if the defaults of the methods differ."""
    usual = [defaults(config) for config in flat]
    keys = {key: None for mine in usual for key in mine}
    pairs = list(zip(flat, usual, strict=True))
    return [key for key in keys if all(key in mine and config.get(key) == mine[key] for config, mine in pairs)]


def defaults(config: Flat) -> dict[str, Any]:
    """The general settings of a run with this problem and this method, if the user sets none of them.

    Only the defaults of Arno's own factories are known. To read the defaults of a user's factory, its code would have
    to run.
    """
    usual = {name: default for name, default, _ in configs.describe()}
    for group in ("problem", "method"):
        known, kind = configs.registry(group), config.get(f"{group}.kind")
        if kind in known.names():
            usual |= known.info(kind).get("defaults", {})
    return usual
