"""The sections of the HTML report: verdict, tables, settings and commands."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from ..analysis.budget import unequal
from ..analysis.clients import Column, Overview, Served, overview, plain_label, served
from ..analysis.order import Order, order
from ..analysis.other_differences import other_differences
from ..analysis.statistics import differences
from ..analysis.statistics import summary as summarised
from ..config.settings import written
from .numbers import COSTS, NONE, cut, duration, largest, listed, probability, score, spread
from .tables import NOT_REACHED, Unscored, of_few_seeds, of_global_models

if TYPE_CHECKING:
    import pandas as pd

    from ..analysis.comparison import Comparison
    from ..core.metric import Metric

#: The columns with scores, and their headings; empty: the heading is the label of the metric.
SCORES = {"final": "", "best": "best by validation", "area": "mean over the rounds", "worst_decile": ""}
#: The columns that hold the cost to reach the target, if there is a target.
TO_TARGET = ("rounds", "steps", "bytes")
#: The largest number of clients in a table.
ROWS = 40
TESTS = {"t": "the paired t test", "wilcoxon": "Wilcoxon's signed-rank test"}
INTERVALS = "Mean ± standard deviation over the seeds, and below it the 95 % interval of the mean (Student's t)."
HINT = "<p class='hint'>The table is wider than the screen: scroll it →</p>"
SECONDS = "Wall seconds are those of whole runs on cores that several runs shared: they also depend on the other runs."
WINNER = "★ marks a winner: the 95 % intervals of its paired differences to all others exclude zero."


def verdict(comparison: Comparison, frame: pd.DataFrame) -> str:
    """The best group of each setting and whether it wins; then the runs that are not complete."""
    finals = comparison.finals() if frame["seeds"].any() else {}
    metric = comparison.declared()
    places = {name: frame[(frame["setting"] == name) & (frame["seeds"] > 0)] for name in comparison.places}
    lines = [f"<p>{_winner(name, rows, finals, metric)}</p>" for name, rows in places.items() if len(rows) > 1]
    if lines:
        others = escape(" ".join(other_differences(comparison)))
        lines += [f"<p><strong>Not only the method differs.</strong> {others}</p>"] if others else []
        lines += [f"<p>{escape(line)}</p>" for line in (*of_global_models(comparison), *unequal(comparison))]
    boxes = f"<div class='verdict'>{''.join(lines)}</div>" if lines else ""
    found = order(comparison) if frame["seeds"].any() else None
    if found:
        boxes += f"<div class='verdict'><p>{escape(found.sentence())}</p>{ranks(found)}</div>"
    odd = [f"<p>{escape(one)}</p>" for one in problems(comparison)]
    if odd:
        head = "<p><strong>Some runs are not complete.</strong></p>"
        boxes += f"<div class='verdict warn' role='note'>{head}{''.join(odd)}</div>"
    return boxes


def ranks(found: Order) -> str:
    """A picture of the rank of each method over the settings; the first rank is at the top."""
    wide, high, left = 70 + 120 * (len(found.places) - 1), 26 * len(found.names) + 34, 12

    def across(i: int) -> float:
        return left + 20 + 120 * i

    def down(rank: int) -> float:
        return 26.0 * rank - 8

    drawn = []
    for c, name in enumerate(found.names):
        points = [(across(i), down(rank)) for i, rank in enumerate(found.ranks[name])]
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        dots = "".join(f"<circle cx='{x:.0f}' cy='{y:.0f}' r='5'/>" for x, y in points)
        text = f"<text x='{points[-1][0] + 12:.0f}' y='{points[-1][1] + 4:.0f}'>{escape(name)}</text>"
        colour = f"var(--c{c % 8})"
        drawn.append(f"<g style='stroke:{colour};fill:{colour}'><polyline points='{path}'/>{dots}{text}</g>")
    below = "".join(
        f"<text x='{across(i):.0f}' y='{high - 6}' text-anchor='middle'>{escape(place.rpartition('=')[2])}</text>"
        for i, place in enumerate(found.places)
    )
    keys = {place.rpartition("=")[0] for place in found.places}
    below += f"<text x='{left}' y='{high + 12}'>{escape(', '.join(keys))}</text>" if len(keys) == 1 else ""
    label = f"Ranks of the methods in the settings {', '.join(found.places)}"
    return (
        f"<svg class='ranks' viewBox='0 0 {wide + 110} {high + 18}' style='max-width:{wide + 110}px' role='img' "
        f"aria-label='{escape(label)}'>{''.join(drawn)}{below}</svg>"
    )


def _winner(place: str, rows: pd.DataFrame, finals: dict[str, dict[int, float]], metric: Metric) -> str:
    """A sentence about the group with the best mean, and whether its differences to the others may be chance."""
    best, where = rows.iloc[0], f"{escape(place)}: " if place else ""
    name = f"<strong class='{'winner' if best['winner'] else ''}'>{escape(best['name'])}</strong>"
    extreme = "lowest" if metric.better == "less" else "highest"
    mean = "mean of the " if rows["seeds"].max() > 1 else ""
    text = f"{where}{name} has the {extreme} {mean}final {escape(metric.label)}, {score(metric, best['final'])}"
    if best["winner"]:
        return f"{text}, and wins: the paired 95 % intervals of its differences to all others exclude zero."
    gaps = {
        row["name"]: differences(finals[best["label"]], finals[row["label"]]) for _, row in rows.iloc[1:].iterrows()
    }
    spans = {other: summarised(gap) for other, gap in gaps.items()}
    if all(isnan(span.low) for span in spans.values()):
        return f"{text}. With one seed there is no interval: the difference may be chance, and no winner is marked."
    equal = [escape(other) for other, span in spans.items() if not (span.low > 0 or span.high < 0)]
    word = "difference" if len(equal) == 1 else "differences"
    why = f"its {word} to {listed(equal)} may be chance" if equal else "some of its runs have no result"
    return f"{text}, but no winner is marked: {why}."


def problems(comparison: Comparison) -> Iterator[str]:
    """Lines about runs that diverged, failed, dropped clients or are not finished, and about seeds without a run."""
    for group in comparison.members:
        for seed, lost in sorted(group.lost.items()):
            how = "" if isinstance(lost, Unscored) else "diverged, " if lost.diverged else "failed, "
            yield f"{group.label}, seed {seed}: {how}not in the means: {lost.reason}"
        for seed, run in sorted(group.runs.items()):
            status = run.folder.manifest().get("status")
            if status != "done":
                yield f"{group.label}, seed {seed}: {status} after round {run.history.index[-1]}, included in the means"
            if run.dropped:
                yield f"{group.label}, seed {seed}: clients were dropped {run.dropped:,} times (log.txt names them)"
        for one in group.part_way():
            yield ", ".join(filter(None, (one.name, one.setting, "drawn, not in the means")))
        planned = sorted({*comparison.seeds, *(cell["seed"] for cell in comparison.record.get("cells", ()))})
        absent = [seed for seed in planned if not any(seed in some for some in (group.runs, group.lost, group.partial))]
        if absent:
            yield f"{group.label}: no finished run with seed {', '.join(map(str, absent))}"


def summary(comparison: Comparison, frame: pd.DataFrame) -> str:
    """The table of scores and costs with intervals, and the table of paired differences."""
    if not frame["seeds"].any():
        return "<p class='note'>No run has a result.</p>"
    shown = [name for name in (*SCORES, *COSTS) if name in frame and frame[name].notna().any()]
    heads = [_heading(comparison, name) for name in shown]
    several, one_run = len(frame) > 1, _one_run(comparison)
    heads[1:1] = [""] * several
    whole = bool((frame["rounds"].dropna() % 1 == 0).all())
    low, high = _ends(frame, "final")
    rows = []
    for place in comparison.places:
        if place:
            rows.append(f"<tr class='place'><th colspan='{len(heads) + 2}' scope='colgroup'>{escape(place)}</th></tr>")
        for _, row in frame[frame["setting"] == place].iterrows():
            name = f"<span class='winner'>{escape(row['name'])} ★</span>" if row["winner"] else escape(row["name"])
            cells = [_cell(comparison, row, column, whole) for column in shown]
            drawn = interval(row["final"], row["final_low"], row["final_high"], low, high)
            cells[1:1] = [f"<td>{drawn}</td>"] * several
            cells += [] if one_run else [f"<td>{row['seeds']}{_lost(comparison, row['label'])}</td>"]
            rows.append(f"<tr><th scope='row'>{name}</th>{''.join(cells)}</tr>")
    heads += [] if one_run else ["seeds"]
    return framed(_caption(comparison, frame), ["", *heads], rows) + _differences(comparison)


def _one_run(comparison: Comparison) -> bool:
    """Whether there is only one run, with or without a result."""
    return sum(len(group.runs) + len(group.lost) + len(group.partial) for group in comparison.members) == 1


def _lost(comparison: Comparison, label: str) -> str:
    """How many runs of a group are in no mean, and why."""
    lost = [one for group in comparison.members if group.label == label for one in group.lost.values()]
    why = ["without a score" if isinstance(one, Unscored) else "diverged" if one.diverged else "failed" for one in lost]
    return "".join(f"<small class='lost'>{count} {word}</small>" for word, count in Counter(why).items())


def _caption(comparison: Comparison, frame: pd.DataFrame) -> str:
    """The caption: what the numbers of the table are."""
    several = max(len(group.runs) for group in comparison.members) > 1
    alone = "Scores and costs of the run." if len(comparison.members) == 1 else "One seed: there are no intervals."
    lines = [INTERVALS if several else alone]
    if several and len(comparison.members) > len(comparison.places):
        lines += [WINNER, *of_few_seeds(comparison)]
    if sum(len(group.runs) for group in comparison.members) > 1:
        lines.append(SECONDS)
    if comparison.record.get("target") is not None and (frame["reached"] < frame["seeds"]).any():
        lines.append(NOT_REACHED)
    if (metric := comparison.declared()).better == "less":
        lines.append(f"Lower {metric.label} is better.")
    return " ".join(lines)


def _heading(comparison: Comparison, column: str) -> str:
    target = comparison.record.get("target")
    if column in COSTS:
        return COSTS[column].label + (f" to {target:g}" if target is not None and column in TO_TARGET else "")
    final = "final " if column == "final" else ""
    return SCORES[column] or f"{final}{comparison.column(column).label}"


def _cell(comparison: Comparison, row: pd.Series[Any], column: str, whole: bool) -> str:
    """A cell of the table. whole: whether all numbers of rounds are whole numbers."""
    small = ""
    if column in COSTS:
        if column == "rounds" and row["reached"] < row["seeds"]:
            small = f"<small>{row['reached']} of {row['seeds']} seeds</small>"
        if column == "rounds" and whole and isfinite(row[column]):
            return f"<td>{row[column]:,.0f}{small}</td>"
        return f"<td>{COSTS[column].show(row[column])}{small}</td>"
    metric = comparison.column(column)
    mean, std, low, high = (float(row[f"{column}{end}"]) for end in ("", "_std", "_low", "_high"))
    if isfinite(low):
        small = f"<small>[{metric.show(low, mean)}, {metric.show(high, mean)}]</small>"
    return f"<td>{spread(metric, mean, std)}{small}</td>"


def _differences(comparison: Comparison) -> str:
    frame, metric = comparison.differences(), comparison.declared()
    if not len(frame):
        return ""
    low, high = _ends(frame, "difference", "")
    low, high = min(low, 0.0), max(high, 0.0)
    rows = []
    for _, row in frame.iterrows():
        name = f"{row['name']} − {row['reference']}" + (f", {row['setting']}" if row["setting"] else "")
        values = [float(row[name]) for name in ("difference", "low", "high")]
        gap, *ends = (score(metric, value, largest(*values), "+") for value in values)
        span = "no interval" if isnan(row["low"]) else f"[{ends[0]}, {ends[1]}]"
        ps = "".join(f"<td>{escape(probability(row[p]))}</td>" for p in ("p", "p_holm"))
        line = interval(row["difference"], row["low"], row["high"], low, high, zero=True)
        rows.append(
            f"<tr><th scope='row'>{escape(name)}</th><td>{gap}</td><td>{span}</td>"
            f"<td>{line}</td>{ps}<td>{row['pairs']}</td></tr>"
        )
    rows.append(f"<tr class='axis'><td colspan='3'></td><td>{axis(low, high, metric)}</td><td colspan='3'></td></tr>")
    better = "positive" if metric.better == "more" else "negative"
    caption = (
        f"Paired differences of the final {metric.label} to the first method; {better} is better. Runs with the same "
        f"seed have the same split of the data and the same cohorts. p: {TESTS[comparison.record.get('test') or 't']}; "
        "p, Holm: corrected for the number of tests. All intervals are drawn on one axis; the line marks zero."
    )
    return framed(caption, ["", "difference", "95 % interval", "", "p", "p, Holm", "pairs"], rows)


def clients(comparison: Comparison) -> str:
    """The scores of the single clients: tables for each setting; of many clients, only the worst ones."""
    out, several = "", len(comparison.seeds) > 1
    for place in comparison.places:
        if rows := overview(comparison, place):
            out += _overview_table(place, rows, several)
        if (found := served(comparison, place)) is not None:
            out += _clients_table(place, found, several)
    return out


def _overview_table(place: str, rows: Sequence[Overview], several: bool) -> str:
    """One setting: a row per model, with its scores over the clients."""
    metric = rows[0].metric
    cells = [
        f"<tr><th scope='row'>{escape(one.name)}</th>"
        + "".join(f"<td>{spread(metric, each.mean, each.std)}</td>" for each in one.values.values())
        + "</tr>"
        for one in rows
    ]
    what = plain_label(metric).removeprefix("test ")
    lines = [
        f"{place}:" if place else "",
        f"{what} on the clients' own test samples: all samples together, and over the",
    ]
    lines += ["clients the mean, the standard deviation and the worst tenth."]
    lines += ["Mean ± standard deviation over the seeds."] if several else []
    caption = " ".join(line for line in lines if line)
    return framed(caption, ["", "together", "mean of the clients", "spread of the clients", "worst tenth"], cells)


def _clients_table(place: str, found: Served, several: bool) -> str:
    """One setting: a row per client, a column per method (of a single run: per score)."""
    shown, worst = found.shown(ROWS, ROWS), {column.head: column.worst() for column in found.columns}
    rows = []
    for client in shown:
        counts = "".join(f"<td>{count[client]:,.0f}</td>" for count in (found.samples, found.tested))
        cells = "".join(_client_cell(column, client, worst[column.head] == client) for column in found.columns)
        rows.append(f"<tr><th scope='row' title='{escape(client)}'>{escape(cut(client))}</th>{counts}{cells}</tr>")
    what = plain_label(found.metric) if len(found.alike()) == len(found.columns) else "Scores"
    lines = [f"{place}:" if place else "", f"{what} of each client on its own test samples."]
    lines.append(INTERVALS if several else "")
    lines.append(
        f"The {len(shown)} worst of {len(found.clients):,} clients." if len(shown) < len(found.clients) else ""
    )
    lines.append("The worst client of a column is marked.")
    caption = " ".join(line for line in lines if line)
    heads = ["client", "training samples", "test samples", *(column.head for column in found.columns)]
    return framed(f"{caption[:1].upper()}{caption[1:]}", heads, rows) + _served_worst(found)


def _client_cell(column: Column, client: str, worst: bool) -> str:
    one, metric = column.scores[client], column.metric
    low, high = max(one.low, metric.low), min(one.high, metric.high)
    small = f"<small>[{metric.show(low, one.mean)}, {metric.show(high, one.mean)}]</small>" if isfinite(one.low) else ""
    return f"<td{' class=lost' if worst else ''}>{spread(metric, one.mean, one.std)}{small}</td>"


def _served_worst(found: Served) -> str:
    """A sentence about the client with the worst mean over the columns, and about its best column."""
    if len(found.worst(2)) < 2:
        return ""
    client, metric = found.worst(1)[0], found.metric
    alike = found.alike()
    text = f"{client} is served worst: {plain_label(metric)} {metric.show(found.mean(client))}"
    if len(alike) > 1:
        best = max(alike, key=lambda column: (metric.sign * column.scores[client].mean, column.head))
        text += f" as the mean of the columns, at best {metric.show(best.scores[client].mean)} with {best.head}"
    return f"<p class='note'>{escape(text)} ({found.tested[client]:,.0f} test samples).</p>"


def configuration(comparison: Comparison) -> str:
    """The settings in which the groups differ, and the settings that they share."""
    settings, out = comparison.settings, ""
    keys = list(dict.fromkeys(key for mine in settings.differing.values() for key in mine))
    if keys:
        rows = []
        for key in keys:
            cells = "".join(
                f"<td class='text'>{escape(written(mine[key])) if key in mine else NONE}</td>"
                for mine in settings.differing.values()
            )
            rows.append(f"<tr><th scope='row'><code>{_breakable(key)}</code></th>{cells}</tr>")
        out += framed("What differs between the groups, besides the seed.", ["", *settings.differing], rows, "text")
    shared = "".join(
        f"<dt><code>{_breakable(key)}</code></dt><dd><code>{escape(written(value))}</code></dd>"
        for key, value in settings.shared.items()
    )
    what = "All settings of the run" if _one_run(comparison) else "What all runs share"
    return f"{out}<div class='card'><details><summary>{what}</summary><dl>{shared}</dl></details></div>"


def _breakable(key: str) -> str:
    """The name of a setting; the browser may break the line after each word of the name."""
    return escape(key).replace(".", ".<wbr>").replace("_", "_<wbr>")


def reproduce(comparison: Comparison) -> str:
    """Versions, times, and the commands that repeat the runs."""
    runs = [(group, seed, run) for group in comparison.members for seed, run in group.runs.items()]
    manifests = [run.folder.manifest() for _, _, run in runs]
    facts = _facts(manifests)
    seconds = [float(row["seconds"]) for _, _, run in runs for row in run.rows if "seconds" in row]
    wall = comparison.record.get("seconds")
    times = [f"{duration(sum(seconds))} in the rounds of {len(runs)} run{'s' * (len(runs) > 1)}"] if seconds else []
    facts["took"] = ", ".join([*times, *([f"{duration(wall)} from start to end"] if wall else [])])
    listed = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    whole = comparison.record.get("command") or (manifests[0].get("command") if len(runs) == 1 else None)
    command = f"<pre><code>{escape(whole)}</code></pre>" if whole else ""
    each = "\n".join(
        f"# {group.label}, seed {seed}: {os.fspath(run.path)}\n"
        + (
            manifest.get("command")
            or "# started from Python: the data, the network or the parts of the method were objects"
        )
        for (group, seed, run), manifest in zip(runs, manifests, strict=True)
    )
    several = len(runs) != 1 or not whole
    single = f"<details><summary>The command of every run</summary><pre><code>{escape(each)}</code></pre></details>"
    single = single if several else ""
    return f"<div class='card'><dl>{listed}</dl>{command}{single}</div>"


def _facts(manifests: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Versions and machines of the runs; each fact lists all its different values."""
    facts = {
        name: ", ".join(dict.fromkeys(str(manifest[name]) for manifest in manifests if name in manifest))
        for name in ("arno", "python", "torch", "numpy", "platform", "cpus", "device")
    }
    engines = [manifest["engine"] for manifest in manifests if "engine" in manifest]
    equality = [f": {engine['equality']}" if "equality" in engine else "" for engine in engines]
    facts["engine"] = "; ".join(dict.fromkeys(f"{e['name']}{how}" for e, how in zip(engines, equality, strict=True)))
    facts["data"] = ", ".join(dict.fromkeys(str(m["data_fingerprint"]) for m in manifests if "data_fingerprint" in m))
    facts["started"] = min((str(m["started"]) for m in manifests if "started" in m), default="")
    return facts


