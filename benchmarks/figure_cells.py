"""The runs of a published figure as cells that stay in the repository (see cells.py), and their verdict."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from arno.analysis.scores import Record
from arno.reproduce.figure import Figure
from arno.reproduce.run import cells as runs_of
from arno.reproduce.verdict import Verdict, decide, sign, value
from arno.runs.result import RunResult
from cells import Book, Cell

#: What is kept of the last round of a run, for tables of studies.
KEPT = ("local_steps", "uploaded_bytes", "test_accuracy", "test_f1", "test_loss")


def cells(figure: Figure) -> list[Cell]:
    """All runs of a figure, seed by seed; each takes one core, so that several run at a time."""
    found = []
    for one in sorted(runs_of(figure), key=lambda one: int(one.seed)):
        core = () if any(word.startswith("engine") for word in one.overrides) else ("engine.cores=1",)
        found.append(Cell(one.title, ("eval.clients=false", *core, *one.overrides)))
    return found


def measure(figure: Figure) -> Callable[[RunResult], dict[str, Any]]:
    """What is kept of a run: the readings of the figure, whether more of them is better, and the last round."""

    def kept(result: RunResult) -> dict[str, Any]:
        record = Record(result.rows, result.metrics, result.config["rounds"])
        if record.diverged():  # it went on to its last round with NaN or Inf
            return {"diverged": True}
        readings = {name: value(record, reading) for name, reading in figure.readings.items()}
        signs = {name: sign(reading, result.metrics) for name, reading in figure.readings.items()}
        last = {name: record.last[name] for name in KEPT if name in record.last}
        return {"readings": readings, "signs": signs, "last": last}

    return kept


def verdict(figure: Figure, book: Book) -> Verdict | None:
    """The verdict of a figure; None while a run is missing or if all of them diverged."""
    grid = runs_of(figure)
    by_name = {cell.name: cell for cell in cells(figure)}
    if not by_name or any(book.record(cell) is None for cell in by_name.values()):
        return None
    scores = {name: book.scores(cell) for name, cell in by_name.items()}
    signs = next((one["signs"] for one in scores.values() if "signs" in one), None)
    if signs is None:
        return None
    values: dict[str, dict[str, dict[int, float]]] = {}
    for one in grid:
        found = scores[one.title].get("readings", {name: -signs[name] * inf for name in signs})
        for name, read in found.items():
            values.setdefault(one.name, {}).setdefault(name, {})[int(one.seed)] = float(read)
    return decide(figure, values, signs)
