"""What a comparison looks like: its runs' records as panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.metric import Metric
from ..panels import Chart, HeatMap, Line, Panel, band, over_seeds
from ..pictures.draw import drawn

if TYPE_CHECKING:
    import pandas as pd

    from ..analysis.comparison import Group
    from ..runs.result import RunResult

AXES = {
    "round": "round",
    "local_steps": "local steps",
    "uploaded_bytes": "uploaded bytes",
    "parallel_seconds": "idealised parallel seconds",
}
#: The accuracy that so many percent of the clients do not exceed, as classification records it.
DECILES = {q: f"client_accuracy_p{q}" for q in range(0, 101, 10)}
MOST = 400  # points of a curve; cells of a heat map along one side are a quarter of it


@dataclass(frozen=True)
class Curves:
    """Every score against every axis: one entry of `lines` per group, its numbers by name, in rounds all seeds have."""

    metrics: Mapping[str, Metric]
    axes: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]

    def chart(self, metric: str, axis: str) -> Chart:
        """One of the pictures."""
        lines = []
        for line in self.lines:
            score = line["y"].get(metric, {"y": [], "low": [], "high": []})
            kept = [i for i, y in enumerate(score["y"]) if y is not None]
            x = [line["x"][axis][i] for i in kept]
            mean, low, high = ([score[k][i] for i in kept if score[k]] for k in ("y", "low", "high"))
            lines.append(Line(line["name"], x, mean, low, high))
        return Chart("", "", lines, self.axes[axis], self.metrics[metric].label, self.metrics[metric].log)


def curves(groups: Sequence[Group]) -> Curves:
    """The scores of groups, mean and standard deviation over the seeds; x is the seeds' mean at the same round."""
    lines, declared = [], dict[str, Metric]()
    for group in groups:
        runs = [run.history.assign(parallel_seconds=parallel_seconds(run)) for run in group.runs.values()]
        if not runs:
            continue
        known = {metric.name: metric for run in group.runs.values() for metric in run.metrics}
        scores = [name for name in known if all(name in run for run in runs)]
        declared |= {name: known[name] for name in scores}
        rounds = _thin(_common([set(run.index) for run in runs]), runs, scores)
        x = {axis: _mean([run[axis].reindex(rounds) for run in runs]) for axis in AXES if axis != "round"}
        y = {}
        for name in scores:
            found = band("", [dict(run[name].dropna().items()) for run in runs])
            at = {t: i for i, t in enumerate(found.x)}
            y[name] = {
                part: [values[at[t]] if t in at else None for t in rounds] if len(values) else []
                for part, values in (("y", found.y), ("low", found.low), ("high", found.high))
            }
        lines.append({"name": group.name, "x": {"round": rounds} | x, "y": y})
    return Curves(declared, AXES, lines)


def parallel_seconds(run: RunResult) -> pd.Series:
    """What the rounds so far would have taken if clients that can train at once had: the longest client of each round.

    Clients with a `rank` train one after the other: their seconds add up.
    """
    clients = run.clients
    if "seconds" not in clients:
        return run.history["seconds"] * float("nan")
    by_round = clients.groupby("round")["seconds"]
    taken = by_round.max()
    if "rank" in clients:
        ranked = clients["rank"].gt(0).groupby(clients["round"]).any()
        taken = taken.where(~ranked, by_round.sum())
    return taken.reindex(run.history.index, fill_value=0.0).cumsum()


def by_section(groups: Sequence[Group]) -> tuple[dict[str, list[Panel]], list[str]]:
    """Every panel with something to see, by section of the report; and what went wrong with the methods' own."""
    own, wrong = of_methods(groups)
    clients = [*holdings(groups), *served(groups), *selection(groups)]
    sections = {"clients": clients, "drift": drift(groups), "methods": own}
    return {name: [panel for panel in some if drawn(panel)] for name, some in sections.items()}, wrong


def drift(groups: Sequence[Group]) -> list[Panel]:
    """Norms and cosines of the clients' updates over the rounds."""
    norm = "Mean over the cohort of ‖Δ_k‖, how far a client moves in a round."
    cosine = (
        "Mean over the cohort of the cosine between a client's update and the weighted mean of the others' "
        "that were aggregated with it: 1, all pull the same way; 0, they are unrelated; below, they disagree."
    )
    return [
        Chart("Norm of the updates", norm, _per_round(groups, "delta_norm"), y="‖Δ_k‖"),
        Chart("Agreement of the updates", cosine, _per_round(groups, "delta_cosine"), y="cosine"),
    ]


def holdings(groups: Sequence[Group]) -> list[Panel]:
    """Who holds how much of which class, in the first run that noted it."""
    for seed, run in ((seed, run) for group in groups for seed, run in sorted(group.runs.items())):
        if (counts := run.counts) is None:
            continue
        n = len(counts)
        shown = range(0, n, -(-n // (MOST // 4)))
        share = counts / counts.sum(1, keepdims=True).clip(1)
        skew = float(abs(share - counts.sum(0) / counts.sum()).sum(1).mean() / 2)
        some = "" if len(shown) == n else f" Every {shown.step}th of {n:,} clients is shown."
        text = (
            f"Samples of each class at each client, seed {seed}. On average {skew:.0%} of a client's samples would "
            f"have to change their class for it to look like all data together.{some}"
        )
        rows, columns = [str(c) for c in range(counts.shape[1])][::-1], [str(k) for k in shown]
        cells = counts[shown].T[::-1].tolist()
        return [HeatMap("Who holds what", text, cells, rows, columns, "client", "class", "samples", root=True)]
    return []


def served(groups: Sequence[Group]) -> list[Panel]:
    """How accuracy spreads over the clients after the last evaluation."""
    lines = []
    for group in groups:
        runs = [run.history for run in group.runs.values() if DECILES[0] in run.history]
        last = [run.dropna(subset=[DECILES[0]]).iloc[-1] for run in runs]
        lines.append(band(group.name, [{q: float(row[name]) for q, name in DECILES.items()} for row in last]))
    text = (
        "Accuracy of the last model on test data with each client's mix of labels, from the worst client (0 %) to the "
        "best (100 %); a flat curve serves all alike."
    )
    return [Chart("How well each client is served", text, lines, "share of the clients, %", "accuracy")]


def selection(groups: Sequence[Group]) -> list[Panel]:
    """In how many of the rounds each client took part, the most frequent first."""
    lines = []
    for group in groups:
        shares, n = [], next(iter(group.runs.values())).config["clients"]
        for run in group.runs.values():
            seen = run.clients[["round", "client"]].drop_duplicates()
            rounds = max(1, seen["round"].nunique())
            took = [count / rounds for count in seen["client"].value_counts()]  # the most frequent first
            ordered = took + [0.0] * (n - len(took))
            shares.append({i + 1: ordered[i] for i in _evenly(range(n))})
        lines.append(band(group.name, shares))
    if all(y == 1 for line in lines for y in line.y):
        return []
    if len(lines) > 1 and all((line.x, line.y) == (lines[0].x, lines[0].y) for line in lines):
        lines = [Line("all alike", lines[0].x, lines[0].y, lines[0].low, lines[0].high)]
    text = "The share of rounds in which a client took part, the most frequent client first."
    return [Chart("Who takes part", text, lines, "clients, most frequent first", "share of rounds")]


def of_methods(groups: Sequence[Group]) -> tuple[list[Panel], list[str]]:
    """The panels that the runs of a method wrote, over the seeds; and which groups lack some."""
    found: list[Panel] = []
    notes: list[str] = []
    for group in groups:
        each = [run.folder.panels() for run in group.runs.values()]
        written = [panels for panels in each if panels is not None]
        if len(written) < len(each):
            notes.append(f"{group.name}: some of its runs wrote no panels (they are unfinished or of an older release)")
        merged = [over_seeds(same) for same in zip(*written, strict=False)]
        found += [replace(panel, title=f"{group.name}: {panel.title}") for panel in merged]
    return found, notes


def _per_round(groups: Sequence[Group], column: str) -> list[Line]:
    lines = []
    for group in groups:
        known = [run.clients for run in group.runs.values() if column in run.clients]
        means = [clients.groupby("round")[column].mean().dropna() for clients in known]
        each = [dict(zip(_evenly(mean.index.tolist()), _evenly(mean.tolist()), strict=True)) for mean in means]
        lines.append(band(group.name, each))
    return lines


def _common(sets: Sequence[set[int]]) -> list[int]:
    return sorted(set.intersection(*sets))


def _thin(rounds: Sequence[int], runs: Sequence[pd.DataFrame], scores: Sequence[str]) -> list[int]:
    """At most so many rounds, those with scores rather than others, the last always."""
    if len(rounds) > MOST:
        tested = [name for name in scores if name != "train_loss"]
        scored = set(runs[0].dropna(subset=tested[:1]).index) if tested else set(rounds)
        rounds = [t for t in rounds if t in scored] or rounds
    return list(_evenly(rounds))


def _evenly(values: Sequence[Any]) -> list[Any]:
    step = -(-len(values) // MOST) or 1
    kept = list(values[::-1][::step])  # from the end: the last one always is kept
    return kept[::-1]


def _mean(columns: Sequence[pd.Series]) -> list[float | None]:
    means = (sum(values) / len(values) for values in zip(*(column.tolist() for column in columns), strict=True))
    return [None if mean != mean else mean for mean in means]
