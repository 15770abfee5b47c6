"""The tables of the HTML report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from ..analysis.statistics import differences
from ..analysis.statistics import summary as summarised
from ..config.settings import written

if TYPE_CHECKING:
    import pandas as pd

    from ..analysis.comparison import Comparison

LABELS = {
    "best": "best by validation",
    "area": "mean over the rounds",
    "worst_decile": "worst tenth of clients",
    "rounds": "rounds",
    "steps": "local steps",
    "bytes": "uploaded",
    "seconds": "seconds",
}
TESTS = {"t": "the paired t test", "wilcoxon": "Wilcoxon's signed-rank test"}
SCORES = ("final", "best", "area", "worst_decile")


def verdict(comparison: Comparison, frame: pd.DataFrame) -> str:
    """Who wins by the comparison's table, if anybody; and what is missing."""
    finals = comparison.finals() if frame["seeds"].any() else {}
    metric = comparison.declared().label
    places = {name: frame[(frame["setting"] == name) & (frame["seeds"] > 0)] for name in comparison.places}
    said = [f"<p>{_winner(name, rows, finals, metric)}</p>" for name, rows in places.items() if len(rows) > 1]
    boxes = f"<div class='verdict'>{''.join(said)}</div>" if said else ""
    odd = [f"<p>{escape(one)}</p>" for one in problems(comparison)]
    if odd:
        head = "<p><strong>Not everything went to its end.</strong></p>"
        boxes += f"<div class='verdict warn' role='note'>{head}{''.join(odd)}</div>"
    return boxes


def _winner(place: str, rows: pd.DataFrame, finals: dict[str, dict[int, float]], metric: str) -> str:
    """The best mean of a setting, and whether that is more than chance."""
    best, where = rows.iloc[0], f"{escape(place)}: " if place else ""
    name = f"<strong class='{'winner' if best['winner'] else ''}'>{escape(best['name'])}</strong>"
    text = f"{where}{name} has the best final {escape(metric)}, {best['final']:.4f} on average"
    if best["winner"]:
        return f"{text}; the paired 95 % interval of its lead over every other excludes zero."
    gaps = {
        row["name"]: differences(finals[best["label"]], finals[row["label"]]) for _, row in rows.iloc[1:].iterrows()
    }
    spans = {other: summarised(gap) for other, gap in gaps.items()}
    if all(isnan(span.low) for span in spans.values()):
        return f"{text}. With one seed that may be chance: there is no interval, and no winner is marked."
    equal = [escape(other) for other, span in spans.items() if not (span.low > 0 or span.high < 0)]
    why = f"its lead over {', '.join(equal)} may be chance" if equal else "some of its runs have no result"
    return f"{text}; but no winner is marked: {why}."


def problems(comparison: Comparison) -> Iterator[str]:
    """Runs that diverged, failed or are not over."""
    for group in comparison.members:
        for seed, lost in sorted(group.lost.items()):
            how = "diverged" if lost.diverged else "failed"
            yield f"{group.label}, seed {seed}: {how}, not averaged in: {lost.reason}"
        for seed, run in sorted(group.runs.items()):
            status = run.folder.manifest().get("status")
            if status != "done":
                yield f"{group.label}, seed {seed}: {status} after round {run.history.index[-1]}, counted so far"
        for one in group.part_way():
            yield ", ".join(filter(None, (one.name, one.setting, "drawn and not averaged in")))
        planned = sorted({*comparison.seeds, *(cell["seed"] for cell in comparison.record.get("cells", ()))})
        absent = [seed for seed in planned if not any(seed in some for some in (group.runs, group.lost, group.partial))]
        if absent:
            yield f"{group.label}: no finished run with seed {', '.join(map(str, absent))}"


