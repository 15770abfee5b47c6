"""`arno report`: a comparison as one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArnoError
from ..version import __version__
from . import panels, sections

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison, Group

CURVES = (
    "Lines are means over the seeds, bands reach one standard deviation to either side; a curve ends with the first of "
    "its seeds that ends. A run of a comparison that is not over has a line of its own. Idealised parallel time counts "
    "the longest client of each round, or the sum where they train one after the other; evaluation and aggregation are "
    "left out."
)


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the report of a comparison to `path`."""
    comparison = scored(comparison)
    part_way = [one for group in comparison.members for one in group.part_way()]
    places = [place(comparison, name) for name in comparison.places]
    table = comparison.table()
    data = {
        "names": list(dict.fromkeys(line.name for line in (*comparison.members, *part_way))),
        "metric": comparison.metric,
        "log": [name for name, metric in comparison.metrics.items() if metric.log],
        "places": places,
    }
    values = {
        "title": escape(title(comparison)),
        "lead": escape(comparison.where),
        "verdict": sections.verdict(comparison, table),
        "summary": sections.summary(comparison, table),
        "curves": CURVES,
        "configuration": sections.configuration(comparison),
        "reproduce": sections.reproduce(comparison),
        "footer": f"Written by Arno {__version__} on {datetime.now():%d %B %Y at %H:%M}. It needs no network.",
        "css": _packaged("report.css"),
        "js": _packaged("report.js"),
        "data": embedded(data),
    }
    page = _packaged("report.html")
    for name, text in values.items():
        page = page.replace("{{" + name + "}}", text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ArnoError(f"{path}", f"cannot be written ({error.strerror})", "choose another --out") from error


def scored(comparison: Comparison) -> Comparison:
    """The comparison in which a run that was stopped before the score was taken has no result."""
    from ..analysis.comparison import Comparison, Lost

    metric, members = comparison.metric, []
    why = Lost(f"stopped before its {comparison.declared().label} was taken", False)
    for group in comparison.members:
        runs = {
            seed: run for seed, run in group.runs.items() if metric in run.history and any(run.history[metric].notna())
        }
        members.append(replace(group, runs=runs, lost=group.lost | dict.fromkeys(group.runs.keys() - runs.keys(), why)))
    return Comparison(members, comparison.path, comparison.record)


def place(comparison: Comparison, name: str) -> dict[str, Any]:
    """What is drawn of the groups in one setting: the curves, and panels and notes by section."""
    groups = [group for group in comparison.members if group.setting == name and group.runs]
    part_way = [one for group in comparison.members if group.setting == name for one in group.part_way()]
    found, missing = panels.by_section(groups)
    titles = {panel.title for some in found.values() for panel in some}
    notes = {"clients": list(_missing(groups, titles)), "drift": [], "methods": missing}
    if not found["drift"]:
        notes["drift"].append("These runs hold no records of their clients' updates.")
    if not found["methods"] and not missing:
        notes["methods"].append("None of these methods has a panel of its own.")
    return {
        "name": name or "all runs",
        "curves": as_data(panels.curves([*groups, *part_way])),
        "panels": {section: [asdict(panel) for panel in some] for section, some in found.items()},
        "notes": notes,
    }


def as_data(curves: panels.Curves) -> dict[str, Any]:
    """The curves for the page: every metric by its label."""
    return {**vars(curves), "metrics": {name: metric.label for name, metric in curves.metrics.items()}}


def _missing(groups: Iterable[Group], titles: set[str]) -> Iterable[str]:
    """How to record what is not there."""
    runs = [run for group in groups for run in group.runs.values()]
    if not runs or not all(any(m.name == "client_accuracy_worst_decile" for m in run.metrics) for run in runs):
        return  # nobody holds classes
    if "Who holds what" not in titles:
        yield "Who holds which classes was not recorded (too many clients, or an older run); arno data show draws it."
    if "How well each client is served" not in titles:
        yield "How accuracy spreads over the clients was not recorded. Run with eval.clients=true to see it here."
    if "Who takes part" not in titles and all(len(run.clients) for run in runs):
        yield "Every client took part in every round."


def title(comparison: Comparison) -> str:
    """What is compared."""
    names = list(dict.fromkeys(group.name for group in comparison.members))
    return " · ".join(names) if len(names) <= 8 else f"{len(names)} methods compared"


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plain(value: Any) -> Any:
    """Numbers to six digits, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value


def _packaged(name: str) -> str:
    return files("arno.report").joinpath(name).read_text(encoding="utf-8")
