"""The output of `arno methods` and `arno data`. To list the names of a group, all modules of the group are imported."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config.settings import written
from ..errors import ArnoError
from ..registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.partition import Partition

#: The most rows of the table of named clients, and the most strata for which this table has columns.
CLIENTS, STRATA = 40, 12


def show_methods(family: str | None = None) -> None:
    """Print the name and one sentence of all methods, or of the methods of a family, ordered by family."""
    from ..methods import FAMILIES
    from ..methods.descriptions import entries

    table, last = Table("method", "what it does"), ""
    table.columns[0].no_wrap = True
    for one in entries(family):
        if one.family != last:
            table.add_section()
            table.add_row(f"[bold]{one.family}[/bold]", f"[dim]{escape(FAMILIES[one.family])}[/dim]")
        table.add_row(one.name, escape(one.sentence))
        last = one.family
    console = Console()
    console.print(table)
    console.print("formula, paper, settings, engines, a command: arno methods NAME", highlight=False)
    console.print("one family: arno methods --family personal", highlight=False)
    console.print("your own method: arno run method=custom method.target=file.py:factory", highlight=False)


def show_method(name: str) -> None:
    """Print one method in full: facts, settings, and the docstring of its file."""
    from ..methods.descriptions import entry
    from .abilities import engines_of, tasks_of

    one, console = entry(name), Console()
    console.print(f"[bold]{name}[/bold] ({one.family})\n{escape(one.sentence)}", highlight=False)
    facts = {
        "formula": one.formula,
        "paper": one.paper,
        "helps": one.helps,
        "hurts": one.hurts,
        "parts": one.parts,
        "sends": one.sends,
        "engines": engines_of(name),
        "tasks": tasks_of(name),
        "defaults": ", ".join(f"{key}={written(value)}" for key, value in one.defaults.items()),
        "tune": ", ".join(f"{key}={text}" for key, text in one.ranges.items()),
        "command": one.command,
    }
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    for fact, text in facts.items():
        if text:
            table.add_row(f"[dim]{fact}[/dim]", escape(text))
    console.print(table, highlight=False)
    if one.settings:
        table = Table("setting", "default", "worth tuning", "meaning")
        table.columns[0].no_wrap = table.columns[2].no_wrap = True
        for each in one.settings:
            table.add_row(f"method.{each.name}", escape(written(each.default)), escape(each.range), escape(each.text))
        console.print(table)
    console.print(f"\n{escape(one.origin)}", highlight=False)


def as_json(names: Sequence[str]) -> list[dict[str, Any]]:
    """Methods as plain data."""
    from ..methods.descriptions import entry
    from .abilities import engines_of, tasks_of

    rows = []
    for one in map(entry, names):
        row = {field: value for field, value in vars(one).items() if field != "origin"}
        row |= {
            "settings": [vars(each) for each in one.settings],
            "engines": engines_of(one.name),
            "tasks": tasks_of(one.name),
        }
        rows.append(row | {"command": one.command})
    return rows


def settings_of(registry: Registry, name: str) -> str:
    """The settings of a factory with their defaults."""
    return ", ".join(f"{p.name}={written(p.default)}" for p in registry.settings(name).values())


def show_data() -> None:
    """Print all data sets and all partitions."""
    from ..data import datasets, partitions

    console = Console()
    for title, registry in (("data", datasets), ("partition", partitions)):
        table = Table(title, "what it is, and its settings", show_lines=True)
        table.columns[0].no_wrap = True
        for name in registry.names():
            first = inspect.cleandoc(registry.get(name).__doc__ or "").split("\n")[0]
            settings = settings_of(registry, name)
            table.add_row(name, escape(first) + (f"\n[dim]settings:[/dim] {escape(settings)}" if settings else ""))
        console.print(table)
    console.print("every data set also has data.val: the share or number of samples held out for validation")
    console.print(
        "and data.shift: rotation, noise or scale of the inputs of each client, with the strength data.shift_strength"
    )
    console.print("every partition also has partition.seed: the seed of the split, in place of the seed of the run")


def show_clients(console: Console, partition: Partition, strata: Tensor, names: Sequence[str]) -> None:
    """Print how many training samples of each stratum each named client has; of many clients, only the first ones."""
    counts = partition.label_counts(strata, len(names)).tolist()
    shown = names if len(names) <= STRATA else ()
    table = Table("client", "samples", *(escape(name) for name in shown))
    for name, row in list(zip(partition.names or (), counts, strict=True))[:CLIENTS]:
        table.add_row(escape(name), str(sum(row)), *(map(str, row) if shown else ()))
    console.print(table)
    if len(partition) > CLIENTS:
        console.print(f"the first {CLIENTS} of {len(partition):,} clients", highlight=False)


def show_partition(overrides: Sequence[str], path: Path) -> None:
    """Print numbers about a partition and draw it."""
    from ..config.build import split
    from ..config.settings import compose, plain
    from ..data.partition_picture import draw_partition, summary

    config = plain(compose(overrides))
    dataset, train, held_out, partition = split(config)
    strata, names = dataset.strata()[train], dataset.stratum_names()
    kind = "classes" if dataset.n_classes else "deciles"
    console = Console()
    table = Table(f"{dataset.name}, {config['partition']['kind']}", "", show_header=True)
    table.add_row("data", f"{len(train)} to train, {len(held_out)} to validate, {len(dataset.y_test)} to test")
    if not dataset.n_classes:
        table.add_row("deciles of the target", ", ".join(names))
    for name, value in summary(partition, strata, names, kind).items():
        table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    for line in dataset.notes:
        console.print(escape(line), highlight=False)
    if partition.names is not None:
        show_clients(console, partition, strata, names)
    try:
        draw_partition(partition, strata, names, path, label="" if dataset.n_classes else "target (deciles)")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ArnoError(f"--out {path}", f"it cannot be written ({reason})", "try --out partition.png") from error
    print(path)
