"""One line of the list of runs: a run, a comparison or a search, read quickly from its folder.

Only the data that a list shows are read: the settings, the manifest and the end of the records. Their checksums are
tested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

from ..core.metric import DIGITS, TRAIN_LOSS, Metric
from ..errors import ArnoError, named
from ..limits import TEXT, parse_json, read_text
from ..records import checksummed, metrics_file
from ..records.damage import checksum, content, damaged

#: The files from which a line of the list is read.
FILES = ("config.yaml", "manifest.json", metrics_file.NAME, "compare.json", "tune.json", "failure.json", "tags.json")
#: This number in place of the size of a file means that the file is a link, which is not followed.
LINK = -1
STATUSES = ("running", "stopped", "failed", "done", "damaged")
#: The status in the manifest → the status in the list. A run with the status `running` without a process was killed.
RECORDED = {"running": "killed", "interrupted": "stopped", "failed": "failed", "done": "done"}
#: A line of a configuration that holds a scalar or the name of a section.
LINE = re.compile(r"^( *)(\w+):(?: ([^'\"\[{|>&\n].*|'[^'\n]*'))?$", re.M)
PLAIN = re.compile(r"[A-Za-z_./~][^'\"#:]*")
#: How many bytes are read from the end of the records: at first, and at most.
BLOCK, MOST = 2**13, 2**23


@dataclass(frozen=True)
class Entry:
    """A run, a comparison or a search.

    name: its path below the folder that is listed. part_of: the comparison to which it belongs as a cell.
    method, data: their names; for a comparison, the names of all methods and data.
    status: one of STATUSES. why: the reason of the status, or a remark.
    round, rounds: the last round and the planned rounds; for a comparison, its finished cells and all its cells.
    metric, label, better, digits: the declaration of the first declared score that was recorded.
    score: the last value of this score; for a comparison, the best mean over seeds. best: the group with this mean.
    scores: the last values of all declared scores. less: those of which less is better.
    started: in seconds since 1970. seconds: the time that it took. pace: the mean seconds of a round since the process
        began.
    cells: for a comparison, the folder, the label and the method of each cell.
    """

    name: str
    kind: str = "run"
    status: str = "stopped"
    why: str = ""
    method: str = ""
    data: str = ""
    seed: int | None = None
    round: int = 0
    rounds: int = 0
    metric: str = ""
    label: str = ""
    better: str = "more"
    digits: int = 4
    score: float = nan
    best: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    less: list[str] = field(default_factory=list)
    started: float = nan
    seconds: float = nan
    pace: float = nan
    tags: list[str] = field(default_factory=list)
    part_of: str = ""
    cells: list[list[str]] = field(default_factory=list)

    def declared(self) -> Metric:
        """The part of the declaration of the score that a list needs."""
        return Metric(self.metric, self.label, "less" if self.better == "less" else "more", digits=self.digits)

    def to_json(self) -> dict[str, Any]:
        """The entry as plain values; null for a number that is not known or not finite."""
        return {key: _known(value) for key, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Entry:
        """The entry that `to_json` wrote. Anything else raises TypeError."""
        given = {name: values[name] for name in TYPES if values.get(name) is not None}
        for name, value in given.items():
            if not isinstance(value, TYPES[name]):
                raise TypeError(f"{name} = {value!r}")
        given["scores"] = {str(key): float(x) for key, x in given.get("scores", {}).items() if x is not None}
        if not all(len(cell) == 3 and all(isinstance(text, str) for text in cell) for cell in given.get("cells", ())):
            raise TypeError("cells")
        for name in ("tags", "less"):
            if not all(isinstance(text, str) for text in given.get(name, ())):
                raise TypeError(name)
        if not 0 <= given.get("digits", 0) <= DIGITS:
            raise TypeError("digits")
        return cls(**given)


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(one) for key, one in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


_USUAL = Entry("")
TYPES: dict[str, Any] = {
    f.name: (int, float) if isinstance(usual := vars(_USUAL)[f.name], float) else int if usual is None else type(usual)
    for f in fields(Entry)
}


def kind_of(path: Path, files: Mapping[str, Any]) -> str:
    """The kind of a folder with these files: run, comparison or search; empty if Arno did not write it.

    Other programs use the same file names, too. Therefore at least one of the files must begin as Arno writes it.
    """
    if "compare.json" in files and _begins(path / "compare.json", checksummed.BEGIN.encode()):
        return "search" if "tune.json" in files else "comparison"
    if "tune.json" in files and _begins(path / "tune.json", b'{\n "labels": '):
        return "search"
    ours = {"config.yaml": b"# arno configuration of run ", "manifest.json": checksummed.BEGIN.encode()}
    ours |= {metrics_file.NAME: metrics_file.BEGIN, "failure.json": checksummed.BEGIN.encode()}
    if any(_begins(path / name, first) for name, first in ours.items() if name in files):
        return "run"
    earlier = metrics_file.NAME in files and _begins(path / metrics_file.NAME, metrics_file.EARLIER)  # release 0.1
    return "run" if earlier and "config.yaml" in files else ""


def _begins(path: Path, first: bytes) -> bool:
    try:
        if not path.is_file():  # to read from a pipe could wait without end
            return False
        with path.open("rb") as file:
            return file.read(len(first)) == first
    except OSError:
        return False


def read_entry(name: str, path: Path, kind: str, files: Mapping[str, Any]) -> Entry:
    """The entry of a folder, from its files. Whether a process works on the run is not checked here."""
    try:
        linked = next((file for file, (_, size) in files.items() if size == LINK), None)
        if linked is not None:
            raise damaged(path / linked, "is a link", path)
        return (_run if kind == "run" else _comparison)(name, path, kind, files)
    except ArnoError as error:
        what = str(error.args[0]).removeprefix(f"{path}{os.sep}")
        return Entry(name, kind, "damaged", f"{what} {error.args[1]}", tags=_tags(path, files, quiet=True))
    except Exception as error:  # one folder that cannot be read must not hide the others
        return Entry(name, kind, "damaged", f"cannot be read ({named(error)})")


def _run(name: str, path: Path, kind: str, files: Mapping[str, Any]) -> Entry:
    config = _Settings(raw(path) if "config.yaml" in files else {})
    manifest = checksummed.read(path / "manifest.json", path, "status") if "manifest.json" in files else {}
    status, why = RECORDED.get(str(manifest.get("status")), "killed"), ""
    if "failure.json" in files and status != "done":
        why = str(checksummed.read(path / "failure.json", path, "reason").get("reason", ""))
        status = "failed"
    elif status == "failed":
        why = str(manifest.get("reason") or "")
    if "config.yaml" not in files and status != "failed":
        raise damaged(path / "config.yaml", "is missing", path)
    declared = declarations(path, manifest)
    last, scores = latest(path, list(declared)) if metrics_file.NAME in files else ({}, {})
    if status == "done" and manifest.get("rounds", last.get("round")) != last.get("round"):
        raise damaged(path / metrics_file.NAME, f"lacks rounds: the run ended after round {manifest['rounds']}", path)
    first = next((_metric(path, one) for name, one in declared.items() if name in scores), TRAIN_LOSS)
    started = _time(manifest.get("started"))
    odd = next((m for m in scores if not isfinite(scores[m])), "")
    return Entry(
        name,
        status=status,
        why=why or (f"{odd} is not finite" if odd else ""),
        method=_method(config),
        data=_data(config),
        seed=_whole(config.get("seed")),
        round=max(_whole(last.get("round")) or 0, 0),
        rounds=_whole(config.get("rounds")) or 0,
        metric=first.name if first.name in scores else "",
        label=first.label,
        better=first.better,
        digits=first.digits,
        score=scores.get(first.name, nan),
        scores=scores,
        less=[name for name in scores if _better(declared[name]) == "less"],
        started=started,
        seconds=_seconds(path, manifest, started),
        pace=_pace(path, manifest, started, last),
        tags=_tags(path, files),
    )


def _comparison(name: str, path: Path, kind: str, files: Mapping[str, Any]) -> Entry:
    cells, tried = list[list[str]](), dict[str, Any]()
    if "tune.json" in files:
        tried = parse_json(read_text(path / "tune.json", "search", TEXT), "tune.json")
    record = checksummed.read(path / "compare.json", path, "command") if "compare.json" in files else {}
    try:
        cells = [[str(c["folder"]), f"{c['name']} {c['setting']}".strip(), str(c["name"])] for c in record["cells"]]
        names = [cell[2] for cell in cells]
    except (LookupError, TypeError):
        if record:
            raise damaged(path / "compare.json", "its cells cannot be read", path) from None
        names = _searched(tried)
    planned = 0 if cells else len(names) * (_whole(tried.get("trials")) or 0)
    trials = 0 if cells else sum(len(g["trials"]) for g in tried.get("groups", ()) if isinstance(g, dict))
    begun = (path / ("compare.json" if record else "tune.json")).stat().st_mtime
    seconds = record.get("seconds")
    return Entry(
        name,
        kind,
        method=", ".join(dict.fromkeys(names)),
        round=trials,
        rounds=len(cells) or planned,
        metric=str(record.get("metric") or ""),
        started=begun,
        seconds=float(seconds) if isinstance(seconds, int | float) else nan,
        tags=_tags(path, files),
        cells=cells,
    )


def _searched(tried: Any) -> list[str]:
    try:
        return [str(group["name"]) for group in tried["groups"]]
    except (LookupError, TypeError):
        return []


class _Settings(dict[str, Any]):
    """The settings of a run. The text of a setting is converted to a value when the setting is read."""

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        return _scalar(value) if isinstance(value, _Text) else value


class _Text(str):
    """The text of a value in the file."""

    __slots__ = ()


def settings(path: Path) -> dict[str, Any]:
    """The settings of a run as `section.name` → value."""
    return {key: _scalar(value) if isinstance(value, _Text) else value for key, value in raw(path).items()}


def raw(path: Path) -> dict[str, Any]:
    """The settings of a run as `section.name` → text or value.

    If the checksum of the file is right, Arno wrote the file, with one setting on each line. To read these lines takes
    a thirtieth of the time of a YAML parser. Any other file is read by the YAML parser.
    """
    text = content(path / "config.yaml", path).decode(errors="replace")
    head, _, rest = text.partition("\n")
    first = checksummed.CONFIG.fullmatch(head)
    if first is not None and first[2] == checksum((first[1] + rest).encode()):
        found = _lines(rest)
        if found is not None:
            return found
    from ..config import settings as configs
    from ..records.folder import RunFolder

    return dict(configs.flat(RunFolder(path).config()))


def _lines(text: str) -> dict[str, Any] | None:
    """The settings of a configuration with one scalar on each line, as texts; None if there are other lines.

    >>> _lines("method:\\n  kind: fedprox\\n  mu: 0.1\\nseed: 0\\nload: null")
    {'method.kind': 'fedprox', 'method.mu': '0.1', 'seed': '0', 'load': 'null'}
    """
    lines = LINE.findall(text)
    if len(lines) != len(text.splitlines()):
        return None
    found: dict[str, Any] = {}
    above: list[str] = []
    for indent, key, value in lines:
        if indent:
            key = ".".join((*above[: len(indent) // 2], key))
        if value:
            found[key] = _Text(value)
        else:
            above = key.split(".")
    return found


def _scalar(text: str) -> Any:
    """The value of a YAML scalar as Arno writes it."""
    known = {"null": None, "true": True, "false": False, ".nan": nan}
    if text in known:
        return known[text]
    if PLAIN.fullmatch(text):
        return text
    if text[0] == text[-1] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return str(text)


def declarations(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The declarations of a run's scores by name, without statistics over clients; `_metric` reads a declaration."""
    declared = manifest.get("metrics")
    if not isinstance(declared, list):
        from ..records.folder import RunFolder

        return {metric.name: metric for metric in RunFolder(path).metrics()} if manifest else {}
    return {str(one.get("name")): one for one in declared if isinstance(one, dict) and not one.get("clients")}


