"""The picture of a comparison: curves over the rounds, and how far the seeds tell the groups apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pictures.figure import COLOURS, figure
from .comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bands(comparison: Comparison, metric: str | None = None) -> Figure:
    """A row per setting: the mean over the seeds ± one standard deviation against the rounds; every seed's final
    score with the 95 % interval of their mean, best first.
    """
    from matplotlib.ticker import MaxNLocator

    metric = metric or comparison.metric
    places, table = comparison.places, comparison.table(metric=metric)
    colours = {
        g.name: COLOURS[i % len(COLOURS)] for i, g in enumerate({g.name: g for g in comparison.members}.values())
    }
    tallest = max(sum(group.setting == place for group in comparison.members) for place in places)
    fig, axes = figure(len(places), 2, (11, (max(3.6, 1.6 + 0.4 * tallest)) * len(places)))
    declared = comparison.declared(metric)
    label = declared.label
    target = comparison.record.get("target") if metric == comparison.metric else None
    fig.suptitle(f"{label}: {comparison.where}".rstrip("."), fontsize=11)
    for (left, right), place in zip(axes, places, strict=True):
        rows = [row for row in table.to_dict("records") if row["setting"] == place]
        for row in rows:
            _curve(left, comparison, row, metric, colours[row["name"]])
        for group in (group for group in comparison.members if group.setting == place):
            for one, run in zip(group.part_way(), group.partial.values(), strict=True):
                if metric in run.history:
                    left.plot(run.history[metric].dropna(), color=colours[group.name], lw=1, ls=":", label=one.name)
        _finals(right, comparison, rows, metric, colours)
        if target is not None:
            left.axhline(target, color="grey", lw=1, ls="--", label=f"target {target:g}")
            right.axvline(target, color="grey", lw=1, ls="--")
        left.set(xlabel="round", ylabel=label, title=place)
        right.set(xlabel=f"final {label}")
        if declared.better == "less" and all(row.get("final", 0) > 0 for row in rows):
            left.set_yscale("log")
            right.set_xscale("log")
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if left.lines:
            left.legend(frameon=False, fontsize=9)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return fig  # type: ignore[no-any-return]


def _curve(axis: Any, comparison: Comparison, row: Any, metric: str, colour: str) -> None:
    frame = comparison.history
    rows = frame[(frame["label"] == row["label"]) & frame[metric].notna()] if metric in frame else None
    if rows is None or not len(rows):
        return
    seeds = rows.groupby("round")[metric].agg(["mean", "std", "count"])
    seeds = seeds[seeds["count"] == seeds["count"].max()]  # some may have ended early
    marker = "o" if len(seeds) <= 20 else ""
    axis.plot(seeds.index, seeds["mean"], color=colour, lw=1.6, marker=marker, ms=3, label=row["name"])
    low, high = seeds["mean"] - seeds["std"].fillna(0), seeds["mean"] + seeds["std"].fillna(0)
    declared = comparison.declared(metric)
    ends = (declared.low, declared.high)
    axis.fill_between(seeds.index, low.clip(*ends), high.clip(*ends), color=colour, alpha=0.15, lw=0)


def _finals(axis: Any, comparison: Comparison, rows: list[Any], metric: str, colours: dict[str, str]) -> None:
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
