"""Lorenzo against FedAvg and SCAFFOLD on CIFAR-10 with almost equal local work; writes docs/results/lorenzo_cifar10.md.

    python benchmarks/studies/lorenzo_cifar10.py [--data cifar10=DIR] [--minutes 100] [--jobs 2]

The runs are those of the published figure `lorenzo-cifar10`: its settings and bands were committed before the first
run. Each finished run is a line of docs/results/cells/lorenzo-cifar10.jsonl, so that a clone goes on from there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arno.analysis.statistics import Summary, summary
from arno.grids.grid import Cell as Run
from arno.reproduce.figure import Figure, load
from arno.reproduce.run import cells as runs_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cells import UNFINISHED, Book, folders, kept, options
from figure_cells import cells, measure

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "lorenzo_cifar10.md"
FIGURE, OWN = "lorenzo-cifar10", "lorenzo"
TEXT = """\
# Lorenzo on CIFAR-10

    make results NAME=lorenzo_cifar10

{setting}
All arms of a seed have the same split and the same start. Mean and 95 % interval over the seeds (Student's t);
differences are paired by seed. A run that diverged counts as 0. Nothing was tuned. With its bootstrap Lorenzo takes
about 4 % more local steps than the others. The budget is three hours of two cores. What a pass costs that trains its
clients one after the other is on the page of [Lorenzo](lorenzo.md). *Minutes* are by the clock: other work shared the
cores, and pauses count.

{state}

{rows}

## What the numbers say

{verdicts}
"""


def scores(figure: Figure, book: Book) -> dict[str, dict[str, list[float]]]:
    """By arm: the numbers of its last round, at the seeds where all arms are finished."""
    nothing = {"test_f1": 0.0, "local_steps": 0}  # of a run that diverged
    grid = {(one.name, one.seed): cell for one, cell in zip(ordered(figure), cells(figure), strict=True)}
    there = [
        str(seed) for seed in figure.seeds if all(book.record(grid[arm, str(seed)]) is not None for arm in figure.arms)
    ]
    found: dict[str, dict[str, list[float]]] = {}
    for arm in figure.arms:
        lines = [book.scores(grid[arm, seed]) | {"seconds": book.seconds(grid[arm, seed])} for seed in there]
        found[arm] = {
            "f1": [100 * one.get("last", nothing)["test_f1"] for one in lines],
            "steps": [one.get("last", nothing)["local_steps"] for one in lines],
            "minutes": [one["seconds"] / 60 for one in lines],
        }
    return found


def ordered(figure: Figure) -> list[Run]:
    """The runs of the figure in the order of their cells."""
    return sorted(runs_of(figure), key=lambda one: int(one.seed))


def told(found: Summary, sign: str = "") -> str:
    interval = f" [{found.low:{sign}.1f}, {found.high:{sign}.1f}]" if found.n > 1 else ""
    return f"{found.mean:{sign}.1f}{interval}"


def gap(found: dict[str, dict[str, list[float]]], arm: str) -> Summary:
    return summary([a - b for a, b in zip(found[OWN]["f1"], found[arm]["f1"], strict=True)])


def rows(found: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = ["| method | seeds | test F1, % | Lorenzo minus it | local steps | minutes |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    for arm, by in found.items():
        if by["f1"]:
            n = len(by["f1"])
            apart = "" if arm == OWN else told(gap(found, arm), "+")
            steps, minutes = sum(by["steps"]) / n, sum(by["minutes"]) / n
            lines.append(f"| {arm} | {n} | {told(summary(by['f1']))} | {apart} | {steps:,.0f} | {minutes:.0f} |")
    return lines


def verdicts(figure: Figure, found: dict[str, dict[str, list[float]]]) -> list[str]:
    there = len(found[OWN]["f1"])
    if there < len(figure.seeds):
        return [f"No verdict: {there} of {len(figure.seeds)} seeds are finished with every method."]
    lines = []
    for arm in figure.arms:
        if arm != OWN:
            one = gap(found, arm)
            word = "better than it" if one.low > 0 else "worse than it" if one.high < 0 else "not told apart from it"
            lines.append(f"- Lorenzo against {arm}: {told(one, '+')} points of test F1: {word}.")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "", "runs/reproduce/lorenzo-cifar10")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, a core for each")
    given = parser.parse_args(arguments)
    figure = load(FIGURE)
    book = Book(FIGURE, given.out, folders(given.data), given.words, **kept(given))
    whole = book.run(cells(figure), measure(figure), given.jobs)
    found = scores(figure, book)
    text = {"setting": figure.setting, "state": book.state(cells(figure)), "rows": "\n".join(rows(found))}
    page = book.page(PAGE)
    page.write_text(TEXT.format(**text, verdicts="\n".join(verdicts(figure, found))), "utf-8")
    book.note(cells(figure))
    print(page)
    return 0 if whole else UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
