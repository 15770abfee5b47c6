"""A comparison as tables for people: on a terminal, in Markdown, in LaTeX; the numbers themselves as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.comparison import Comparison
from ..analysis.statistics import NAN, student
from ..config.settings import written

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

MARK, NONE = "★", "–"
TESTS = {"t": "paired t test", "wilcoxon": "Wilcoxon's signed-rank test"}


@dataclass(frozen=True)
class Sheet:
    """A table of text: rows by setting, each with a name in front; what is to be said of it stands below."""

    title: str
    columns: list[str]
    places: dict[str, list[list[str]]]
    notes: list[str] = field(default_factory=list)


def sheets(comparison: Comparison) -> list[Sheet]:
    """Scores, costs and, where there is something to compare, the paired differences to the first of each setting."""
    table = comparison.table()
    out = [_scores(comparison, table), _costs(comparison, table)]
    return out + ([_differences(comparison)] if len(comparison.members) > len(comparison.places) else [])


def show(tables: Sequence[Sheet], console: Console) -> None:
    """Print the tables."""
    from rich.table import Table
    from rich.text import Text

    for sheet in tables:
        console.print(Text(sheet.title, "bold"))
        for place, rows in sheet.places.items():
            console.print(Text(place, "italic")) if place else None
            shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
            shown.add_column("", overflow="fold")
            for column in sheet.columns:
                shown.add_column(column, justify="right", no_wrap=True)
            for row in rows:
                shown.add_row(*map(Text, row))
            console.print(shown)
        for note in sheet.notes:
            console.print(note, style="dim", highlight=False, markup=False)
        console.print()


def markdown(tables: Sequence[Sheet]) -> str:
    """The tables in Markdown."""
    lines = []
    for sheet in tables:
        several = any(sheet.places)
        head = [*(["setting"] if several else []), "", *sheet.columns]
        lines += [f"**{sheet.title}**", "", _line(head), _line(["---"] * (1 + several) + ["---:"] * len(sheet.columns))]
        lines += [_line([*([place] if several else []), *row]) for place, rows in sheet.places.items() for row in rows]
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
    """`table.md`, `table.tex`, `table.csv` (every number behind them) and `differences.csv` in a folder."""
    (out / "table.md").write_text(markdown(tables))
    (out / "table.tex").write_text(latex(tables))
    comparison.table().to_csv(out / "table.csv", index=False)
    comparison.differences().to_csv(out / "differences.csv", index=False)


def spread(mean: float, std: float, digits: int = 4) -> str:
    """Mean ± standard deviation, as far as they exist.

    >>> spread(2.0, 1.414, 1), spread(2.0, float("nan"), 1), spread(float("nan"), float("nan"))
    ('2.0 ± 1.4', '2.0', '–')
    >>> spread(1.5e-7, 2e-8)
    '1.5e-07 ± 2e-08'
    """
    if isnan(mean):
        return NONE
    return number(mean, digits, mean) + ("" if isnan(std) else f" ± {number(std, digits, mean)}")


def number(value: float, digits: int, scale: float, sign: str = "") -> str:
    """A number with so many digits after the point, or with an exponent where its `scale` makes that unreadable."""
    odd = 0 < abs(scale) < 5 * 10.0**-digits or abs(scale) >= 1e7
    return f"{value:{sign}.3g}" if odd else f"{value:{sign},.{digits}f}"


def _scores(comparison: Comparison, table: pd.DataFrame) -> Sheet:
    metric = comparison.declared().label
    places: dict[str, list[list[str]]] = {place: [] for place in comparison.places}
    for row in _rows(table):
        mark = f"{MARK} " if row["winner"] else ""
        final = spread(row["final"], row["final_std"])
        between = _interval(row["final_low"], row["final_high"], row["final"])
        more = [spread(row[name], row[f"{name}_std"], 3) for name in ("best", "area")]
        places[row["setting"]].append([f"{mark}{row['name']}", final, between, *more])
    seeds = len(comparison.seeds)
    title = f"{metric}: mean ± standard deviation over {seeds} seeds" if seeds > 1 else f"{metric}: one seed"
    columns = ["final", "95 % interval", "best by val.", "area"]
    notes = ["best by val.: at the round with the best validation score. area: mean over the rounds."]
    return Sheet(title, columns, places, [*notes, *_lost(comparison), *_aside(comparison), *_few(comparison)])


def _costs(comparison: Comparison, table: pd.DataFrame) -> Sheet:
    target, known = comparison.record.get("target"), bool(table["worst_decile"].notna().any())
    places: dict[str, list[list[str]]] = {place: [] for place in comparison.places}
    for row in _rows(table):
        reached = [] if target is None else [f"{row['reached']} of {row['seeds']}"]
        spent = [spread(row[name] / unit, NAN, digits) for name, unit, digits in COSTS]
        served = [spread(row["worst_decile"], row["worst_decile_std"], 3)] if known else []
        places[row["setting"]].append([row["name"], *reached, *spent, *served])
    columns = ["rounds", "local steps", "MB sent", "seconds"]
    notes = ["seconds: of whole runs, side by side."]
    if known:
        columns.append("worst 10 %")
        notes.insert(0, "worst 10 %: final accuracy for the worst tenth of the clients.")
    if target is None:
        return Sheet("what it took, on average", columns, places, notes)
    title = f"what it took to reach {comparison.declared().label} {target:g}, on average"
    if any(row["reached"] < row["seeds"] for row in _rows(table)):
        notes.append("Runs that never reached the target are not in the means of rounds, steps and MB.")
    return Sheet(title, ["reached", *columns], places, notes)


#: What the second table tells: column, unit, digits.
COSTS = (("rounds", 1, 1), ("steps", 1, 0), ("bytes", 1e6, 2), ("seconds", 1, 1))


def _differences(comparison: Comparison) -> Sheet:
    test, frame, table = comparison.record.get("test") or "t", comparison.differences(), comparison.table()
    scales = dict(zip(table["label"], table["final"], strict=True))
    places: dict[str, list[list[str]]] = {place: [] for place in comparison.places}
    for row in _rows(frame):
        scale = scales[row["label"]]
        gap = NONE if isnan(row["difference"]) else number(row["difference"], 4, scale, "+")
        ps = [NONE if isnan(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001" for p in (row["p"], row["p_holm"])]
        between = _interval(row["low"], row["high"], scale, "+")
        places[row["setting"]].append([row["name"], gap, between, *ps, str(row["pairs"])])
    first = dict.fromkeys(row["reference"] for row in _rows(frame))
    title = f"final minus that of {', '.join(first)}, paired by seed"
    count = f"{len(frame)} test{'s' * (len(frame) > 1)}"
    tests = f"p: {TESTS[test]}, two-sided. Holm: p corrected for {count}; the intervals are not corrected."
    return Sheet(title, ["difference", "95 % interval", "p", "Holm", "pairs"], places, [tests])


def _few(comparison: Comparison) -> list[str]:
    """What so many seeds can show, and whether they show a winner."""
    n = max(len(group.runs) for group in comparison.members)
    if n < 2:
        return ["One seed: no intervals, no tests and no winner; give seed=0..4 for five."]
    lines = []
    if len(comparison.members) > len(comparison.places):
        won = "paired differences to every other have 95 % intervals on one side of 0"
        lines.append(f"{MARK}: its {won}." if comparison.winners() else f"No {MARK}: nobody's {won}.")
    if n < 10:
        least = student(n - 1) / sqrt(n)
        lines.append(f"With {n} seeds a mean difference counts beyond {least:.1f} times its standard deviation.")
    if (comparison.record.get("test") or "t") == "wilcoxon" and 2 / 2**n > 0.05:
        lines.append(f"With {n} seeds Wilcoxon's p cannot fall below {2 / 2**n:.3g}: nothing can be shown at 5 %.")
    return lines


def _lost(comparison: Comparison) -> list[str]:
    """Cells that are in no mean."""
    lines = []
    for group in comparison.members:
        for word in ("diverged", "failed"):
            seeds = [str(seed) for seed, lost in group.lost.items() if lost.diverged == (word == "diverged")]
            if seeds:
                said = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
                lines.append(f"{group.label}: {word} at {said}; its means are over {len(group.runs)} of "
                             f"{len(group.runs) + len(group.lost)} seeds.")  # fmt: skip
    return lines


def _aside(comparison: Comparison) -> list[str]:
    """Settings that a method brings along, so that nobody takes what they do for its merit."""
    differing, lines = comparison.settings.differing, dict[str, None]()
    for place in comparison.places:
        there = [g for g in comparison.members if g.setting == place and g.label in differing]
        for reference, group in ((there[0], group) for group in there[1:]):
            mine, first = differing[group.label], differing[reference.label]
            keys = [k for k in mine if not k.startswith(("method.", "engine.")) and mine[k] != first.get(k)]
            told = [f"{k.removesuffix('.kind')}={written(mine[k])}" for k in keys]
            if words := ", ".join(word for word in told if word not in group.label):
                lines[f"Unlike {reference.name}, {group.name} runs with {words}."] = None
    return list(lines)


def _interval(low: float, high: float, scale: float, sign: str = "") -> str:
    return NONE if isnan(low) else f"{number(low, 4, scale, sign)} to {number(high, 4, scale, sign)}"


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
