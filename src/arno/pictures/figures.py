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
                    rounds, values = zip(*points, strict=True)
                    _line(axis, rounds, values, COLOURS[(i * 3 + j) % 8], prefix + label)
    left.set(ylabel="score", ylim=(0, 1.02))
    right.set(ylabel="loss")
    _finish(fig, (left, right), path)


def draw_bands(groups: Mapping[str, Sequence[Path]], path: Path) -> None:
    """Test accuracy and F1 over the rounds: the mean of each group of runs ± one standard deviation."""
    import numpy as np

    fig, axes = figure(1, 2, (11, 4.2))
    labels = {"test_accuracy": "test accuracy", "test_f1": "test F1"}
    histories = {name: [read_metrics(run) for run in runs] for name, runs in groups.items()}
    for axis, (metric, label) in zip(axes[0], labels.items(), strict=True):
        for i, (name, runs) in enumerate(histories.items()):
            scored = [{row["round"]: row[metric] for row in rows if metric in row} for rows in runs]
            rounds = sorted(set.intersection(*(set(scores) for scores in scored)))  # some may have ended early
            if not rounds:
                continue
            values = np.array([[scores[t] for t in rounds] for scores in scored])
            mean, std = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0 * values[0]
            colour = COLOURS[i % len(COLOURS)]
            _line(axis, rounds, mean, colour, name)
            axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.18, lw=0)
        axis.set(ylabel=label, ylim=(0, 1.02))
    _finish(fig, axes[0], path)


def _line(axis: Any, x: Sequence[float], y: Any, colour: str, label: str) -> None:
    axis.plot(x, y, color=colour, label=label, lw=1.6, marker="o" if len(x) <= 20 else "", ms=3)


def _finish(fig: Any, axes: Sequence[Any], path: Path) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set(xlabel="round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines:
            axis.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=130)
