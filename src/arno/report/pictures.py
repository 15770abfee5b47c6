"""Pictures of runs, drawn with matplotlib into files; colours are safe for colour-blind readers (Okabe–Ito)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7, 4)) -> tuple[Any, Any]:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(rows, columns, squeeze=False)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """A run's lines of metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def draw_curves(runs: Sequence[Path], path: Path) -> None:
    """Scores and losses of runs over the rounds."""
    fig, axes = figure(1, 2, (10, 4))
    left, right = axes[0]
    for i, run in enumerate(runs):
        rows, prefix = read_metrics(run), f"{run.name} " if len(runs) > 1 else ""
        scores = {"test_accuracy": "test accuracy", "test_f1": "test F1", "val_f1": "validation F1"}
        losses = {"test_loss": "test loss", "train_loss": "training loss"}
        for axis, names in ((left, scores), (right, losses)):
            for j, (name, label) in enumerate(names.items()):
                points = [(row["round"], row[name]) for row in rows if name in row]
                if points:
                    axis.plot(*zip(*points, strict=True), color=COLOURS[(i * 3 + j) % 8], label=prefix + label, lw=1.6)
    left.set(xlabel="round", ylabel="score", ylim=(0, 1.02))
    right.set(xlabel="round", ylabel="loss")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(frameon=False)
    fig.savefig(path, dpi=130)


def draw_bands(groups: Mapping[str, Sequence[Path]], path: Path) -> None:
    """Test accuracy and F1 over the rounds: the mean of each group of runs ± one standard deviation."""
    import numpy as np

    fig, axes = figure(1, 2, (11, 4.2))
    for axis, (metric, label) in zip(
        axes[0], (("test_accuracy", "test accuracy"), ("test_f1", "test F1")), strict=True
    ):
        for i, (name, runs) in enumerate(groups.items()):
            rows = [[row for row in read_metrics(run) if metric in row] for run in runs]
            rounds = [row["round"] for row in rows[0]]
            values = np.array([[row[metric] for row in run] for run in rows])
            mean, std = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0 * values[0]
            colour = COLOURS[i % len(COLOURS)]
            axis.plot(rounds, mean, color=colour, label=name or "run", lw=1.8)
            axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.18, lw=0)
        axis.set(xlabel="round", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=130)
