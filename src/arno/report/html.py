"""`arno report`: a comparison as one HTML file without references to other files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from ..analysis.budget import unequal_searches
from ..analysis.comparison import Comparison
from ..analysis.tuning import UNTUNED, Tuning, search_of, untuned
from ..errors import ArnoError
from ..runs.result import RunResult
from ..version import __version__
from . import comparison_panels, search, sections
from .tables import Unscored

BANDS = (
    "A line is the mean over the seeds, and the band around it is ± one standard deviation. A curve ends where the "
    "first of its seeds ends. An unfinished run of a comparison has a separate line. "
)
PARALLEL = (
    "Idealised parallel seconds: the seconds of the slowest client of each round, or the sum if the clients train one "
    "after the other; evaluation and aggregation are not included."
)


def write_report(comparison: Comparison | RunResult, path: Path | str) -> None:
    """Write the report of a comparison, or of a run, as one HTML file.

    >>> import arno
    >>> arno.write_report(arno.Comparison.of(["runs/a", "runs/b"]), "report.html")    # doctest: +SKIP
    """
    if isinstance(comparison, RunResult):
        comparison = Comparison.of([comparison])
    if not isinstance(comparison, Comparison):
        rule = f"an object of type {type(comparison).__name__} is no comparison and no run"
        raise ArnoError("arno.write_report", rule, "write arno.write_report(arno.Comparison.of([…]), path)")
    comparison, path = scored(comparison), Path(path)
    part_way = [one for group in comparison.members for one in group.part_way()]
    table = comparison.table()
    tuning = search_of(comparison)
    data = {
        "names": list(dict.fromkeys(line.name for line in (*comparison.members, *part_way))),
        "metric": comparison.metric,
        "places": [place(comparison, name) for name in comparison.places],
    }
    values = {
        "title": escape(title(comparison)),
        "lead": escape(comparison.where),
        "verdict": sections.verdict(comparison, table) + tuned(comparison, tuning),
        "found": "<a href='#search'>Search</a>" if tuning else "",
        "search": search.section(tuning) if tuning else "",
        "summary": sections.summary(comparison, table),
        "curves": (BANDS if len(comparison.seeds) > 1 or part_way else "") + PARALLEL,
        "clients": sections.clients(comparison),
        "configuration": sections.configuration(comparison),
        "reproduce": sections.reproduce(comparison),
        "footer": f"Written by Arno {__version__} on {datetime.now():%d %B %Y at %H:%M}. This file needs no network.",
        "css": packaged("report.css"),
        "charts": packaged("charts.js"),
        "js": packaged("report.js"),
        "data": embedded(data),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(packaged("report.html"), values), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ArnoError(f"{path}", f"cannot be written ({error.strerror})", "choose another --out") from error


def tuned(comparison: Comparison, tuning: Tuning | None) -> str:
    """Notes below the verdict: whether the settings of the methods were searched, and with which budgets."""
    lines = [UNTUNED] if untuned(comparison) else []
    if tuning is not None:
        lines += [search.summary(tuning), *unequal_searches(tuning)]
    return "".join(f"<p class='note'>{escape(line)}</p>" for line in lines)


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with a value in place of each `{{name}}`; a value may hold `{{name}}` itself.

    >>> filled("{{a}} {{b}}", {"a": "{{b}}", "b": "x"})
    '{{b}} x'
    """
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def scored(comparison: Comparison) -> Comparison:
    """The same comparison, in which a run that did not record the compared score counts as a run without a result."""
    metric, members = comparison.metric, []
    why = Unscored(f"it recorded no {comparison.declared().label}", False)
    for group in comparison.members:
        runs = {
            seed: run for seed, run in group.runs.items() if metric in run.history and any(run.history[metric].notna())
        }
        members.append(replace(group, runs=runs, lost=group.lost | dict.fromkeys(group.runs.keys() - runs.keys(), why)))
    return Comparison(members, comparison.path, comparison.record | {"metric": metric})


def place(comparison: Comparison, name: str) -> dict[str, Any]:
    """What the page shows of one setting: its curves, and the panels and notes of each section."""
    groups = [group for group in comparison.members if group.setting == name and group.runs]
    part_way = [one for group in comparison.members if group.setting == name for one in group.part_way()]
    found = comparison_panels.sections(groups)
    return {
        "name": name or "all runs",
        "curves": as_data(comparison_panels.curves([*groups, *part_way])),
        "panels": {section: [asdict(panel) for panel in one.panels] for section, one in found.items()},
        "notes": {section: one.notes for section, one in found.items()},
    }


def as_data(curves: comparison_panels.Curves) -> dict[str, Any]:
    """The curves as plain values; `metrics` holds what the declaration of each metric says about its y axis."""
    axes = {
        name: {
            "label": metric.label,
            "better": metric.better,
            "log": metric.log,
            "low": metric.low,
            "high": metric.high,
        }
        for name, metric in curves.metrics.items()
    }
    return {**vars(curves), "metrics": axes}


def title(comparison: Comparison) -> str:
    """The title: the names of the groups; of many groups, only their number."""
    names = list(dict.fromkeys(group.name for group in comparison.members))
    return " · ".join(names) if len(names) <= 8 else f"{len(names)} methods compared"


def embedded(data: Mapping[str, Any]) -> str:
    """JSON for a script element; without the characters that could end the element."""
    text = json.dumps(plain(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def plain(value: Any) -> Any:
    """Values for JSON: numbers have six significant digits; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value


def packaged(name: str) -> str:
    """The text of a file of this package."""
    return files("arno.report").joinpath(name).read_text(encoding="utf-8")
