"""Filters and order of the list of runs: `method=scaffold`, `score>0.9`, `since=7d`, `partition.alpha=0.1`."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArnoError, unknown
from .run_entry import STATUSES, Entry, settings

#: The keys that every entry has, and by which entries can be sorted.
TEXTS = ("name", "kind", "method", "data", "status", "tag", "metric", "why", "best", "part_of")
NUMBERS = ("score", "round", "rounds", "seed", "seconds", "started")
TIMES = ("since", "before")
KINDS = ("run", "comparison", "search", "cell")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
WORD = re.compile(r"([A-Za-z_][\w.]*)\s*(>=|<=|!=|>|<|=)\s*(.*)", re.S)
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
EXAMPLE = "examples: method=scaffold status=failed 'score>0.9' since=7d"


class Filter(NamedTuple):
    """A condition: a key, an operator of OPERATORS, and a value as the user wrote it."""

    key: str
    compare: str
    value: str


def is_filter(word: str) -> bool:
    """Whether a word of the command line is a condition (otherwise it is a folder)."""
    return WORD.fullmatch(word) is not None


def parse(words: Iterable[str]) -> list[Filter]:
    """The conditions that some words of the command line describe.

    >>> parse(["method=scaffold", "score>0.9"])
    [Filter(key='method', compare='=', value='scaffold'), Filter(key='score', compare='>', value='0.9')]
    """
    found = []
    for word in words:
        parts = WORD.fullmatch(word)
        if parts is None or not parts[3]:
            raise ArnoError(word, "it is not a condition", EXAMPLE)
        one = Filter(parts[1], parts[2], parts[3].strip())
        _check(one)
        found.append(one)
    return found


def _check(one: Filter) -> None:
    """Raise an error for a value that the key cannot have."""
    if one.key in TIMES:
        moment(one.value)
        if one.compare != "=":
            raise ArnoError(f"{one.key}{one.compare}{one.value}", f"{one.key} needs =", "try since=7d")
    for key, known in (("status", (*STATUSES, "killed")), ("kind", KINDS)):
        if one.key == key:
            for value in one.value.split(","):
                if value not in known and "*" not in value:
                    raise unknown(key, value, known)
    if one.compare in (">", "<", ">=", "<=") or one.key in NUMBERS:
        for value in one.value.split(","):
            number(one.key, value)


def number(key: str, text: str) -> float:
    """A number; for `seconds` also a time with a unit.

    >>> number("score", "0.9"), number("seconds", "2h")
    (0.9, 7200.0)
    """
    try:
        return float(text)
    except ValueError:
        parts = re.fullmatch(r"(\d+\.?\d*) ?([a-z]+)", text)
        if key == "seconds" and parts and parts[2] in UNITS:
            return float(parts[1]) * UNITS[parts[2]]
        raise ArnoError(f"{key} = {text}", "it is compared with a number", EXAMPLE) from None


def moment(text: str) -> float:
    """A time in seconds since 1970: a span before now (7d, 12h, 30min, 2w), a day, or a day and a time."""
    parts = re.fullmatch(r"(\d+\.?\d*) ?([a-z]+)", text)
    if parts and parts[2] in UNITS:
        return time.time() - float(parts[1]) * UNITS[parts[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ArnoError(text, "it is not a time", "try since=7d, since=12h or since=2026-01-31") from None


def select(entries: Mapping[str, Entry], filters: Sequence[Filter], folder: Path, cells: bool = False) -> list[Entry]:
    """The entries that fulfil all conditions. cells: whether cells of comparisons are included."""
    cells = cells or any(one.key in ("kind", "part_of") for one in filters)
    shown = [entry for entry in entries.values() if cells or entry.part_of in ("", ".")]
    known = {*TEXTS, *NUMBERS, *TIMES, "tags"}
    scores = {name for entry in shown for name in entry.scores}
    for one in sorted(filters, key=lambda one: one.key not in known and one.key not in scores):  # settings last
        setting = one.key not in known and one.key not in scores
        if setting:
            values = {entry.name: _setting(entry, folder, one.key) for entry in shown}
            if shown and not any(values.values()):
                raise unknown("key", one.key, [*TEXTS, *NUMBERS, *TIMES, *sorted(scores)])
            shown = [entry for entry in shown if any(_fits(one, value) for value in values[entry.name])]
        else:
            shown = [entry for entry in shown if _fits(one, _value(entry, one.key))]
    return shown


def _setting(entry: Entry, folder: Path, key: str) -> list[Any]:
    """The values of a setting in a run, or in all cells of a comparison; empty if there is no such setting."""
    place, found = folder / entry.name, list[Any]()
    for path in [place] if entry.kind == "run" else [place / cell for cell, *_ in entry.cells]:
        with suppress(ArnoError):
            known = settings(path)
            found += [known[name] for name in (key, f"{key}.kind") if name in known][:1]
    return found


def _value(entry: Entry, key: str) -> Any:
    """The value that a condition compares; a list of texts if there are several values."""
    if key in ("tag", "tags"):
        return entry.tags
    if key == "kind":
        return ["cell", entry.kind] if entry.part_of else [entry.kind]
    if key == "status" and entry.why == "killed":
        return [entry.status, "killed"]
    if key in TIMES:
        return entry.started
    if key in ("method", "data"):
        return [*vars(entry)[key].split(", "), vars(entry)[key]]
    return vars(entry)[key] if key in (*TEXTS, *NUMBERS) else entry.scores.get(key)


def _fits(one: Filter, value: Any) -> bool:
    if one.key == "since":
        return bool(value >= moment(one.value))
    if one.key == "before":
        return bool(value < moment(one.value))
    if one.compare in ("=", "!="):
        return any(_same(value, wanted) for wanted in one.value.split(",")) == (one.compare == "=")
    if value is None or isinstance(value, str | list | bool):
        return False
    return OPERATORS[one.compare](value, number(one.key, one.value))


def _same(value: Any, wanted: str) -> bool:
    """Whether a value matches `wanted`, which may contain `*`."""
    if isinstance(value, list):
        return any(_same(one, wanted) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return bool(float(wanted) == value)
        except ValueError:
            return False
    text = {None: "null", True: "true", False: "false"}.get(value, value) if not isinstance(value, str) else value
    return fnmatchcase(str(text).lower(), wanted.lower())


def ordered(entries: Iterable[Entry], key: str = "started", reverse: bool = False) -> list[Entry]:
    """The entries ordered by a key: the newest or the best first, texts from a to z, unknown values last."""
    listed = list(entries)
    scores = {name for entry in listed for name in entry.scores}
    if key == "tag" or key not in {*TEXTS, *NUMBERS, *scores}:
        raise unknown("key", key, [*TEXTS, *NUMBERS, *sorted(scores)])
    if key in TEXTS:
        return sorted(listed, key=lambda entry: vars(entry)[key], reverse=reverse)

    def rank(entry: Entry) -> float:
        value = vars(entry)[key] if key in NUMBERS else entry.scores.get(key, nan)
        value = nan if value is None else value
        sign = entry.declared().sign if key == "score" else 1
        return float(sign * value)

    known = [entry for entry in listed if not isnan(rank(entry))]
    rest = [entry for entry in listed if isnan(rank(entry))]
    return sorted(known, key=rank, reverse=not reverse) + rest