def _metric(path: Path, declared: Any) -> Metric:
    try:
        return declared if isinstance(declared, Metric) else Metric.from_json(declared)
    except TypeError as error:
        raise damaged(path / "manifest.json", f"its metrics cannot be read ({error})", path) from error


def _better(declared: Any) -> Any:
    return declared.better if isinstance(declared, Metric) else declared.get("better")


def latest(path: Path, names: list[str]) -> tuple[metrics_file.Row, dict[str, float]]:
    """The last row of the records, and the scores of the last evaluation; only the end of the file is read."""
    file, size, back = path / metrics_file.NAME, (path / metrics_file.NAME).stat().st_size, BLOCK
    tested = [name for name in names if name != TRAIN_LOSS.name]
    if not file.is_file():
        raise damaged(file, "is no regular file", path)
    while True:
        with file.open("rb") as opened:
            opened.seek(max(size - back, 0))
            lines = opened.read(min(back, size)).split(b"\n")[1 if back < size else 0 : -1]
        rows = list[metrics_file.Row]()
        for line in reversed(lines):
            row = metrics_file.parsed(line + b"\n")
            if row is None:
                raise damaged(file, "is damaged: a line at its end is no record of a round", path)
            rows.append(row)
            if any(name in row for name in tested):
                break
        else:
            if back < min(size, MOST):
                back *= 8
                continue
        last = rows[0] if rows else {}
        scored = rows[-1] if rows and any(name in rows[-1] for name in tested) else last
        return last, {n: float(scored[n]) for n in names if isinstance(scored.get(n), int | float)}


