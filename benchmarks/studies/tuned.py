"""Eight methods and QRMix, tuned with equal budgets: which verdicts of an untuned comparison remain?

    python benchmarks/studies/tuned.py [--fashion FOLDER] [--out runs/tuned-study] [--jobs 2] [--small]

Digits and Fashion-MNIST, Dirichlet(0.1) and Dirichlet(1). Two comparisons on seeds 0 to 4: one with the defaults of
every method, one with the settings that `arno tune` found on seed 1000, by validation data. Runs that are done are
not run again: a study that was stopped continues with the same command. --small: a few rounds, to try the program; it
writes no page. Writes docs/results/tuned.md and its picture.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from arno import Comparison
from arno.analysis.budget import unequal_searches
from arno.analysis.order import Order, order
from arno.analysis.statistics import differences, summary
from arno.analysis.tuning import Tuned, Tuning
from arno.grids.compare import run_grid
from arno.grids.searches import Plan
from arno.grids.tune import search_and_compare

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "tuned.md"
METHODS = ("fedavg", "fedprox", "scaffold", "fedvarp", "fedavgm", "fedadam", "fedexp", "fedacg", "qrmix")
HOUSE = "qrmix"
WORDS = [f"method={','.join(METHODS)}", "partition.alpha=0.1,1", "clients=30", "participation=0.34", "local.epochs=2"]
WORDS += ["local.batch_size=20", "rounds=40", "eval.every=5", "seed=0..4"]
DATA = {
    "digits": ["data=digits", "model=mlp", "model.hidden=[64]"],
    "Fashion-MNIST": ["data=fashion_mnist", "data.limit=3000", "model=softmax"],
}
TRIALS, RANGE = 16, "local.lr=log(0.001, 1)"


def compared(
    name: str, words: Sequence[str], out: Path, jobs: int, small: bool
) -> tuple[Comparison, Comparison, Tuning]:
    """The comparison without and with a search, on one data set; and the search."""
    console, folder = Console(), name.lower()
    rest = [*WORDS, *words, *(["rounds=4", "seed=0..1"] if small else [])]
    plain = run_grid(rest, out / f"{folder}-defaults", {}, jobs=jobs, console=console)
    plan = Plan(trials=4 if small else TRIALS, jobs=jobs)
    found = search_and_compare([*rest, RANGE], out / f"{folder}-tuned", {}, plan, console=console)
    search = Tuning.open(out / f"{folder}-tuned")
    assert search is not None
    return plain, found, search


def joined(parts: dict[str, Comparison]) -> Comparison:
    """The comparisons on several data sets as one, with a setting per data set and skew."""
    members = [
        replace(group, setting=f"{name}, α = {group.setting.rpartition('=')[2]}")
        for name, one in parts.items()
        for group in one.members
    ]
    return Comparison(members)


def verdicts(found: Comparison) -> dict[tuple[str, str, str], int]:
    """By setting and pair of methods: 1 if the first is better, −1 if the second is, 0 if it may be chance."""
    finals, out = found.finals(), dict[tuple[str, str, str], int]()
    for place in found.places:
        there = {g.name: finals[g.label] for g in found.members if g.setting == place and finals[g.label]}
        for a, b in combinations([name for name in METHODS if name in there], 2):
            gap = summary(differences(there[a], there[b]))
            out[place, a, b] = 1 if gap.low > 0 else -1 if gap.high < 0 else 0
    return out


def scores(found: Comparison, other: dict[tuple[str, str, str], int]) -> str:
    """A table: the mean final score of every method in every setting, with its interval; * against FedAvg."""
    table, lines = found.table().set_index("label"), []
    for name in METHODS:
        cells = []
        for place in found.places:
            label = f"{name} {place}"
            row = table.loc[label] if label in table.index else None
            if row is None or not row["seeds"]:
                cells.append("diverged")
                continue
            sign = -other.get((place, "fedavg", name), 0)
            lost = f", {row['diverged']} diverged" if row["diverged"] else ""
            mark = {1: " ▲", -1: " ▼", 0: ""}[sign]
            cells.append(f"{row['final']:.3f} [{row['final_low']:.3f}, {row['final_high']:.3f}]{mark}{lost}")
        lines.append([name, *cells])
    return text_table(["method", *found.places], lines)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def survived(before: dict[tuple[str, str, str], int], after: dict[tuple[str, str, str], int]) -> list[str]:
    """What tuning did to the verdicts about pairs of methods."""
    both = [key for key in before if key in after]
    sure = [key for key in both if before[key]]
    kept = [key for key in sure if after[key] == before[key]]
    turned = [key for key in sure if after[key] == -before[key]]
    new = [key for key in both if not before[key] and after[key]]
    lines = [
        f"Of {len(both)} pairs of methods in the four settings, the comparison with default settings calls {len(sure)} "
        f"different. After tuning, {len(kept)} of these verdicts remain, {len(sure) - len(kept) - len(turned)} are no "
        f"longer there (the interval contains 0), and {len(turned)} are reversed. {len(new)} pairs that were not "
        "different with default settings are different after tuning. The intervals are not corrected: of "
        f"{len(both)} pairs without any difference, about {len(both) / 20:.0f} would be called different by chance."
    ]
    if turned:
        each = [f"{better(key, before)} over {worse(key, before)} on {key[0]}" for key in turned]
        lines.append(f"Reversed by tuning: {'; '.join(each)}.")
    against = [key for key in sure if "fedavg" in key[1:]]
    for title, chosen in (("remain", kept), ("are gone", [k for k in sure if not after[k]]), ("are reversed", turned)):
        mine = [f"{better(k, before)} over {worse(k, before)} ({k[0]})" for k in against if k in chosen]
        lines.append(f"Verdicts about FedAvg that {title}: {'; '.join(mine) or 'none'}.")
    return lines


def changed(plain: Comparison, found: Comparison) -> str:
    """Whether tuning raised the scores: per method and setting, paired by seed."""
    before, after = plain.finals(), found.finals()
    told: dict[int, list[str]] = {1: [], -1: [], 0: []}
    lower = 0
    for place in found.places:
        for name in METHODS:
            old, new = before.get(f"{name} {place}"), after.get(f"{name} {place}")
            if old and new:
                gap = summary(differences(new, old))
                lower += gap.mean < 0
                sign = 1 if gap.low > 0 else -1 if gap.high < 0 else 0
                told[sign].append(f"{name} on {place} ({gap.mean:+.3f})")
    return (
        f"Of {sum(map(len, told.values()))} scores (nine methods, four settings), tuning raises {len(told[1])} with a "
        f"paired 95 % interval that excludes 0, and lowers {len(told[-1])}"
        f"{': ' + '; '.join(told[-1]) if told[-1] else ''}. {lower} means are lower than with default settings. The "
        "search has one seed, so one partition and one draw of the cohorts, and sixteen trials: what is best there is "
        "not always better on the five other partitions of the comparison."
    )


def profile(before: Order, after: Order) -> str:
    """A table: the rank of each method in each setting with default settings and tuned, and the means of both."""
    rows = []
    for name in after.names:
        both = [f"{a} → {b}" for a, b in zip(before.ranks[name], after.ranks[name], strict=True)]
        means = [sum(found.ranks[name]) / len(found.places) for found in (before, after)]
        rows.append([name, *both, f"{means[0]:.1f} → {means[1]:.1f}"])
    return text_table(["method", *after.places, "mean"], rows)


def better(key: tuple[str, str, str], verdict: dict[tuple[str, str, str], int]) -> str:
    """The better method of a pair."""
    return key[1] if verdict[key] > 0 else key[2]


def worse(key: tuple[str, str, str], verdict: dict[tuple[str, str, str], int]) -> str:
    """The other one."""
    return key[2] if verdict[key] > 0 else key[1]


def house(found: Comparison, verdict: dict[tuple[str, str, str], int], ranks: Order | None) -> str:
    """How the project's own method does after tuning."""
    places = len(found.places)
    below = Counter(b if v > 0 else a for (_, a, b), v in verdict.items() if v and HOUSE in (a, b))
    mean = sum(ranks.ranks[HOUSE]) / places if ranks and HOUSE in ranks.ranks else float("nan")
    against = {place: verdict.get((place, "fedavg", HOUSE), 0) for place in found.places}
    words = {1: "worse than FedAvg", -1: "better than FedAvg", 0: "not different from FedAvg"}
    each = "; ".join(f"{words[v]} on {place}" for place, v in against.items())
    return (
        f"QRMix is a method of this project. Tuned, its mean rank is {mean:.1f} of {len(METHODS)}; it loses "
        f"{below[HOUSE]} of its {places * (len(METHODS) - 1)} comparisons with intervals that exclude 0. It is {each}."
    )


def chosen(searches: dict[str, Tuning]) -> str:
    """A table: the settings that the search chose."""

    def told(group: Tuned) -> str:
        ends = {key: f" (at the {end} end)" for key, end in group.border.items()}
        return ", ".join(f"{k.removeprefix('method.')} {v}{ends.get(k, '')}" for k, v in group.best.items())

    columns = {(name, g.setting): g.setting for name, one in searches.items() for g in one.groups}
    heads = ["method", *(f"{name}, α = {setting.rpartition('=')[2]}" for name, setting in columns)]
    rows = []
    for method in METHODS:
        mine = {(name, g.setting): told(g) for name, one in searches.items() for g in one.groups if g.name == method}
        rows.append([method, *(mine[key] for key in columns)])
    return text_table(heads, rows)


def costs(searches: dict[str, Tuning]) -> str:
    """A table: what the search of each method cost, over the four settings."""
    rows = []
    for method in METHODS:
        mine = [group for one in searches.values() for group in one.groups if group.name == method]
        spent = [sum(group.cost(name) for group in mine) for name in ("rounds", "local_steps", "uploaded_bytes")]
        trials, lost = sum(len(g.trials) for g in mine), sum(bool(t["lost"]) for g in mine for t in g.trials)
        seconds = sum(group.cost("seconds") for group in mine)
        cells = [f"{trials}", f"{lost}", f"{spent[0]:,.0f}", f"{spent[1]:,.0f}", f"{spent[2] / 1e6:,.0f}"]
        rows.append([method, *cells, f"{seconds:,.0f}"])
    return text_table(["method", "trials", "diverged", "rounds", "local steps", "MB uploaded", "seconds"], rows)


