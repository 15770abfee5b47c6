"""The claim of QR-Mix at its own size: 200 + 100 rounds on CIFAR-10, 100 clients, 5 % in a round.

    python benchmarks/studies/qrmix_cifar10.py [--data cifar10=DIR] [--splits DIR] [--minutes 100] [--jobs 2] [--plan]

Stage 1 is FedRCL with server momentum, 200 rounds; from its model, FedRCL alone, and FedRCL with QR-Mix by both rules,
go on to round 300. The learning rate of `lenet5` is chosen at α = 0.3, and β for each rule, by the validation accuracy
at a seed that is not used again; `resnet18` has FedRCL's own. `lenet5`: α = 0.3 with five seeds, 0.1 and 0.6 with
three; then a narrow `resnet18` at α = 0.3 with three.
Finished runs are lines of docs/results/cells/qrmix_cifar10.jsonl: a clone goes on from there, and the page says which
runs are missing. `--minutes` ends the study between two runs. `--splits` is a folder with the split files that
FedRCL's authors published (cifar10_dirichlet0.3_clients100.txt.gz); without it the splits are drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from arno.analysis.statistics import Summary, summary
from arno.runs.result import RunResult

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cells import UNFINISHED, Book, Cell, folders, kept, options

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "qrmix_cifar10.md"
FIRST, LAST, TUNING = 200, 300, 1000  # the last rounds of the stages, the seed of the choice of β
RULES, BETAS, BASE = ("seed", "lsq"), (0.001, 0.01, 0.1), "FedRCL"
#: FedRCL's rate is 0.1, with which it trains a ResNet-18.
RATES = {"model=lenet5": (0.1, 0.03, 0.01), "model=resnet18": (0.1,)}
SETTING = ["data=cifar10", "clients=100", "participation=0.05", "local.lr_decay=0.998"]
SETTING += ["local.weight_decay=1e-3", "local.batch_size=50", "local.epochs=5", "local.clip=10", "local.augment=true"]
SETTING += ["eval.every=20", "checkpoint.every=20", "eval.clients=false", "engine=serial"]
STAGE1 = ["method=compose", "method.parts=[rcl,server_momentum]"]


class Block(NamedTuple):
    """A network and an α, with their seeds."""

    model: tuple[str, ...]
    alpha: float
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return " ".join((self.model[0].partition("=")[2], *self.model[1:]))


LENET, RESNET = ("model=lenet5",), ("model=resnet18", "model.width=8")
#: What says most comes first.
BLOCKS = [
    Block(LENET, 0.3, (0, 1, 2, 3, 4)),
    Block(LENET, 0.1, (0, 1, 2)),
    Block(LENET, 0.6, (0, 1, 2)),
    Block(RESNET, 0.3, (0, 1, 2)),
]
TEXT = """\
# QR-Mix against FedRCL on CIFAR-10

    make results NAME=qrmix_cifar10 ARGS="--splits DIR"

The README of FedRCL with QR-Mix claims +1 to +2 points over FedRCL on CIFAR-10 at α = 0.3, and more at a smaller α.
Its setting: 100 clients, 5 % of them in a round, 200 rounds of FedRCL with server momentum, then 100 rounds of a
second stage from the same model. {splits}

All choices are made by validation at a seed that is not used again: the learning rate of `lenet5`, from 0.1, 0.03 and
0.01 at α = 0.3 after stage 1, and β for each rule and α, from 0.001, 0.01 and 0.1. The rates were added after the first
run: `lenet5`, which has no normalisation, stays at 10 % with 0.1, FedRCL's rate for a wide ResNet-18. `resnet18` has
this rate, and no other was tried. Mean
and 95 % interval over the seeds (Student's t); the differences are paired by seed: the arms of a seed start from one
model. A run that diverged counts as 0. *Eigenpairs*: seconds of one client in a round, on one core while the other
cores compute other runs. *MB sent*: all uploads of the second stage. What the server needs is on the page of
[costs](qrmix_cost.md).

{state}

{rows}

## The learning rates

{rates}

## What the numbers say

{verdicts}
"""


def setting(block: Block, seed: int, splits: Path | None, rate: float) -> list[str]:
    """The settings of a seed in one block; validation samples only where something is chosen."""
    words = [*SETTING, *block.model, f"local.lr={rate}", f"seed={seed}", f"data.val={0.1 if seed == TUNING else 0}"]
    if splits is None:
        return [*words, f"partition.alpha={block.alpha}"]
    return [*words, "partition=file", f"partition.path={splits / f'cifar10_dirichlet{block.alpha}_clients100.txt.gz'}"]


def mixing(rule: str, beta: float) -> list[str]:
    return ["method=compose", "method.parts=[rcl,qrmix]", f"method.qrmix.rule={rule}", f"method.qrmix.beta={beta}"]


def first(block: Block, seed: int, splits: Path | None, rate: float) -> Cell:
    words = [*setting(block, seed, splits, rate), *STAGE1, f"rounds={FIRST}"]
    which = f" with rate {rate}" if seed == TUNING else ""
    return Cell(f"{block.name}, α = {block.alpha}, seed {seed}: stage 1{which}", tuple(words))


def second(block: Block, seed: int, splits: Path | None, rate: float, arm: str, method: list[str]) -> Cell:
    words = [*setting(block, seed, splits, rate), *method, f"rounds={LAST}"]
    return Cell(
        f"{block.name}, α = {block.alpha}, seed {seed}: {arm}", tuple(words), first(block, seed, splits, rate).name
    )


def rates(block: Block, splits: Path | None) -> list[Cell]:
    """The first stages that choose the learning rate of a network: those of its first block."""
    home = next(one for one in BLOCKS if one.model == block.model)
    return [first(home, TUNING, splits, rate) for rate in RATES[block.model[0]]]


def trials(block: Block, splits: Path | None, rate: float) -> list[Cell]:
    """The runs that choose β."""
    made = [(f"{rule} {beta}", mixing(rule, beta)) for rule in RULES for beta in BETAS]
    return [
        first(block, TUNING, splits, rate),
        *(second(block, TUNING, splits, rate, arm, method) for arm, method in made),
    ]


def arms(block: Block, seed: int, splits: Path | None, rate: float, betas: dict[str, float]) -> list[Cell]:
    """Stage 1 of a seed, and its second stages: FedRCL alone, then both rules."""
    made = [(BASE, ["method=fedrcl"]), *((rule, mixing(rule, betas[rule])) for rule in RULES)]
    return [
        first(block, seed, splits, rate),
        *(second(block, seed, splits, rate, arm, method) for arm, method in made),
    ]


def best(values: Sequence[float], cells: Sequence[Cell], book: Book) -> float | None:
    """The value whose run has the best validation accuracy after its last round; None while runs are missing."""
    if any(book.record(cell) is None for cell in cells):
        return None
    scores = [book.scores(cell).get("val_accuracy", -1.0) for cell in cells]
    return values[scores.index(max(scores))]


def chosen(block: Block, splits: Path | None, book: Book) -> tuple[float | None, dict[str, float] | None]:
    """The learning rate, and β for each rule; None while runs are missing."""
    rate = best(RATES[block.model[0]], rates(block, splits), book)
    if rate is None:
        return None, None
    runs = trials(block, splits, rate)[1:]
    found = {rule: best(BETAS, runs[i * len(BETAS) :][: len(BETAS)], book) for i, rule in enumerate(RULES)}
    betas = {rule: beta for rule, beta in found.items() if beta is not None}
    return rate, betas if len(betas) == len(RULES) else None


def plan(splits: Path | None, book: Book) -> Iterator[tuple[Block, list[Cell]]]:
    """All runs in their order; where nothing is chosen yet, the names and settings of the middle value stand for it."""
    for block in BLOCKS:
        known = RATES[block.model[0]]
        if len(known) > 1:  # else there is nothing to choose, and this run is one of the next ones
            yield block, rates(block, splits)
        rate = chosen(block, splits, book)[0] or known[len(known) // 2]
        yield block, [first(block, seed, splits, rate) for seed in (TUNING, *block.seeds)]
        yield block, trials(block, splits, rate)
        betas = chosen(block, splits, book)[1] or dict.fromkeys(RULES, BETAS[len(BETAS) // 2])
        yield block, [cell for seed in block.seeds for cell in arms(block, seed, splits, rate, betas)]


def every(splits: Path | None, book: Book) -> list[Cell]:
    """All runs, each once."""
    return list({cell.name: cell for _, cells in plan(splits, book) for cell in cells}.values())


def measure(result: RunResult) -> dict[str, Any]:
    """The scores after the last round, what was sent, and the seconds of the eigenpairs of a client."""
    last = result.rows[-1]
    spent = [row["qrmix_seconds"] / row["clients"] for row in result.rows if "qrmix_seconds" in row]
    found = {name: round(last[name], 5) for name in ("val_accuracy", "test_accuracy") if name in last}
    found["uploaded_bytes"] = last["uploaded_bytes"]
    return found | ({"eigenpairs": round(sum(spent) / len(spent), 5)} if spent else {})


def finished(block: Block, splits: Path | None, book: Book) -> dict[str, list[dict[str, Any]]]:
    """The scores of each arm at the seeds where all arms are finished and started from one model."""
    (rate, betas), found = chosen(block, splits, book), {arm: [] for arm in (BASE, *RULES)}
    for seed in block.seeds if rate and betas else ():
        cells = arms(block, seed, splits, rate or 0, betas or {})[1:]
        records = [book.record(cell) for cell in cells]
        if len({record["start"] for record in records if record}) == 1 and all(records):
            for arm, cell in zip(found, cells, strict=True):
                found[arm].append(book.scores(cell))
    return found


def row(block: Block, arm: str, found: dict[str, list[dict[str, Any]]], betas: dict[str, float]) -> str:
    own, gap = summary(percent(found[arm])), difference(found, arm)
    spent = [scores["eigenpairs"] for scores in found[arm] if "eigenpairs" in scores]
    sent = sum(scores.get("uploaded_bytes", 0) for scores in found[arm]) / len(found[arm]) / 1e6
    name = arm if arm == BASE else f"QR-Mix, rule {arm}, β = {betas[arm]}"
    cells = [block.name, f"{block.alpha}", f"{len(found[arm])}", name, told(own), "" if arm == BASE else told(gap, "+")]
    cells += [f"{sum(spent) / len(spent):.3f}" if spent else "", f"{sent:,.0f}"]
    return f"| {' | '.join(cells)} |"


def percent(scores: Sequence[dict[str, Any]]) -> list[float]:
    """Accuracies; a run that diverged counts as 0."""
    return [100 * one.get("test_accuracy", 0.0) for one in scores]


def difference(found: dict[str, list[dict[str, Any]]], arm: str) -> Summary:
    return summary([a - b for a, b in zip(percent(found[arm]), percent(found[BASE]), strict=True)])


def told(found: Summary, sign: str = "") -> str:
    digits = f"{sign}.{2 if sign else 1}f"  # differences are small
    interval = f" [{found.low:{digits}}, {found.high:{digits}}]" if found.n > 1 else ""
    return f"{found.mean:{digits}}{interval}"


def verdict(block: Block, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What is known about a block; nothing is said about seeds that are missing."""
    there, head = len(found[BASE]), f"- `{block.name}`, α = {block.alpha}"
    if there < len(block.seeds):
        return [f"{head}: no verdict: {there} of {len(block.seeds)} seeds are finished."]
    lines = []
    for rule in RULES:
        gap = difference(found, rule)
        word = (
            "better than FedRCL" if gap.low > 0 else "worse than FedRCL" if gap.high < 0 else "not told apart from it"
        )
        claim = "within" if gap.low <= 2 and gap.high >= 1 else "outside"
        lines.append(
            f"{head}, rule {rule}: {told(gap, '+')} points, {word}; the claim (+1 to +2) is {claim} the interval."
        )
    return lines


def chosen_rates(splits: Path | None, book: Book) -> list[str]:
    """For each network the validation accuracy after stage 1 with each learning rate."""
    lines = []
    for name, block in {block.name: block for block in reversed(BLOCKS)}.items():
        cells, known = rates(block, splits), RATES[block.model[0]]
        if len(known) == 1:
            continue
        if best(known, cells, book) is None:
            lines.append(f"- `{name}`: no learning rate is chosen yet.")
            continue
        scores = [100 * book.scores(cell).get("val_accuracy", 0.0) for cell in cells]
        told = ", ".join(f"{score:.1f} % with {rate}" for rate, score in zip(known, scores, strict=True))
        lines.append(f"- `{name}`: validation accuracy after round {FIRST}: {told}.")
    return lines


def write(splits: Path | None, book: Book) -> None:
    head = ["network", "α", "seeds", "second stage", "test accuracy, %", "minus FedRCL", "eigenpairs, s", "MB sent"]
    rows, verdicts = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"], []
    for block in BLOCKS:
        found = finished(block, splits, book)
        betas = chosen(block, splits, book)[1]
        rows += [row(block, arm, found, betas) for arm in found if betas and found[arm]]
        verdicts += verdict(block, found)
    cells = every(splits, book)
    drawn = "The splits are drawn." if splits is None else "The splits are those that FedRCL's authors published."
    parts = {"rows": rows, "rates": chosen_rates(splits, book), "verdicts": verdicts}
    text = TEXT.format(splits=drawn, state=book.state(cells), **{name: "\n".join(some) for name, some in parts.items()})
    page = book.page(PAGE)
    page.write_text(text, "utf-8")
    book.note(cells)
    print(page)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "", "runs/qrmix_cifar10")
    parser.add_argument("--splits", type=Path, metavar="DIR", help="the split files of FedRCL's authors")
    parser.add_argument("--plan", action="store_true", help="list the runs and whether they are finished; run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, a core for each")
    given = parser.parse_args(arguments)
    splits = given.splits
    book = Book("qrmix_cifar10", given.out, folders(given.data), given.words, **kept(given))
    whole = True
    for i in range(0 if given.plan else len(list(plan(splits, book)))):
        _, cells = list(plan(splits, book))[i]
        whole = whole and book.run(cells, measure, given.jobs)
    if given.plan:
        for cell in every(splits, book):
            print(f"{'finished' if book.record(cell) else 'missing '} {cell.name}")
    else:
        write(splits, book)
    return 0 if whole else UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