def _method(config: Mapping[str, Any]) -> str:
    kind = str(config.get("method.kind") or "")
    return f"{kind} {config.get('method.target')}" if kind == "custom" else kind


def _data(config: Mapping[str, Any]) -> str:
    if (problem := config.get("problem.kind")) not in (None, "supervised"):
        return str(problem)
    kind = str(config.get("data.kind") or "")
    more = config.get("data.name") or config.get("data.path") or config.get("data.target")
    return f"{kind} {Path(str(more)).name}" if more else kind


def _tags(path: Path, files: Mapping[str, Any], quiet: bool = False) -> list[str]:
    if "tags.json" not in files:
        return []
    try:
        found = checksummed.read(path / "tags.json", path, "tags")["tags"]
        return [str(tag) for tag in found]
    except (ArnoError, LookupError, TypeError):
        if quiet:
            return []
        raise damaged(path / "tags.json", "cannot be read", path) from None


def _seconds(path: Path, manifest: Mapping[str, Any], started: float) -> float:
    """The time of all rounds of a run that has ended; for other runs, the time from the start to the last record."""
    taken = manifest.get("seconds")
    if manifest.get("status") != "running" and isinstance(taken, int | float):
        return float(taken)
    file = path / metrics_file.NAME
    return nan if isnan(started) or not file.exists() else max(file.stat().st_mtime - started, 0.0)


def _pace(path: Path, manifest: Mapping[str, Any], started: float, last: metrics_file.Row) -> float:
    """The mean seconds of a round, with the time between rounds; without a known start, the seconds of the last one."""
    rounds = (_whole(last.get("round")) or 0) - (_whole(manifest.get("resumed_after")) or 0)
    if isnan(started) or rounds < 1:
        return float(last["seconds"]) if isinstance(last.get("seconds"), int | float) else nan
    return max((path / metrics_file.NAME).stat().st_mtime - started, 0.0) / rounds


def _time(text: Any) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return nan


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def write_tags(path: Path, tags: list[str]) -> None:
    """Write the tags of a run or comparison."""
    from ..records import disk

    try:
        disk.write(path / "tags.json", checksummed.text({"tags": tags}).encode())
    except OSError as error:
        remedy = "check that you may write into this folder"
        raise ArnoError(f"cannot write {path / 'tags.json'}", str(error.strerror), remedy) from error
