"""What the page shows of some runs, as plain values: panels and tables, which the report shows, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import ceil, floor, isnan, log10
from pathlib import Path
from typing import Any

from ..analysis.budget import unequal
from ..analysis.comparison import Comparison, Group
from ..analysis.details import details
from ..analysis.names import flattened, names
from ..analysis.other_differences import other_differences
from ..analysis.run_entry import Entry
from ..analysis.tuning import Tuned, Tuning
from ..core.metric import Metric
from ..errors import ArnoError
from ..limits import inside
from ..report import comparison_panels, search
from ..report.html import as_data, place, plain, scored
from ..report.sections import problems
from ..report.tables import Sheet, sheets
from ..runs.result import RunResult

#: The largest number of clients in a table, and of classes in a label mix.
CLIENTS, CLASSES = 200, 3
#: The format of numbers that are not scores.
NUMBER = Metric("number", "number")


def compared(paths: Sequence[Path], entries: Sequence[Entry]) -> Comparison:
    """The comparison of some runs of any status, or the comparison in a folder."""
    for path in paths:
        refuse_links(path)
    if len(paths) == 1 and entries[0].kind != "run":
        return Comparison.open(paths[0])
    if any(entry.kind != "run" for entry in entries):
        raise ArnoError("runs and comparisons", "they cannot be drawn together", "tick runs only, or one comparison")
    runs = [RunResult(path) for path in paths]
    flat = [flattened(run.config) for run in runs]
    members: dict[tuple[str, str], Group] = {}
    named = names(flat, [entry.name for entry in entries])
    for run, config, entry, (name, setting) in zip(runs, flat, entries, named, strict=True):
        seed = config.get("seed") or 0
        if (name, setting) in members and seed in members[name, setting].runs:  # the same run twice
            name = f"{name}, {entry.name}"
        members.setdefault((name, setting), Group(name, setting)).runs[seed] = run
    return Comparison(list(members.values()))


def refuse_links(path: Path) -> None:
    """Refuse a run folder with links that lead out of it: the page would show other files."""
    for folder in (path, path / "checkpoints"):
        for one in folder.iterdir() if folder.is_dir() else ():
            if one.is_symlink() and one.name != "logs":  # a link that Ray makes; it is not read here
                inside(path, one)


def curves(paths: Sequence[Path], entries: Sequence[Entry]) -> dict[str, Any]:
    """The curves of some runs, by setting; they are sent again while the runs continue."""
    found = compared(paths, entries)
    drawn: dict[str, Any] = {}
    for name in found.places:
        there = [group for group in found.members if group.setting == name]
        groups = [group for group in there if group.runs] + [one for group in there for one in group.part_way()]
        drawn[name or "all runs"] = as_data(comparison_panels.curves(groups, parallel=False))
    return {"names": list(dict.fromkeys(group.name for group in found.members)), "metric": found.metric} | {
        "curves": plain(drawn)
    }


def view(paths: Sequence[Path], entries: Sequence[Entry]) -> dict[str, Any]:
    """Everything that the page shows of some runs."""
    found = compared(paths, entries)
    one = details(paths[0], entries[0]) if len(paths) == 1 else None
    whole: dict[str, Any] = {
        "where": found.where,
        "settings": one.settings if one else {},
        "about": one.about if one else {},
        "command": one.command if one else "",
        "log": one.log if one else [],
        "scores": one.scores if one else [],
    }
    tuning = Tuning.open(paths[0]) if len(paths) == 1 else None
    whole |= {"search": [sheet_data(search.sheet(tuning))] if tuning else []}
    whole |= {"trials": plain(trials(tuning)) if tuning else []}
    if not any(run.rows for group in found.members for run in group.begun):
        lists = ("names", "places", "sheets", "apart", "budgets", "problems")
        return whole | {"metric": "", **{name: [] for name in lists}}
    found = scored(found)
    several = len(found.members) > 1
    runs = [run for group in found.members for run in group.runs.values()]
    tables = sheets(found) if several and runs else [clients_of(run) for run in runs[:1]]
    return whole | {
        "names": list(
            dict.fromkeys(g.name for g in (*found.members, *(p for m in found.members for p in m.part_way())))
        ),
        "metric": found.metric,
        "places": plain([place(found, name) for name in found.places]),
        "sheets": [sheet_data(sheet) for sheet in tables if any(sheet.places.values())],
        "apart": other_differences(found) if several else [],
        "budgets": unequal(found) if several else [],
        "problems": list(problems(found)) if several else [],
    }


def sheet_data(sheet: Sheet) -> dict[str, Any]:
    """A table as plain values."""
    return asdict(sheet)


def clients_of(run: RunResult) -> Sheet:
    """One row per client: its samples, scores and norm of the updates. Clients with the worst scores are first."""
    rows: dict[str, dict[str, Any]] = {}
    scores, clients = run.client_scores(), run.clients
    own = next((m for m in run.metrics if m.name.startswith("own_") and m.name in scores), None)
    personal = next((m for m in run.metrics if m.name.startswith("personal_") and m.name in scores), None)
    for name, column in (("drift", "delta_norm"), ("agreement", "delta_cosine"), ("loss", "loss")):
        if column in clients and len(clients):
            for client, value in clients.groupby("client")[column].mean().items():
                rows.setdefault(str(client), {})[name] = float(value)
    for client, count in clients["client"].value_counts().items() if len(clients) else ():
        rows.setdefault(str(client), {})["rounds"] = int(count)
    for row in scores.to_dict("records"):
        about = rows.setdefault(str(row["client"]), {})
        about["samples"] = int(row["samples"])
        about |= {kind: float(row[m.name]) for kind, m in (("own", own), ("personal", personal)) if m is not None}
    _mix(run, rows)
    worst = sorted(rows, key=lambda c: (_served(rows[c], own), -rows[c].get("drift", 0.0)))
    columns = {"samples": "samples", "mix": "largest classes", "own": own.label if own else ""}
    columns |= {"personal": personal.label if personal else "", "loss": "training loss", "drift": "drift ‖Δ‖"}
    columns |= {"agreement": "agreement", "rounds": "rounds"}
    columns = {key: label for key, label in columns.items() if any(key in row for row in rows.values())}
    called, few = _called(run), {client: rows[client] for client in worst[:CLIENTS]}
    shown = {key: _texts(key, few, {"own": own, "personal": personal}.get(key)) for key in columns}
    table = [[called.get(client, client), *(shown[key][client] for key in columns)] for client in few]
    order = "the worst served first" if own else "the largest drift first" if "drift" in columns else ""
    some = f"{CLIENTS} of {len(rows):,}" if len(rows) > CLIENTS else ""
    title = ", ".join(filter(None, ("Clients", some, order)))
    tested = run.config["problem"]["kind"] == "supervised"
    return Sheet(title, list(columns.values()), {"": table}, _about_clients(worst, rows, called, tested))


def _served(row: Mapping[str, Any], own: Metric | None) -> float:
    """The value by which clients are ordered: a low value is a bad score; clients without a score come last."""
    score = row.get("own", float("nan"))
    return float("inf") if own is None or isnan(score) else own.sign * float(score)


def _about_clients(
    worst: Sequence[str], rows: Mapping[str, Mapping[str, Any]], called: Mapping[str, str], tested: bool
) -> list[str]:
    """Notes: the client with the worst score, the client that drifts most, and what the columns are.

    tested: whether clients can have test samples.
    """
    notes = []
    drifting = max(rows, key=lambda c: rows[c].get("drift", 0.0), default="")
    known = bool(rows) and "drift" in rows[drifting]
    if worst and "own" in rows[worst[0]]:
        most = f" Drifts most: client {called.get(drifting, drifting)}." if known else ""
        notes.append(f"Served worst: client {called.get(worst[0], worst[0])}.{most}")
    elif tested:
        notes.append(
            "Who is served badly is known after the last round, if clients keep test samples (data.client_test)."
        )
    if known:
        notes.append(
            "drift: mean norm of the client's updates. agreement: mean cosine to the other updates of its round."
        )
    return notes


def _called(run: RunResult) -> dict[str, str]:
    """The names of the clients by their numbers."""
    named = (run.folder.manifest().get("clients") or []) if (run.path / "manifest.json").exists() else []
    return {str(number): name for number, name in enumerate(named)}


def _texts(key: str, rows: Mapping[str, Mapping[str, Any]], metric: Metric | None) -> dict[str, str]:
    """A column as texts, by client; its numbers have as many digits after the point as its largest one needs.

    >>> _texts("loss", {"a": {"loss": 12.5}, "b": {"loss": 0.125}, "c": {}}, None)
    {'a': '12.500', 'b': '0.125', 'c': '–'}
    """
    values = {client: row.get(key) for client, row in rows.items()}
    numbers = [abs(value) for value in values.values() if isinstance(value, float) and not isnan(value)]
    scale, metric = max(numbers, default=0.0) if metric is None else None, metric or NUMBER
    texts = {}
    for client, value in values.items():
        if isinstance(value, float):
            texts[client] = metric.show(value, scale)
        else:
            texts[client] = "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return texts


def _mix(run: RunResult, rows: dict[str, dict[str, Any]]) -> None:
    """Add the samples of each client and its largest classes."""
    if (counts := run.counts) is None:
        return
    classes = run.folder.manifest().get("classes") or []
    for client in range(len(counts)) if len(counts) <= CLIENTS else (int(c) for c in rows if c.isdecimal()):
        held = counts[client]
        total = int(held.sum())
        top = [int(c) for c in held.argsort()[::-1][:CLASSES] if held[c]]
        about = rows.setdefault(str(client), {})
        about.setdefault("samples", total)
        about["mix"] = ", ".join(f"{classes[c] if c < len(classes) else c}: {held[c] / total:.0%}" for c in top)


def trials(tuning: Tuning) -> list[dict[str, Any]]:
    """A picture of the trials for each group and setting: the value and the last score."""
    return [_trials(tuning, group, key) for group in tuning.groups for key in group.space]


def _trials(tuning: Tuning, group: Tuned, key: str) -> dict[str, Any]:
    """One picture; a trial whose score is far from the others is drawn at the end of the axis."""
    points, space = search.tried(group, key), group.space[key]
    at, ends = search.places(space, [value for value, *_ in points]) if points else ([], [])
    lines = []
    for name, early in (("to the end", False), ("ended early", True)):
        some = sorted((x, y, value) for x, (value, y, pruned, _) in zip(at, points, strict=True) if pruned == early)
        x, y, texts = ([one[i] for one in some] for i in range(3))
        lines.append({"name": name, "x": x, "y": y, "low": [], "high": [], "texts": texts})
    best = f" The best value is {group.best[key]}." if key in group.best else ""
    scores = [y for _, y, *_ in points]
    low, high = search.axis(tuning.metric, scores) if scores else (0.0, 0.0)
    below, above = any(y < low for y in scores), any(y > high for y in scores)
    beyond = " Scores beyond the axis are drawn at its end." if below or above else ""
    text = f"Each point is a trial with a value from {space}.{best}{beyond}"
    about: dict[str, Any] = {"title": f"{group.label}: {search.shorter(key)}", "text": text, "x": search.shorter(key)}
    about |= {"ticks": [[round(x, 6), text] for x, text in _between(space, ends)] or None, "points": True}
    about |= {"low": low if below else None, "high": high if above else None}
    return about | {"y": tuning.metric.label, "lines": lines, "log": False}


def _between(space: str, ends: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ends of a range with the powers of ten between them, if its scale is logarithmic.

    >>> _between("log(0.001, 0.1)", [(0.0, "0.001"), (1.0, "0.1")])
    [(0.0, '0.001'), (0.5, '0.01'), (1.0, '0.1')]
    """
    if not space.startswith("log(") or len(ends) != 2:
        return list(ends)
    low, high = (log10(float(text)) for _, text in ends)
    tens = [(e, f"{10.0**e:g}") for e in range(ceil(low), floor(high) + 1)]
    inner = [((e - low) / (high - low), text) for e, text in tens if 0.05 < (e - low) / (high - low) < 0.95]
    return [ends[0], *inner, ends[1]]
