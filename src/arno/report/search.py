"""The search for settings as tables and pictures: the budget of each method, the chosen settings, the trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite, log10

from ..analysis.budget import unequal_searches
from ..analysis.tuning import Tuned, Tuning
from ..core.metric import Metric
from .numbers import COSTS, score
from .sections import framed
from .tables import Sheet

#: The costs of a search, and their names in its record.
SPENT = {"rounds": "rounds", "steps": "local_steps", "bytes": "uploaded_bytes", "seconds": "seconds"}
WIDTH, HEIGHT, LEFT, BELOW = 300, 150, 46, 22
#: For scores without bounds: the axis reaches from the best score at most FAR times as far as the best quarter of the
#: trials does.
FAR = 20


def sheet(tuning: Tuning) -> Sheet:
    """The table of the search, with the settings that it chose in the notes."""
    metric = tuning.metric
    places: dict[str, list[list[str]]] = {group.setting: [] for group in tuning.groups}
    for group in tuning.groups:
        scores = [score(metric, group.score), score(metric, group.middle())]
        costs = [COSTS[column].show(group.cost(name)) for column, name in SPENT.items()]
        places[group.setting].append([group.name, *scores, str(len(group.trials)), *costs])
    columns = ["best trial", "median", "trials", *(COSTS[column].label for column in SPENT)]
    notes = [sentence(tuning), *chosen(tuning), *warnings(tuning)]
    return Sheet(f"search: {metric.label} of the trials, and what all trials of a method cost", columns, places, notes)


def sentence(tuning: Tuning) -> str:
    """A text that says how the settings were chosen."""
    rounds = " or ".join(map(str, sorted(set(tuning.rounds))))
    who = "Every method" if all(group.trials for group in tuning.groups) else "Every method with settings to search"
    pruned = "; the worse half of each batch ended after a quarter of the rounds" if tuning.prune else ""
    return (
        f"{who} had {tuning.trials} trials of up to {rounds} rounds{pruned}. Settings were chosen by "
        f"{tuning.metric.label} on seed {tuning.seeds}; the search read no test data. median: of the last scores of "
        "all trials; if it is far from the best score, the method depends on its settings."
    )


def summary(tuning: Tuning) -> str:
    """One line about the search for the verdict."""
    spent = {group.cost("rounds") for group in tuning.groups}
    equal = f" ({spent.pop():,.0f} rounds each)" if len(spent) == 1 else ""
    return f"The settings of every method were searched with {tuning.trials} trials{equal}, by validation data only."


def chosen(tuning: Tuning) -> Iterator[str]:
    """The settings of the best trial of each group."""
    for group in tuning.groups:
        best = ", ".join(f"{shorter(key)} = {value}" for key, value in group.best.items())
        yield f"{group.label}: {best or 'nothing was searched, its settings were given'}."


def warnings(tuning: Tuning) -> Iterator[str]:
    """Lines about best values at the end of a range, trials without a result and unequal budgets."""
    for group in tuning.groups:
        for key, end in group.border.items():
            where = f"lies at the {end} end of {group.space[key]}"
            yield f"{group.label}: the best {shorter(key)} = {group.best[key]} {where}; search a wider range."
        diverged = sum(bool(trial.get("diverged")) for trial in group.trials)
        if diverged:
            yield f"{group.label}: {diverged} of {len(group.trials)} trials diverged."
        failed = [str(trial["lost"]) for trial in group.trials if trial["lost"] and not trial.get("diverged")]
        if failed:
            yield f"{group.label}: {len(failed)} of {len(group.trials)} trials failed; the first one: {failed[0]}"
    yield from unequal_searches(tuning)


def shorter(key: str) -> str:
    """The name of a setting without `method.`."""
    return key.removeprefix("method.")


def section(tuning: Tuning) -> str:
    """The search in the HTML report: a picture of the trials for each group and setting."""
    pictures = "".join(
        f"<figure><figcaption>{escape(group.label)}, {escape(shorter(key))}</figcaption>{_picture(tuning, group, key)}"
        "</figure>"
        for group in tuning.groups
        for key in group.space
    )
    notes = "".join(f"<p class='note'>{escape(line)}</p>" for line in (*chosen(tuning), *warnings(tuning)))
    table = sheet(tuning)
    rows = []
    for place, lines in table.places.items():
        if place:
            wide = len(table.columns) + 1
            rows.append(f"<tr class='place'><th colspan='{wide}' scope='colgroup'>{escape(place)}</th></tr>")
        for name, *cells in lines:
            rows.append(
                f"<tr><th scope='row'>{escape(name)}</th>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>"
            )
    costs = framed(f"{table.title[:1].upper()}{table.title[1:]}.", ["", *table.columns], rows)
    caption = (
        f"{sentence(tuning)} Each point is a trial: the value of the setting and the last {tuning.metric.label} of the "
        "trial. An empty circle is a trial that ended early; the ring marks the best one. Scores beyond the axis "
        "are drawn at its end."
    )
    head = f"<h2>Search for settings</h2><p class='caption'>{escape(caption)}</p>"
    return f"<section id='search'>{head}{costs}<div class='tried'>{pictures}</div>{notes}</section>"


def tried(group: Tuned, key: str) -> list[tuple[str, float, bool, bool]]:
    """The trials of a setting: its value, the last score, whether the trial ended early, whether it is the best one."""
    found = []
    for trial in group.trials:
        if trial["scores"] and key in trial["settings"]:
            last = float(trial["scores"][max(trial["scores"], key=int)])
            if isfinite(last):
                best = trial["settings"] == group.best and not trial["pruned"]
                found.append((str(trial["settings"][key]), last, bool(trial["pruned"]), best))
    return found


def _picture(tuning: Tuning, group: Tuned, key: str) -> str:
    """A picture of the trials over one setting; the pictures of all groups have the same axis of scores."""
    scores = [point[1] for each in tuning.groups for name in each.space for point in tried(each, name)]
    points = tried(group, key)
    if not points:
        return "<p class='note'>No trial has a score.</p>"
    xs, ticks = places(group.space[key], [value for value, *_ in points])
    low, high = axis(tuning.metric, scores)
    span = (high - low) or 1.0

    def across(x: float) -> float:
        return LEFT + 8 + x * (WIDTH - LEFT - 20)

    def down(y: float) -> float:
        return 8 + (1 - (min(max(y, low), high) - low) / span) * (HEIGHT - BELOW - 16)

    dots = "".join(
        f"<circle class='{'pruned' if pruned else 'full'}{' best' if best else ''}' cx='{across(x):.1f}' "
        f"cy='{down(y):.1f}' r='{6 if best else 3.5}'><title>{escape(shorter(key))} = {escape(value)}: "
        f"{escape(tuning.metric.show(y))}</title></circle>"
        for x, (value, y, pruned, best) in zip(xs, points, strict=True)
    )
    marks = "".join(
        f"<text x='{across(x):.1f}' y='{HEIGHT - 6}' text-anchor='middle'>{escape(text)}</text>" for x, text in ticks
    )
    marks += "".join(
        f"<text x='{LEFT}' y='{down(y) + 4:.1f}' text-anchor='end'>{escape(tuning.metric.show(y))}</text>"
        for y in ((low, high) if high > low else (low,))
    )
    label = f"{group.label}: {tuning.metric.label} of the trials over {shorter(key)}"
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(label)}'>{marks}{dots}</svg>"


def axis(metric: Metric, scores: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis of the scores. If the score has no bounds, values far from the others lie beyond the axis.

    >>> axis(Metric("val_rmse", "RMSE", "less", low=0), [2.0, 1.0, 1.5, 4.0, 1e15])
    (1.0, 11.0)
    """
    low, high = min(scores), max(scores)
    ranked = sorted(scores, key=lambda score: -metric.sign * score)
    room = FAR * abs(ranked[len(ranked) // 4] - ranked[0])
    if room == 0 or (isfinite(metric.low) and isfinite(metric.high)):
        return low, high
    return (low, min(high, low + room)) if metric.sign < 0 else (max(low, high - room), high)


def places(space: str, values: Sequence[str]) -> tuple[list[float], list[tuple[float, str]]]:
    """The positions of the values of a range, from 0 to 1, and the labels of the axis."""
    scale, _, inside = space.rstrip(")").partition("(")
    ends = [text.strip() for text in inside.split(",")]
    if scale == "any":
        step = 1 / max(len(ends) - 1, 1)
        at = {text: i * step for i, text in enumerate(ends)}
        return [at.get(value, 0.5) for value in values], [(x, text) for text, x in at.items()]
    low, high = (log10(float(text)) if scale == "log" else float(text) for text in ends)
    numbers = [log10(float(value)) if scale == "log" else float(value) for value in values]
    return [(x - low) / (high - low) for x in numbers], [(0.0, ends[0]), (1.0, ends[1])]
