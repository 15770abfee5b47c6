"""A comparison as tables of text: on a terminal, in Markdown, in LaTeX; and its numbers as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis import budget
from ..analysis.clients import Served, overview, plain_label, served
from ..analysis.comparison import Comparison, Lost
from ..analysis.order import Order, order
from ..analysis.other_differences import other_differences
from ..analysis.statistics import student
from ..analysis.tuning import UNTUNED, untuned
from ..core.metric import Metric
from .numbers import COSTS, NONE, cut, largest, probability, score, spread

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

MARK = "★"
#: A table of clients with at least this many columns has no standard deviations, because it would be too wide.
WIDE = 5
#: The least width of the names of rows on a terminal; longer names are wrapped.
NAME = 24
NOT_REACHED = "Runs that never reached the target are not in the means of rounds, steps and MB."
TESTS = {"t": "paired t test", "wilcoxon": "Wilcoxon's signed-rank test"}


class Unscored(Lost):
    """A run that is in no mean because it did not record the compared score."""

    __slots__ = ()


@dataclass(frozen=True)
class Sheet:
    """A table of text. places: the rows of each setting; a row begins with a name. notes: lines below the table."""

    title: str
    columns: list[str]
    places: dict[str, list[list[str]]]
    notes: list[str] = field(default_factory=list)


def sheets(comparison: Comparison) -> list[Sheet]:
    """Scores, costs, the paired differences to the first group of a setting, and the scores of the single clients."""
    table = comparison.table()
    out = [_scores(comparison, table), _costs(comparison, table)]
    out += [_differences(comparison)] if len(comparison.members) > len(comparison.places) else []
    found = order(comparison)
    out += [_order(found, comparison.declared())] if found else []
    return out + clients_of(comparison)


def clients_of(comparison: Comparison) -> list[Sheet]:
    """The scores of the single clients, one table per setting; of many clients, only the worst ones."""
    each = {place: found for place in comparison.places if (found := served(comparison, place)) is not None}
    return [*_overview(comparison), *(_clients(place, found, len(comparison.seeds)) for place, found in each.items())]


def _overview(comparison: Comparison) -> list[Sheet]:
    """The scores of the models of each group over the clients."""
    rows = {place: overview(comparison, place) for place in comparison.places}
    every = [one for some in rows.values() for one in some]
    if not every:
        return []
    metric, seeds = every[0].metric, len(comparison.seeds)
    shorter = replace(metric, digits=max(metric.digits - 1, 0))
    places = {
        place: [[one.name, *(spread(shorter, each.mean, each.std) for each in one.values.values())] for one in some]
        for place, some in rows.items()
    }
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    title = f"{plain_label(metric).removeprefix('test ')} on the clients' own test samples{over}"
    note = "together: all samples in one score. mean, spread, worst tenth: over the clients, each with its own score."
    return [Sheet(title, ["together", "mean", "spread", "worst tenth"], places, [note])]


def _clients(place: str, clients: Served, seeds: int) -> Sheet:
    """The scores of the single clients in one setting."""
    shown, columns = clients.shown(), clients.columns
    alike = len(clients.alike()) == len(columns)
    if not alike and len(columns) > WIDE:  # of each model, only the first two scores
        columns = [one for one in columns if plain_label(one.metric) in [plain_label(c.metric) for c in columns[:2]]]
    shorter = [replace(column.metric, digits=max(column.metric.digits - 1, 0)) for column in columns]
    rows = []
    for client in shown:
        scores = [column.scores[client] for column in columns]
        cells = [
            spread(short, one.mean, one.std if len(columns) < WIDE else nan)
            for short, one in zip(shorter, scores, strict=True)
        ]
        rows.append([cut(client, 24), f"{clients.tested[client]:,.0f}", *cells])
    some = "" if len(shown) == len(clients.clients) else f"; the {len(shown)} worst of {len(clients.clients):,}"
    over = "" if seeds < 2 else f", mean{' ± standard deviation' * (len(columns) < WIDE)} over {seeds} seeds"
    heads = ["tested", *(column.head for column in columns)]
    what = f"{plain_label(clients.metric)} on the client's own test samples" if alike else "scores"
    return Sheet(f"{what}, by client{some}{over}", heads, {place: rows}, ["tested: test samples of the client."])


def show(tables: Sequence[Sheet], console: Console) -> None:
    """Print the tables."""
    from rich.table import Table
    from rich.text import Text

    for sheet in tables:
        console.print(Text(sheet.title, "bold"))
        for place, rows in sheet.places.items():
            console.print(Text(place, "italic")) if place else None
            longest = min(max((len(row[0]) for row in rows), default=0), NAME)
            for some in _fitting(sheet.columns, rows, console.width - longest):
                shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
                shown.add_column("", overflow="fold", min_width=longest)
                for i in some:
                    shown.add_column(sheet.columns[i], justify="right", no_wrap=True)
                for row in rows:
                    shown.add_row(*(Text(row[i]) for i in (0, *(i + 1 for i in some))))
                console.print(shown)
        for note in sheet.notes:
            console.print(note, style="dim", highlight=False, markup=False)
        console.print()


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """The indices of the columns, in groups that fit on a line; a table that is too wide is printed in several parts.

    >>> _fitting(["a" * 20, "b" * 20, "c"], [], 45), _fitting(["a" * 99], [], 45)
    ([[0, 1], [2]], [[0]])
    """
    parts: list[list[int]] = [[]]
    left = width
    for i, column in enumerate(columns):
        needs = 2 + max(len(text) for text in (column, *(row[i + 1] for row in rows)))
        if needs > left and parts[-1]:
            parts.append([])
            left = width
        parts[-1].append(i)
        left -= needs
    return parts


def markdown(tables: Sequence[Sheet]) -> str:
    """The tables in Markdown."""
    lines = []
    for sheet in tables:
        several = any(sheet.places)
        head = [*(["setting"] if several else []), "", *sheet.columns]
        lines += [f"**{sheet.title}**", "", _line(head), _line(["---"] * (1 + several) + ["---:"] * len(sheet.columns))]
        for place, rows in sheet.places.items():
            lines += [_line([*([place] if several else []), name.replace("|", r"\|"), *row]) for name, *row in rows]
        lines += ["", *(line for note in sheet.notes for line in (note, ""))]
    return "\n".join(lines)


def latex(tables: Sequence[Sheet]) -> str:
    r"""The tables in LaTeX, for \usepackage{booktabs}."""
    lines = []
    for sheet in tables:
        lines += [r"\begin{table}", r"\centering", rf"\caption{{{_tex(sheet.title)}.}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}", r"\toprule"]
        lines += [" & ".join(["", *map(_tex, sheet.columns)]) + r" \\"]
        for place, rows in sheet.places.items():
            lines += [r"\midrule"]
            if place:
                lines += [rf"\multicolumn{{{1 + len(sheet.columns)}}}{{l}}{{\emph{{{_tex(place)}}}}} \\"]
            lines += [" & ".join(map(_tex, row)) + r" \\" for row in rows]
        lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\small {_tex(note)}" for note in sheet.notes)]
        lines += [r"\end{table}", ""]
    return "\n".join(lines)


def write(comparison: Comparison, tables: Sequence[Sheet], out: Path) -> None:
    """Write `table.md` and `table.tex`, and with all digits `table.csv`, `differences.csv` and `client_scores.csv`."""
    (out / "table.md").write_text(markdown(tables))
    (out / "table.tex").write_text(latex(tables))
    comparison.table().to_csv(out / "table.csv", index=False)
    comparison.differences().to_csv(out / "differences.csv", index=False)
    if len(clients := comparison.client_scores()):
        clients.to_csv(out / "client_scores.csv", index=False)


def _scores(comparison: Comparison, table: pd.DataFrame) -> Sheet:
    metric = comparison.declared()
    shorter = replace(metric, digits=max(metric.digits - 1, 0))
    places: dict[str, list[list[str]]] = {place: [] for place in comparison.places}
    for row in _rows(table):
        mark = f"{MARK} " if row["winner"] else ""
        final = spread(metric, row["final"], row["final_std"])
        between = _interval(metric, row["final_low"], row["final_high"], row["final"])
        more = [spread(shorter, row[name], row[f"{name}_std"]) for name in ("best", "area")]
        places[row["setting"]].append([f"{mark}{row['name']}", final, between, *more])
    seeds = len(comparison.seeds)
    title = metric.label + (", lower is better" if metric.better == "less" else "")
    title += f": mean ± standard deviation over {seeds} seeds" if seeds > 1 else ": one seed"
    columns = ["final", "95 % interval", "best by val.", "area"]
    notes = ["best by val.: at the round with the best validation score. area: mean over the rounds."]
    notes += [
        *_lost(comparison),
        *other_differences(comparison),
        *of_global_models(comparison),
        *budget.unequal(comparison),
    ]
    notes += [UNTUNED] if untuned(comparison) else []
    return Sheet(title, columns, places, [*notes, *_evidence(comparison)])


def _costs(comparison: Comparison, table: pd.DataFrame) -> Sheet:
    target, known = comparison.record.get("target"), bool(table["worst_decile"].notna().any())
    worst = comparison.column("worst_decile")
    shorter = replace(worst, digits=max(worst.digits - 1, 0))
    places: dict[str, list[list[str]]] = {place: [] for place in comparison.places}
    for row in _rows(table):
        reached = [] if target is None else [f"{row['reached']} of {row['seeds']}"]
        spent = [cost.show(row[name]) for name, cost in COSTS.items()]
        served = [spread(shorter, row["worst_decile"], row["worst_decile_std"])] if known else []
        places[row["setting"]].append([row["name"], *reached, *spent, *served])
    columns = [cost.label for cost in COSTS.values()]
    notes = ["wall seconds: of whole runs, on cores that several runs shared."]
    if known:
        columns.append("worst 10 %")
        notes.insert(0, f"worst 10 %: final {worst.label}.")
    if target is None:
        return Sheet("cost of a run, mean over the seeds", columns, places, notes)
    title = f"cost to reach {comparison.declared().label} {target:g}, mean over the seeds"
    if any(row["reached"] < row["seeds"] for row in _rows(table)):
        notes.append(NOT_REACHED)
    return Sheet(title, ["reached", *columns], places, notes)


def _differences(comparison: Comparison) -> Sheet:
    test, metric = comparison.record.get("test") or "t", comparison.declared()
    frame = comparison.differences()
    places: dict[str, list[list[str]]] = {place: [] for place in comparison.places}
    for row in _rows(frame):
        scale = largest(row["difference"], row["low"], row["high"])
        gap = score(metric, row["difference"], scale, "+")
        between = _interval(metric, row["low"], row["high"], scale, "+")
        ps = [probability(p) for p in (row["p"], row["p_holm"])]
        places[row["setting"]].append([row["name"], gap, between, *ps, str(row["pairs"])])
    first = dict.fromkeys(row["reference"] for row in _rows(frame))
    title = f"final minus that of {', '.join(first)}, paired by seed"
    count = f"{len(frame)} test{'s' * (len(frame) > 1)}"
    tests = f"p: {TESTS[test]}, two-sided. Holm: p corrected for {count}; the intervals are not corrected."
    return Sheet(title, ["difference", "95 % interval", "p", "Holm", "pairs"], places, [tests])


def _order(found: Order, metric: Metric) -> Sheet:
    """The rank of each method in each setting."""
    rows = [[name, *map(str, found.ranks[name])] for name in found.names]
    title = f"rank by the mean final {metric.label}, setting by setting"
    return Sheet(title, list(found.places), {"": rows}, [found.sentence()])


def _evidence(comparison: Comparison) -> list[str]:
    """Lines about what this number of seeds can show, and whether there is a winner."""
    if max(len(group.runs) for group in comparison.members) < 2:
        return ["One seed: no intervals, no tests and no winner; give seed=0..4 for five."]
    lines = []
    if len(comparison.members) > len(comparison.places):
        rule = "paired differences to all others have 95 % intervals that exclude 0"
        lines.append(f"{MARK}: its {rule}." if comparison.winners() else f"No {MARK}: no group's {rule}.")
    return lines + of_few_seeds(comparison)


def of_few_seeds(comparison: Comparison) -> list[str]:
    """Lines about what a few seeds can show; none for one seed, and for many seeds."""
    n, lines = max(len(group.runs) for group in comparison.members), []
    if 2 <= n < 10:
        least = student(n - 1) / sqrt(n)
        lines.append(f"With {n} seeds, an interval excludes 0 if the mean is beyond {least:.1f} standard deviations.")
    if n > 1 and (comparison.record.get("test") or "t") == "wilcoxon" and 2 / 2**n > 0.05:
        lines.append(f"With {n} seeds, Wilcoxon's p is at least {2 / 2**n:.3g}: it can show nothing at 5 %.")
    return lines


def _lost(comparison: Comparison) -> list[str]:
    """Lines about runs that are in no mean, and about runs in which clients were dropped."""
    lines = []
    for group in comparison.members:
        for word in ("diverged", "failed"):
            lost = {seed: one for seed, one in group.lost.items() if not isinstance(one, Unscored)}
            seeds = [str(seed) for seed, one in lost.items() if one.diverged == (word == "diverged")]
            if seeds:
                which = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
                counted = f"{len(group.runs)} of {len(group.runs) + len(group.lost)} seeds"
                lines.append(f"{group.label}: {word} at {which}; its means are over {counted}.")
        if without := {seed: run.dropped for seed, run in group.runs.items() if run.dropped}:
            which = f"seed{'s' * (len(without) > 1)} {', '.join(map(str, without))}"
            lines.append(f"{group.label}: clients were dropped {sum(without.values()):,} times at {which}.")
    return lines


def of_global_models(comparison: Comparison) -> list[str]:
    """A line that says which methods have personal models, if the compared scores are those of the global models."""
    compared = comparison.declared()
    personal = [
        metric
        for metric in comparison.metrics.values()
        if metric.name.startswith("personal_") and not metric.clients and metric.name != compared.name
    ]
    if not personal or compared.name.startswith("personal_"):
        return []
    named = dict.fromkeys(
        g.name for g in comparison.members if any(personal[0].name in run.rows[-1] for run in g.begun)
    )
    if not named:
        return []
    have = "has personal models" if len(named) == 1 else "have personal models"
    which = f"these scores are those of the global model, {personal[0].name} are those of the personal ones"
    return [f"{', '.join(named)} {have}: {which}."]


def _interval(metric: Metric, low: float, high: float, scale: float, sign: str = "") -> str:
    return NONE if isnan(low) else f"{metric.show(low, scale, sign)} to {metric.show(high, scale, sign)}"


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def _line(words: list[str]) -> str:
    return f"| {' | '.join(words)} |"


def _tex(text: str) -> str:
    for plain, drawn in (("\\", r"\textbackslash "), ("%", r"\%"), ("_", r"\_"), ("&", r"\&"), ("#", r"\#")):
        text = text.replace(plain, drawn)
    for plain, drawn in (("±", r"$\pm$"), (MARK, r"$\star$"), (NONE, "--"), ("−", "$-$"), ("<", "$<$")):
        text = text.replace(plain, drawn)
    return text
