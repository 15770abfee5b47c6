"""Lorenzo's pictures: the global score with its best round, and who leads the pass beside what each client holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pictures.figures import COLOURS, figure, read_metrics

if TYPE_CHECKING:
    import pandas as pd

    from ..panels.panel import Panel

MOST = 100  # more clients or rounds than this: every second, third … in a report
NUMBERED = 30  # more clients or rounds than this: ranks are not written into the cells


def draw_score(run: Path, metric: str, name: str, best_round: int, path: Path) -> None:
    """The global model's score over the rounds, the best one marked."""
    rows = [row for row in read_metrics(run) if f"balanced_{metric}" in row]
    fig, axes = figure(1, 1, (7, 4))
    axis = axes[0][0]
    axis.plot(
        [row["round"] for row in rows],
        [row[f"balanced_{metric}"] for row in rows],
        color=COLOURS[0],
        marker="o" if len(rows) <= NUMBERED else None,
        markersize=4,
        lw=1.8,
        label=f"global model, {name} on balanced validation data",
    )
    tested = [(row["round"], row[f"test_{metric}"]) for row in rows if f"test_{metric}" in row]
    if tested:
        axis.plot(*zip(*tested, strict=True), color=COLOURS[1], lw=1.4, label=f"global model, {name} on test data")
    best = next((row[f"balanced_{metric}"] for row in rows if row["round"] == best_round), None)
    if best is not None:
        label = f"best: {best:.4f} in round {best_round}"
        axis.plot(best_round, best, "*", color=COLOURS[3], markersize=15, label=label, zorder=3)
    axis.set(xlabel="round (0: bootstrap)", ylabel=name)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    fig.savefig(path, dpi=130)


def draw_ranks(run: Path, name: str, problem: Any, path: Path) -> None:
    """Clients up, rounds across: the score after each round as colour, the rank in its pass as number.

    Beside it, on the same rows, the samples of each class that the client holds.
    """
    import pandas as pd

    records = pd.read_parquet(run / "clients.parquet")
    scores = records.pivot_table(index="client", columns="round", values="score")
    ranks = records.pivot_table(index="client", columns="round", values="rank")
    clients, rounds = scores.index.to_numpy(), scores.columns.to_numpy()
    held = problem.partition.label_counts(problem.y.cpu(), problem.classes).numpy()[clients]
    height = min(12.0, 1.8 + 0.32 * len(clients))
    fig, axes = figure(1, 2, (13, height))
    left, right = axes[0]
    image = left.imshow(scores.to_numpy(), "cividis", aspect="auto", origin="lower", interpolation="nearest")
    fig.colorbar(image, ax=left, label=f"{name} after training", pad=0.01)
    if max(scores.shape) <= NUMBERED:
        middle = (scores.to_numpy().min() + scores.to_numpy().max()) / 2
        for (row, column), score in _cells(scores.to_numpy()):
            rank = int(ranks.to_numpy()[row, column])
            shade, bold = "black" if score > middle else "white", "bold" if rank == 1 else "normal"
            left.text(column, row, rank or "·", color=shade, ha="center", va="center", fontsize=8, weight=bold)
    left.set(xlabel="round (0: bootstrap)", ylabel="client", title="rank in the pass (1 leads) and score")
    step = max(1, len(rounds) // 15)
    left.set_xticks(range(0, len(rounds), step), rounds[::step])
    rows, columns = held.nonzero()
    area = min(220.0, 2000 * height / len(clients)) * held[rows, columns] / held.max()
    right.scatter(columns, rows, s=area, color=COLOURS[0], edgecolors="none")
    right.set(xlabel="class", xlim=(-0.8, held.shape[1] - 0.2), ylim=left.get_ylim(), title="what each client holds")
    right.set_xticks(range(0, held.shape[1], max(1, held.shape[1] // 20)))
    right.grid(visible=True, color="#dddddd", linewidth=0.5)
    right.set_axisbelow(True)
    every = max(1, len(clients) // 30)
    for axis in (left, right):
        axis.set_yticks(range(0, len(clients), every), clients[::every])
    samples = held.sum(1)
    for row in range(0, len(clients), every):
        right.annotate(
            f"{samples[row]:,}",
            (1.01, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
            color="#555555",
        )
    fig.savefig(path, dpi=130)


def rank_chart(records: pd.DataFrame, name: str) -> list[Panel]:
    """The same as data for `arno report`: clients down, rounds across; none without records."""
    from ..panels.panel import HeatMap

    if "rank" not in records:
        return []
    scores = records.pivot_table(index="client", columns="round", values="score")
    ranks = records.pivot_table(index="client", columns="round", values="rank")
    some = slice(None, None, max(1, -(-len(scores) // MOST))), slice(None, None, max(1, -(-scores.shape[1] // MOST)))
    scores, ranks = scores.iloc[some], ranks.iloc[some]
    return [
        HeatMap(
            "Ranks",
            f"Each client's place in the pass (1 trains first) over its {name} after training; "
            "round 0 is the bootstrap, where all train at once.",
            scores.to_numpy().tolist(),
            [str(client) for client in scores.index],
            [str(t) for t in scores.columns],
            "round",
            "client",
            name,
            [["" if rank != rank or rank < 1 else f"{rank:.0f}" for rank in row] for row in ranks.to_numpy()],
        )
    ]


def _cells(table: Any) -> Any:
    import numpy as np

    return ((at, value) for at, value in np.ndenumerate(table) if np.isfinite(value))
