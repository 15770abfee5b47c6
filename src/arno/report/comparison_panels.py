"""The pictures of a comparison as panels, computed from the records of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..analysis.clients import MANY, plain_label
from ..core.metric import DECILES, TRAIN_LOSS, Metric
from ..errors import ArnoError
from ..pictures.draw import drawn
from ..pictures.panel_types import Chart, HeatMap, Line, Panel, band, over_seeds
from .numbers import cut

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
#: The most characters of the names of clients and classes.
NAME = 24
#: The largest number of points of a curve; a heat map has at most a quarter as many columns.
MOST = 400
#: The most clients of a run for which their participation is drawn.
MOST_CLIENTS = 10**8


@dataclass(frozen=True)
class Curves:
    """The curves of all scores over all axes.

    metrics: the recorded scores by name. axes: the label of each x axis by name. lines: one mapping per group with its
    name, its x by axis and its y, low and high by metric, in the rounds that all seeds of the group have.
    """

    metrics: Mapping[str, Metric]
    axes: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]

    def chart(self, metric: str, axis: str) -> Chart:
        """The picture of one score over one axis."""
        lines = []
        for line in self.lines:
            score = line["y"].get(metric, {"y": [], "low": [], "high": []})
            kept = [i for i, y in enumerate(score["y"]) if y is not None and line["x"][axis][i] is not None]
            x = [line["x"][axis][i] for i in kept]
            mean, low, high = ([score[k][i] for i in kept if score[k]] for k in ("y", "low", "high"))
            lines.append(Line(line["name"], x, mean, low, high))
        return Chart.of(self.metrics[metric], "", "", lines, self.axes[axis])


@dataclass(frozen=True)
class Section:
    """A section of the report: its panels, and notes on what is missing."""

    panels: Sequence[Panel]
    notes: Sequence[str] = field(default_factory=list)


def curves(groups: Sequence[Group], parallel: bool = True) -> Curves:
    """The scores of groups: mean ± standard deviation over the seeds. x is the mean over the seeds in the same round.

    parallel: whether the axes include idealised parallel seconds; for these, the rows of all clients are read.
    """
    lines, declared = list[dict[str, Any]](), dict[str, Metric]()
    for group in (group for group in groups if group.runs):
        known = {metric.name: metric for run in group.runs.values() for metric in run.metrics}
        runs = [run.history for run in group.runs.values()]
        if parallel:
            runs = [run.history.assign(parallel_seconds=parallel_seconds(run)) for run in group.runs.values()]
        scores = [name for name in known if all(name in run for run in runs)]
        declared |= {name: known[name] for name in scores}
        rounds = _thin(sorted(set.intersection(*(set(run.index) for run in runs))), runs, scores)
        x = {axis: _mean(axis, runs, rounds) for axis in AXES if axis != "round"}
        y = {name: _band(name, runs, rounds) for name in scores}
        lines.append({"name": group.name, "x": {"round": rounds} | x, "y": y})
    known_axes = {axis for line in lines for axis, x in line["x"].items() if any(at is not None for at in x)}
    return Curves(declared, {axis: label for axis, label in AXES.items() if axis in known_axes}, lines)


def parallel_seconds(run: RunResult) -> pd.Series:
    """After each round, the seconds of the slowest client of every round so far, summed.

    Clients with a `rank` train one after the other: for such a round, the seconds of all clients are added.
    """
    clients = run.clients
    if "seconds" not in clients:
        return run.history.index.to_series() * float("nan")
    by_round = clients.groupby("round")["seconds"]
    taken = by_round.max()
    if "rank" in clients:
        ranked = clients["rank"].gt(0).groupby(clients["round"]).any()
        taken = taken.where(~ranked, by_round.sum())
    return taken.reindex(run.history.index, fill_value=0.0).cumsum()


def sections(groups: Sequence[Group]) -> dict[str, Section]:
    """The panels of groups by section of the report; panels without data are left out."""
    found = {"clients": clients(groups), "drift": drift(groups), "methods": of_methods(groups)}
    return {name: replace(one, panels=[panel for panel in one.panels if drawn(panel)]) for name, one in found.items()}


def clients(groups: Sequence[Group]) -> Section:
    """Which client holds which classes, how the scores differ between clients, and how often each client takes part."""
    runs = [run for group in groups for run in group.runs.values()]
    each = {metric.name: metric for run in runs for metric in run.metrics if metric.clients == "deciles"}
    held, scores, part = holdings(groups), [per_client(groups, metric) for metric in each.values()], selection(groups)
    own = own_scores(groups)
    notes = []
    if each and not held:  # single clients are scored by their labels
        notes.append("The classes of the clients are not in these runs. `arno data show` draws them.")
    for metric, chart in zip(each.values(), scores, strict=True):
        if not drawn(chart):
            notes.append(f"The {metric.label} of single clients was not recorded. Set eval.clients=true to record it.")
    if not part and runs and all(len(run.clients) for run in runs):
        notes.append("Every client took part in every round.")
    return Section([*held, *own, *scores, *part], notes)


def drift(groups: Sequence[Group]) -> Section:
    """Norms and cosines of the clients' updates over the rounds."""
    norm = "Mean over the cohort of ‖Δ_k‖, the distance that client k moves in a round."
    cosine = (
        "Mean over the cohort of the cosine between the update of a client and the weighted mean of the other updates "
        "that were aggregated with it. 1: all clients move in the same direction; 0: their directions are unrelated; "
        "below 0: they oppose each other."
    )
    norms, cosines = _per_round(groups, "delta_norm"), _per_round(groups, "delta_cosine")
    panels = [Chart("Norm of the updates", norm, norms, y="‖Δ_k‖", low=0)]
    most, compared = (max((len(line.x) for line in lines), default=0) for lines in (norms, cosines))
    if most > compared == 1:
        alone = "in the others, the clients trained one after the other, or alone"
        return Section(panels, [f"Only the updates of one round can be compared with each other: {alone}."])
    panels.append(Chart("Agreement of the updates", cosine, cosines, y="cosine", low=-1, high=1))
    known = any(drawn(panel) for panel in panels)
    return Section(panels, [] if known else ["The updates of the clients are not in the records of these runs."])