def summary(comparison: Comparison, frame: pd.DataFrame) -> str:
    """The scores of the comparison's table with their intervals, and the paired differences."""
    if not frame["seeds"].any():
        return "<p class='note'>No run has a result.</p>"
    metric, target = comparison.declared().label, comparison.record.get("target")
    to = f" to {target:g}" if target is not None else ""
    shown = [name for name in ("final", *LABELS) if name in frame and frame[name].notna().any()]
    heads = [f"final {metric}", "", *(LABELS[name] + (to if name in REACHED else "") for name in shown[1:]), "seeds"]
    low, high = _ends(frame, "final")
    rows = []
    for place in comparison.places:
        if place:
            rows.append(f"<tr class='place'><th colspan='{len(heads) + 1}' scope='colgroup'>{escape(place)}</th></tr>")
        for _, row in frame[frame["setting"] == place].iterrows():
            name = f"<span class='winner'>{escape(row['name'])} ★</span>" if row["winner"] else escape(row["name"])
            cells = [_cell(row, column) for column in shown]
            cells.insert(1, f"<td>{interval(row['final'], row['final_low'], row['final_high'], low, high)}</td>")
            lost = "".join(f"<small class='lost'>{row[k]} {k}</small>" for k in ("diverged", "failed") if row[k])
            rows.append(f"<tr><th scope='row'>{name}</th>{''.join(cells)}<td>{row['seeds']}{lost}</td></tr>")
    caption = (
        "Mean ± standard deviation over the seeds; below, the 95 % interval of the mean (Student's t; one seed has "
        "none). ★ marks a winner, where the paired intervals say so."
    )
    return _table(caption, ["", *heads], rows) + _differences(comparison, metric)


REACHED = ("rounds", "steps", "bytes")


def _differences(comparison: Comparison, metric: str) -> str:
    frame = comparison.differences()
    if not len(frame):
        return ""
    low, high = _ends(frame, "difference", "")
    low, high = min(low, 0.0), max(high, 0.0)
    rows = []
    for _, row in frame.iterrows():
        name = f"{row['name']} − {row['reference']}" + (f", {row['setting']}" if row["setting"] else "")
        span = "no interval" if isnan(row["low"]) else f"[{row['low']:+.4f}, {row['high']:+.4f}]"
        ps = "".join(f"<td>{'–' if isnan(row[p]) else f'{row[p]:.3g}'}</td>" for p in ("p", "p_holm"))
        line = interval(row["difference"], row["low"], row["high"], low, high, zero=True)
        rows.append(
            f"<tr><th scope='row'>{escape(name)}</th><td>{number(row['difference'], '+.4f')}</td><td>{span}</td>"
            f"<td>{line}</td>{ps}<td>{row['pairs']}</td></tr>"
        )
    caption = (
        f"Paired differences of the final {metric} at the same seeds, hence the same split and cohorts, to the first "
        f"method; p of {TESTS[comparison.record.get('test') or 't']}, and corrected by Holm for the number of tests."
    )
    return _table(caption, ["", "difference", "95 % interval", "", "p", "p, Holm", "pairs"], rows)


def configuration(comparison: Comparison) -> str:
    """In what the groups differ, and what they share."""
    settings, out = comparison.settings, ""
    keys = list(dict.fromkeys(key for mine in settings.differing.values() for key in mine))
    if keys:
        rows = []
        for key in keys:
            cells = "".join(
                f"<td class='text'>{escape(written(mine[key])) if key in mine else '–'}</td>"
                for mine in settings.differing.values()
            )
            rows.append(f"<tr><th scope='row'><code>{escape(key)}</code></th>{cells}</tr>")
        out += _table("What differs between the groups, besides the seed.", ["", *settings.differing], rows, "text")
    shared = "".join(
        f"<dt><code>{escape(key)}</code></dt><dd><code>{escape(written(value))}</code></dd>"
        for key, value in settings.shared.items()
    )
    return f"{out}<div class='card'><details><summary>What all runs share</summary><dl>{shared}</dl></details></div>"


