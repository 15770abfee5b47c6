"""A verdict as Markdown, and a list of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from ..analysis.statistics import Summary, summary
from .figure import Check, Figure
from .verdict import Verdict


def page(verdict: Verdict, command: str, notes: Sequence[str] = ()) -> str:
    """The figure, our values and the published values, and every check with its range."""
    figure = verdict.figure
    lines = [f"# {figure.name}: {verdict.word}", "", f"    {command}", "", *about(figure), "", *readings(verdict)]
    lines += ["", *checks(verdict), *(["", *notes] if notes else [])]
    return "\n".join(lines) + "\n"


def about(figure: Figure) -> list[str]:
    """Source, claim and setting."""
    lines = [f"- **Source**: {figure.source}.", f"- **Claim**: {figure.claim}", f"- **Setting**: {figure.setting}"]
    if figure.arms:
        lines.append(
            f"- **Settings of every arm**: `{' '.join(figure.run)}`; seeds {', '.join(map(str, figure.seeds))}."
        )
    return lines


def readings(verdict: Verdict) -> list[str]:
    """A table: for every arm, our mean ± standard deviation over the seeds, and the published value."""
    figure = verdict.figure
    tuned = bool(verdict.chosen)
    head = ["arm", *(one.words for one in figure.readings.values()), "published", *(["best of"] if tuned else [])]
    rows = [head, ["---"] * len(head)]
    for arm, about_arm in figure.arms.items():
        mine = [cell(summary_of(verdict.read[arm][name])) for name in figure.readings]
        row = [arm, *mine, published(about_arm.published)]
        rows.append([*row, *([f"`{verdict.chosen[arm]}`" if arm in verdict.chosen else ""] if tuned else [])])
    return ["| " + " | ".join(row) + " |" for row in rows]


def checks(verdict: Verdict) -> list[str]:
    """A table: every check, its range, the value found, whether it holds, and whether the seeds make this certain."""
    lines = ["| check | band | found | 95 % interval | |", "| --- | --- | --- | --- | --- |"]
    for one in verdict.outcomes:
        interval = f"{number(one.found.low)} to {number(one.found.high)}" if isfinite(one.found.low) else ""
        holds = "holds" if one.holds else "**does not hold**"
        holds += "" if one.certain else ", not certain"
        lines.append(f"| {one.check.says} | {band(one.check)} | {number(one.found.mean)} | {interval} | {holds} |")
    return lines


def band(check: Check) -> str:
    """The range of a check in words."""
    low, high = number(check.low), number(check.high)
    what = {"ratio": "ratio ", "difference": "difference ", "value": ""}[check.kind]
    if not isfinite(check.high):
        return f"{what}at least {low}"
    return f"{what}at most {high}" if not isfinite(check.low) else f"{what}{low} to {high}"


def summary_of(by_seed: Mapping[int, float]) -> Summary:
    """Mean and deviation over the seeds; infinite if a run diverged."""
    values = list(by_seed.values())
    return summary(values) if all(map(isfinite, values)) else Summary(len(values), sum(values))


def cell(found: Summary) -> str:
    """Mean ± standard deviation."""
    if not isfinite(found.mean):
        return "diverged"
    return number(found.mean) + (f" ± {number(found.std)}" if isfinite(found.std) else "")


def number(x: float) -> str:
    """A number with four significant digits.

    >>> number(0.12345), number(1234567.0), number(12.0)
    ('0.1235', '1.235e+06', '12')
    """
    return f"{x:.4g}"


def published(value: object) -> str:
    """The published value; empty if the publication only draws a curve."""
    return "" if value is None else str(value)