def interval(mean: float, low: float, high: float, first: float, last: float, zero: bool = False) -> str:
    """A mean and its interval as a picture on a scale from `first` to `last`; other cells hold the numbers."""
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


def axis(low: float, high: float, metric: Metric) -> str:
    """The axis below the pictures of `interval`: its ends and zero."""
    width = (high - low) or 1.0
    places = [(4 + 142 * (x - low) / width, f"{x:+.2g}" if x else "0") for x in (low, 0.0, high)]
    kept = [one for one in places if one[1] == places[1][1] or abs(one[0] - places[1][0]) > 36]
    ticks = "".join(
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='4'/><text x='{x:.1f}' y='15' text-anchor='"
        f"{'start' if x < 20 else 'end' if x > 130 else 'middle'}'>{escape(text)}</text>"
        for x, text in dict.fromkeys(kept)
    )
    return (
        f"<svg class='interval scale' viewBox='0 0 150 18' role='img' aria-label='axis from {low:.3g} to {high:.3g}'>"
        f"<line x1='4' x2='146' y1='0' y2='0'/>{ticks}</svg>"
    )


def _ends(frame: pd.DataFrame, name: str, prefix: str | None = None) -> tuple[float, float]:
    """The smallest and the largest number of a column and its intervals."""
    stem = f"{name}_" if prefix is None else prefix
    values = [float(x) for column in (name, f"{stem}low", f"{stem}high") for x in frame[column] if isfinite(x)]
    return (min(values), max(values)) if values else (0.0, 1.0)


def framed(caption: str, heads: Sequence[str], rows: Sequence[str], kind: str = "number") -> str:
    """A table in a frame that scrolls if the table is too wide. rows: the rows as HTML."""
    head = "".join(f"<th scope='col' class='{kind}'>{escape(text)}</th>" if text else "<td></td>" for text in heads)
    return (
        f"<div class='card'><p class='caption'>{escape(caption)}</p><div class='scroll' tabindex='0' role='region' "
        f"aria-label='{escape(caption)}'>{HINT}<table class='wide'><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )
