"""A published figure: the runs, the values that are read from the runs, and the ranges that count as reproduced.

A figure is one file in `figures/`. Its name is the name of the file:

    source: paper, table or figure
    claim: what the publication says
    setting: how it is run here, and what differs from the publication
    hours: an estimate for two cores
    run: settings of every arm
    seeds: [0, 1, 2]
    arms: NAME: {settings: [...], best_of: [...], published: ...}
    readings: NAME: {kind: ..., metric: ..., target: ..., round: ..., count: ...}
    checks: [{says: ..., left: ARM, right: ARM, reading: NAME, ratio | difference | value: [low, high]}]
    quick: settings of --quick

`best_of` lists settings that are tried, because the publication tuned them; the runs with the best first reading count.
`published_data` names the data set of the publication, if the file uses another data set; with `data=` of this name,
the targets are `published_target`. A figure without arms names the command that checks it (`by`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from ..config.settings import read as read_yaml
from ..errors import ArnoError, unknown

FIGURES = Path(__file__).parent / "figures"
KINDS = ("rounds_to", "decade", "final", "last", "at")


@dataclass(frozen=True)
class Reading:
    """A value that is read from a run.

    kind: rounds_to (the first round whose score reaches `target`; the number of rounds plus one if no score reaches
        it), final (the last value), last (the mean of the last `count` values), at (the value after round `round`),
        decade (rounds per factor of ten, from `round` to the first value that reaches `target`, or to the last value).
    """

    kind: str
    metric: str = ""
    target: float | None = None
    published_target: float | None = None
    round: int | None = None
    count: int = 10

    @property
    def words(self) -> str:
        """The reading in a few words."""
        said = {"rounds_to": f"rounds to {self.metric} {self.target:g}" if self.target is not None else ""}
        said |= {"final": f"final {self.metric}", "last": f"{self.metric}, mean of the last {self.count} values"}
        said |= {
            "at": f"{self.metric} after round {self.round}",
            "decade": f"rounds per factor of ten of {self.metric}",
        }
        return said[self.kind]


@dataclass(frozen=True)
class Arm:
    """One row of a figure: its settings, the settings that are tried, and the value in the publication."""

    settings: tuple[str, ...] = ()
    best_of: tuple[str, ...] = ()
    published: Any = None


@dataclass(frozen=True)
class Check:
    """A sentence, and the range of a ratio, a difference or a value in which the sentence is true."""

    says: str
    left: str
    right: str | None
    reading: str
    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """A published figure; the docstring of this module explains the fields."""

    name: str
    source: str
    claim: str
    setting: str
    hours: float
    run: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    arms: Mapping[str, Arm] = field(default_factory=dict)
    readings: Mapping[str, Reading] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    quick: tuple[str, ...] = ()
    published_data: str = ""
    by: str = ""

    def on(self, words: tuple[str, ...]) -> Figure:
        """The figure with further settings; with the data of the publication, it has the published targets."""
        readings = dict(self.readings)
        if self.published_data and f"data={self.published_data}" in words:
            for name, one in readings.items():
                if one.published_target is not None:
                    readings[name] = replace(one, target=one.published_target)
        return replace(self, run=(*self.run, *words), readings=readings)

    def coarse(self) -> Figure:
        """The figure with its first seed only and its quick settings."""
        return replace(self, run=(*self.run, *self.quick), seeds=self.seeds[:1])


def names() -> list[str]:
    """The names of all figures."""
    return sorted(path.stem for path in FIGURES.glob("*.yaml"))


def meant(word: str) -> list[str]:
    """The figure with this name, or all figures whose names begin with it and a hyphen."""
    found = [word] if word in names() else [name for name in names() if name.startswith(f"{word}-")]
    if not found:
        raise unknown("figure", word, names(), "arno reproduce lists them")
    return found


def load(name: str) -> Figure:
    """The figure with this name."""
    if name not in names():
        raise unknown("figure", name, names(), "arno reproduce lists them")
    return parse(name, read_yaml(FIGURES / f"{name}.yaml"))


def parse(name: str, given: Mapping[str, Any]) -> Figure:
    """A figure from its file; an error for unknown keys, and for names of arms or readings that do not exist."""
    known = [f.name for f in fields(Figure) if f.name != "name"]
    for key in given:
        if key not in known:
            raise unknown(f"key of {name}", key, known)
    arms = {
        arm: Arm(tuple(a.get("settings", ())), tuple(a.get("best_of", ())), a.get("published"))
        for arm, a in given.get("arms", {}).items()
    }
    readings = {one: Reading(**about) for one, about in given.get("readings", {}).items()}
    for reading in readings.values():
        if reading.kind not in KINDS:
            raise unknown(f"kind of a reading of {name}", reading.kind, KINDS)
    checks = tuple(_check(name, check, arms, readings) for check in given.get("checks", ()))
    lists = {key: tuple(given[key]) for key in ("run", "seeds", "quick") if key in given}
    plain = {key: given[key] for key in ("source", "claim", "setting", "hours", "published_data", "by") if key in given}
    return Figure(name, **(plain | lists), arms=arms, readings=readings, checks=checks)


def _check(name: str, given: Mapping[str, Any], arms: Mapping[str, Arm], readings: Mapping[str, Reading]) -> Check:
    (kind,) = [key for key in ("ratio", "difference", "value") if key in given] or ["value"]
    low, high = given.get(kind, (None, None))
    left, right, reading = given["left"], given.get("right"), given.get("reading", next(iter(readings), ""))
    for arm in (left, right):
        if arm is not None and arm not in arms:
            raise unknown(f"arm of {name}", str(arm), arms)
    if reading not in readings:
        raise unknown(f"reading of {name}", str(reading), readings)
    if (kind == "value") != (right is None):
        rule = "a value needs one arm; a ratio or a difference needs two"
        raise ArnoError(f"a check of {name}", rule, "correct the file of the figure")
    ends = (-inf if low is None else float(low), inf if high is None else float(high))
    return Check(str(given["says"]), left, right, reading, kind, *ends)