def picture(before: Order, after: Order, path: Path) -> None:
    """The rank of each method in each setting, before and after tuning."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, found, title in zip(axes, (before, after), ("default settings", "tuned, equal budgets"), strict=True):
        for i, name in enumerate(METHODS):
            if name in found.ranks:
                axis.plot(found.ranks[name], marker="o", color=f"C{i}", label=name)
                axis.annotate(name, (len(found.places) - 1, found.ranks[name][-1]), (8, -3), textcoords="offset points")
        axis.set_title(title)
        axis.set_xticks(range(len(found.places)), [place.replace(", ", "\n") for place in found.places])
        axis.set_xlim(-0.2, len(found.places) - 0.2)
        axis.set_yticks(range(1, len(METHODS) + 1))
    axes[0].set_ylabel("rank by the mean test F1")
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=130)


def spent(searches: dict[str, Tuning]) -> list[str]:
    """Unequal budgets of the searches."""
    return [f"{name}, {line}" for name, one in searches.items() for line in unequal_searches(one)]


def write(plain: Comparison, found: Comparison, searches: dict[str, Tuning]) -> None:
    """The page and its picture."""
    before, after, orders = verdicts(plain), verdicts(found), [order(plain), order(found)]
    if orders[0] and orders[1]:
        picture(orders[0], orders[1], PAGE.with_suffix(".png"))
    remain = survived(before, after)
    lines = [
        "# Tuned and untuned verdicts",
        "",
        "    make results NAME=tuned",
        "",
        "Do the verdicts of a comparison with default settings remain when every method is tuned? Digits (`mlp`, 64 "
        "hidden units) and Fashion-MNIST (3,000 training images, `softmax`), Dirichlet(0.1) and Dirichlet(1), 30 "
        "clients, ten in a round, two local epochs, batches of 20, 40 rounds. The problems are small, the rounds few.",
        "",
        "- **Default settings**: `local.lr=0.05` and the defaults of each method. Nothing is tuned.",
        f"- **Tuned**: `arno tune` with {TRIALS} trials per method and setting. `local.lr` in log(0.001, 1) for every "
        "method, and for each method the ranges that it declares (`arno methods NAME`). Chosen by validation F1 on "
        "seed 1000; the worse half of each batch ended after 10 of the 40 rounds; every method had the same number of "
        "trials and of rounds. FedAvg has one setting to search, others up to four: with equal budgets, several "
        "settings are searched less densely than one.",
        "- Both comparisons use seeds 0 to 4, which the search did not use, and with them other partitions. Test F1: "
        "mean and 95 % interval over five seeds. ▲ ▼: better or worse than FedAvg, the paired 95 % interval of the "
        "difference excludes 0 (not corrected for the number of pairs).",
        "",
        remain[0],
        "",
        "![Ranks of the methods](tuned.png)",
        "",
        *(
            ["Ranks by the mean, default settings → tuned:", "", profile(orders[0], orders[1]), ""]
            if all(orders)
            else []
        ),
        "## Default settings",
        "",
        scores(plain, before),
        "",
        *([orders[0].sentence(), ""] if orders[0] else []),
        "## Tuned",
        "",
        scores(found, after),
        "",
        *([orders[1].sentence(), ""] if orders[1] else []),
        "## Which verdicts remain",
        "",
        *(line for text in remain[1:] for line in (text, "")),
        house(found, after, orders[1]),
        "",
        "## What tuning changed",
        "",
        changed(plain, found),
        "",
        "## What the search chose",
        "",
        chosen(searches),
        "",
        "The first eight trials of a search are random and depend on the method and the skew only: where a method has "
        "the same settings on both data sets, one of these trials was the best.",
        "",
        "## What the search cost",
        "",
        "Over the four settings. Trials, rounds and local steps are equal; uploads and seconds are not: SCAFFOLD sends "
        "a second vector, QRMix the eigenvectors of its last layer, and both are part of what these methods cost.",
        "",
        costs(searches),
        "",
        *(f"- {line}" for line in spent(searches)),
    ]
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, help="folder with the files of Fashion-MNIST; downloaded by default")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "tuned-study")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a few rounds, to try the program")
    options = parser.parse_args()
    plain, found, searches = {}, {}, {}
    for name, words in DATA.items():
        root = [f"data.root={options.fashion.resolve()}"] if options.fashion and name != "digits" else []
        plain[name], found[name], searches[name] = compared(
            name, [*words, *root], options.out, options.jobs, options.small
        )
    if not options.small:
        write(joined(plain), joined(found), searches)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; the same command continues it")
        sys.exit(130)