def holdings(groups: Sequence[Group]) -> list[Panel]:
    """How many samples of each class each client holds, in the first run that recorded these numbers."""
    for seed, run in ((seed, run) for group in groups for seed, run in sorted(group.runs.items())):
        if (counts := run.counts) is None:
            continue
        n = len(counts)
        shown = range(0, n, -(-n // (MOST // 4)))
        share = counts / counts.sum(1, keepdims=True).clip(1)
        skew = float(abs(share - counts.sum(0) / counts.sum()).sum(1).mean() / 2)
        some = "" if len(shown) == n else f" The picture shows every {shown.step}th of {n:,} clients."
        text = (
            f"Samples of each class at each client, seed {seed}. On average, {skew:.0%} of a client's samples would "
            f"have to change their class so that the client has the class frequencies of all data.{some}"
        )
        manifest = run.folder.manifest()
        names, classes = (manifest.get(kind) or [] for kind in ("clients", "classes"))
        rows = [cut(str(classes[c]), NAME) if c < len(classes) else str(c) for c in range(counts.shape[1])][::-1]
        columns = [cut(str(names[k]), NAME) if k < len(names) else str(k) for k in shown]
        cells = counts[shown].T[::-1].tolist()
        return [HeatMap("Classes of the clients", text, cells, rows, columns, "client", "class", "samples", root=True)]
    return []


def per_client(groups: Sequence[Group], metric: Metric) -> Panel:
    """The deciles over the clients of a score, after the last evaluation that recorded them."""
    columns, lines = {q: metric.decile(q) for q in DECILES}, []
    for group in groups:
        runs = [run.history for run in group.runs.values() if columns[0] in run.history]
        last = [run.dropna(subset=[columns[0]]).iloc[-1] for run in runs]
        lines.append(band(group.name, [{q: float(row[name]) for q, name in columns.items()} for row in last]))
    text = (
        f"The {metric.label} of the last model for each client, from the lowest (0 %) to the highest (100 %). The "
        "flatter the curve, the smaller the differences between clients."
    )
    title = f"{metric.label[:1].upper()}{metric.label[1:]} of the clients"
    return Chart.of(metric, title, text, lines, "share of the clients, %")


def own_scores(groups: Sequence[Group]) -> list[Panel]:
    """The first score on the clients' own test samples after the last round, from the worst client to the best one.

    Nothing for a few clients with names: a table shows all of them.
    """
    lines, found = list[Line](), list[Metric]()
    for group in groups:
        for prefix, model in (("own", ""), ("personal", ", personal models")):
            curves = []
            for run in group.runs.values():
                frame = run.client_scores()
                if "name" in frame and len(frame) <= MANY:
                    return []
                own = [metric for metric in run.metrics if metric.name in frame and metric.name.startswith(prefix)]
                found += own[:1]
                curves += [_worst_first(frame[metric.name], metric) for metric in own[:1]]
            lines += [band(f"{group.name}{model}", curves)] if curves else []
    if not found:
        return []
    text = "The score of each client after the last round, from the worst client (0 %) to the best (100 %)."
    title = f"{plain_label(found[0])} of the clients on their own test samples"
    return [Chart.of(found[0], title, text, lines, "share of the clients, %")]


def _worst_first(scores: pd.Series, metric: Metric) -> dict[float, float]:
    """Scores, ordered from the worst to the best, by the share in percent of the clients with a worse score."""
    ordered = sorted(scores.dropna(), key=lambda score: metric.sign * score)
    each = [(100 * i / max(len(ordered) - 1, 1), float(score)) for i, score in enumerate(ordered)]
    return dict(_evenly(each))


def selection(groups: Sequence[Group]) -> list[Panel]:
    """The share of the rounds in which each client took part; nothing if every client took part in every round."""
    lines = []
    for group in groups:
        shares = []
        for run in (run for run in group.runs.values() if len(run.clients)):
            seen = run.clients[["round", "client"]].drop_duplicates()
            n = run.config["clients"] or run.folder.manifest()["client_count"]
            if type(n) is not int or n > MOST_CLIENTS:
                rule = f"it must be a whole number, at most {MOST_CLIENTS:,}"
                raise ArnoError(f"{run.path}: clients = {n}", rule, f"arno repair {run.path}")
            rounds = seen["round"].nunique()
            took = [count / rounds for count in seen["client"].value_counts()]  # the most frequent client first
            ordered = took + [0.0] * (n - len(took))
            shares.append({i + 1: ordered[i] for i in _evenly(range(n))})
        lines.append(band(group.name, shares))
    if all(y == 1 for line in lines for y in line.y):
        return []
    if len(lines) > 1 and all((line.x, line.y) == (lines[0].x, lines[0].y) for line in lines):
        lines = [replace(lines[0], name="all groups")]
    text = "The share of the rounds in which a client took part, beginning with the client that took part most often."
    x, y = "clients, most frequent first", "share of rounds"
    return [Chart("Participation of the clients", text, lines, x, y, low=0, high=1)]


def of_methods(groups: Sequence[Group]) -> Section:
    """The panels that the methods wrote into the folders of their runs, over the seeds."""
    found: list[Panel] = []
    notes: list[str] = []
    for group in groups:
        each = [run.folder.panels() for run in group.runs.values()]
        by_title: dict[str, list[Panel]] = {}
        for panel in (panel for panels in each for panel in panels or ()):
            by_title.setdefault(panel.title, []).append(panel)
        found += [replace(over_seeds(same), title=f"{group.name}: {title}") for title, same in by_title.items()]
        if (missing := each.count(None)) > 0:
            why = "they are not finished, or an earlier release of Arno wrote them"
            notes.append(f"{group.name}: the panels of {missing} of {len(each)} runs were not recorded ({why}).")
    if not any(map(drawn, found)) and not notes:
        notes.append("None of these methods has panels.")
    return Section(found, notes)


def _per_round(groups: Sequence[Group], column: str) -> list[Line]:
    """The mean over the cohort of a column of the clients' records, for every round."""
    lines = []
    for group in groups:
        known = [run.clients for run in group.runs.values() if column in run.clients]
        means = [clients.groupby("round")[column].mean().dropna() for clients in known]
        each = [dict(zip(_evenly(mean.index.tolist()), _evenly(mean.tolist()), strict=True)) for mean in means]
        lines.append(band(group.name, each))
    return lines


def _thin(rounds: Sequence[int], runs: Sequence[pd.DataFrame], scores: Sequence[str]) -> list[int]:
    """At most MOST of the rounds: rounds with an evaluation first, and always the last round."""
    if len(rounds) > MOST:
        tested = [name for name in scores if name != TRAIN_LOSS.name]
        scored = set(runs[0].dropna(subset=tested[:1]).index) if tested else set(rounds)
        rounds = [t for t in rounds if t in scored] or rounds
    return _evenly(rounds)


def _evenly(values: Sequence[Any]) -> list[Any]:
    """At most MOST of the values at equal distances, and always the last one."""
    step = -(-len(values) // MOST) or 1
    kept = list(values[::-1][::step])
    return kept[::-1]


def _band(name: str, runs: Sequence[pd.DataFrame], rounds: Sequence[int]) -> dict[str, list[float | None]]:
    """Mean, low and high of a score in these rounds; None where it was not recorded."""
    found = band("", [dict(run[name].dropna().items()) for run in runs])
    parts = {"y": found.y, "low": found.low, "high": found.high}
    at = {part: dict(zip(found.x, values, strict=False)) for part, values in parts.items()}
    return {part: [values.get(t) for t in rounds] if values else [] for part, values in at.items()}


def _mean(column: str, runs: Sequence[pd.DataFrame], rounds: list[int]) -> list[float | None]:
    """The mean of a column over the seeds in these rounds; None where it was not recorded."""
    if not all(column in run for run in runs):
        return [None] * len(rounds)
    columns = [run[column].reindex(rounds).tolist() for run in runs]
    means = (sum(values) / len(values) for values in zip(*columns, strict=True))
    return [None if mean != mean else mean for mean in means]