def reproduce(comparison: Comparison) -> str:
    """Commands, versions, times."""
    runs = [(group, seed, run) for group in comparison.members for seed, run in group.runs.items()]
    manifests = [run.folder.manifest() for _, _, run in runs]
    whole = comparison.record.get("command") or (manifests[0].get("command") if len(runs) == 1 else None)
    seconds = sum(float(run.history["seconds"].sum()) for _, _, run in runs)
    wall = comparison.record.get("seconds")
    facts = {
        name: ", ".join(dict.fromkeys(str(manifest[name]) for manifest in manifests if name in manifest))
        for name in ("arno", "python", "torch", "numpy", "platform", "cpus", "device")
    }
    engines = (f"{m['engine']['name']} ({m['engine']['equality']})" for m in manifests if "engine" in m)
    facts["engine"] = ", ".join(dict.fromkeys(engines))
    facts["data"] = ", ".join(dict.fromkeys(str(m["data_fingerprint"]) for m in manifests if "data_fingerprint" in m))
    facts["started"] = min((str(m["started"]) for m in manifests if "started" in m), default="")
    facts["took"] = f"{duration(seconds)} in the rounds of all {len(runs)} runs" + (
        f", {duration(wall)} from start to end" if wall else ""
    )
    listed = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    command = f"<pre><code>{escape(whole)}</code></pre>" if whole else ""
    each = "\n".join(
        f"# {group.label}, seed {seed}: {os.fspath(run.path)}\n"
        + (run.folder.manifest().get("command") or "# made from Python with parts of its own")
        for group, seed, run in runs
    )
    single = f"<details><summary>The command of every run</summary><pre><code>{escape(each)}</code></pre></details>"
    return f"<div class='card'><dl>{listed}</dl>{command}{single}</div>"


def interval(mean: float, low: float, high: float, first: float, last: float, zero: bool = False) -> str:
    """A mean and its interval on a common scale; decoration: the numbers stand beside it."""
    if isnan(mean):
        return ""
    width = (last - first) or 1.0

    def at(x: float) -> str:
        return f"{4 + 142 * (x - first) / width:.1f}"

    line = "" if isnan(low) else f"<line x1='{at(low)}' x2='{at(high)}' y1='8' y2='8'/>"
    middle = f"<line class='zero' x1='{at(0)}' x2='{at(0)}' y1='0' y2='16'/>" if zero else ""
    return (
        f"<svg class='interval' viewBox='0 0 150 16' aria-hidden='true'>{middle}{line}"
        f"<circle cx='{at(mean)}' cy='8' r='4'/></svg>"
    )


def number(value: float, form: str = ".4f") -> str:
    """A number as a table shows it.

    >>> number(0.91234), number(1234567), number(float("nan")), number(3, ".0f")
    ('0.9123', '1.23M', '–', '3')
    """
    if not isfinite(value):
        return "–"
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.3g}{letter}"
    return f"{value:{form}}"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(7.24), duration(200), duration(7300)
    ('7.2 s', '3 min 20 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{hours} h {minutes % 60} min"


def _cell(row: pd.Series[Any], name: str) -> str:
    mean, std, low, high = (float(row[f"{name}{end}"]) for end in ("", "_std", "_low", "_high"))
    form = ".4f" if name in SCORES else ".1f" if name == "seconds" else ".0f"
    spread = f" ± {number(std, form)}" if isfinite(std) and name in (*SCORES, "seconds") else ""
    small = f"<small>[{number(low, form)}, {number(high, form)}]</small>" if isfinite(low) and name in SCORES else ""
    if name == "rounds" and row["reached"] < row["seeds"]:
        small = f"<small>{row['reached']} of {row['seeds']} seeds</small>"
    return f"<td>{number(mean, form)}{spread}{small}</td>"


def _ends(frame: pd.DataFrame, name: str, prefix: str | None = None) -> tuple[float, float]:
    stem = f"{name}_" if prefix is None else prefix
    values = [float(x) for column in (name, f"{stem}low", f"{stem}high") for x in frame[column] if isfinite(x)]
    return (min(values), max(values)) if values else (0.0, 1.0)


def _table(caption: str, heads: Sequence[str], rows: Sequence[str], kind: str = "number") -> str:
    head = "".join(f"<th scope='col' class='{kind}'>{escape(text)}</th>" if text else "<td></td>" for text in heads)
    return (
        f"<div class='card'><p class='caption'>{escape(caption)}</p><div class='scroll' tabindex='0' role='region' "
        f"aria-label='{escape(caption)}'><table class='wide'><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )
