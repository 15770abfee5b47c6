"""The picture of a comparison: curves over the rounds, and the final scores with their intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pictures.figure import COLOURS, figure
from .comparison import Comparison
from .other_differences import other_differences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..core.metric import Metric


def bands(comparison: Comparison, metric: str | None = None) -> Figure:
    """One row of pictures per setting.

    Left: the mean over the seeds ± one standard deviation, for each round. Right: the final score of every seed and the
    95 % interval of the mean; the best group is at the top. The declaration of the metric gives label, range and scale.
    """
    declared = comparison.declared(metric)
    places, table = comparison.places, comparison.table(metric=declared.name)
    names = dict.fromkeys(group.name for group in comparison.members)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    tallest = max(sum(group.setting == place for group in comparison.members) for place in places)
    fig, axes = figure(len(places), 2, (11, (max(3.6, 1.6 + 0.4 * tallest)) * len(places)))
    target = comparison.record.get("target") if declared.name == comparison.metric else None
    headline = f"{declared.label}: {comparison.where}".rstrip(".")
    fig.suptitle("\n".join([headline, *other_differences(comparison)]), fontsize=11)
    for (left, right), place in zip(axes, places, strict=True):
        rows = [row for row in table.to_dict("records") if row["setting"] == place]
        for row in rows:
            _curve(left, comparison, row, declared, colours[row["name"]])
        _unfinished(left, comparison, place, declared.name, colours)
        _finals(right, comparison, rows, declared.name, colours)
        if target is not None:
            left.axhline(target, color="grey", lw=1, ls="--", label=f"target {target:g}")
            right.axvline(target, color="grey", lw=1, ls="--")
        left.set(xlabel="round", ylabel=declared.label, title=place)
        right.set(xlabel=f"final {declared.label}")
        if declared.log and all(row.get("final", 0) > 0 for row in rows):
            left.set_yscale("log")
            right.set_xscale("log")
        _tidy(left, right)
    return fig  # type: ignore[no-any-return]


def _curve(axis: Any, comparison: Comparison, row: Any, metric: Metric, colour: str) -> None:
    """The mean of a group ± one standard deviation, in the rounds that all of its seeds have."""
    frame = comparison.history
    rows = frame[(frame["label"] == row["label"]) & frame[metric.name].notna()] if metric.name in frame else None
    if rows is None or not len(rows):
        return
    seeds = rows.groupby("round")[metric.name].agg(["mean", "std", "count"])
    seeds = seeds[seeds["count"] == seeds["count"].max()]
    marker = "o" if len(seeds) <= 20 else ""
    axis.plot(seeds.index, seeds["mean"], color=colour, lw=1.6, marker=marker, ms=3, label=row["name"])
    std, ends = seeds["std"].fillna(0), (metric.low, metric.high)
    low, high = (seeds["mean"] - std).clip(*ends), (seeds["mean"] + std).clip(*ends)
    axis.fill_between(seeds.index, low, high, color=colour, alpha=0.15, lw=0)


def _unfinished(axis: Any, comparison: Comparison, place: str, metric: str, colours: dict[str, str]) -> None:
    """A dotted curve for every unfinished run."""
    for group in (group for group in comparison.members if group.setting == place):
        for one, run in zip(group.part_way(), group.partial.values(), strict=True):
            if metric in run.history:
                axis.plot(run.history[metric].dropna(), color=colours[group.name], lw=1, ls=":", label=one.name)


def _finals(axis: Any, comparison: Comparison, rows: list[Any], metric: str, colours: dict[str, str]) -> None:
    """The final score of every seed, their mean and its interval; one line per group."""
    finals = comparison.finals(metric)
    for y, row in enumerate(rows):
        values, colour = list(finals[row["label"]].values()), colours[row["name"]]
        axis.plot(values, [y + 0.16] * len(values), "o", color=colour, alpha=0.5, ms=5, mew=0)
        if len(values) > 1:
            ends = [[row["final"] - row["final_low"]], [row["final_high"] - row["final"]]]
            axis.errorbar(row["final"], y, xerr=ends, color=colour, lw=1.6, capsize=3)
        if values:
            axis.plot([row["final"]], [y], "D", color=colour, ms=5)
    names = [row["name"] + (" ★" if row["winner"] else "") for row in rows]
    axis.set_yticks(range(len(rows)), names)
    for tick, row in zip(axis.get_yticklabels(), rows, strict=True):
        tick.set(color=colours[row["name"]], fontweight="bold")
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_title("seeds, mean and 95 % interval", fontsize=9)


def _tidy(left: Any, right: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if left.lines:
        left.legend(frameon=False, fontsize=9)
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
