"""What `arno methods` and `arno data` print. To list names, these functions import every module of a group."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config.settings import written
from ..errors import ArnoError
from ..registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.partition import Partition

#: The table of named clients has at most so many rows, and a column per stratum if there are at most so many.
CLIENTS, STRATA = 40, 12


def show_methods() -> None:
    """Print all methods; formula, parts, settings and paper stand below each other, so that 80 columns are enough."""
    from ..methods import methods

    table = Table("method", "formula, parts, settings, paper", show_lines=True)
    table.columns[0].no_wrap = True
    for name in methods.names():
        info = methods.info(name)
        texts = {
            "": info.get("formula", ""),
            "parts": parts_of(methods, name),
            "settings": settings_of(methods, name),
            "paper": info.get("paper", ""),
        }
        lines = [f"[dim]{key}:[/dim] {escape(text)}" if key else escape(text) for key, text in texts.items() if text]
        table.add_row(name, "\n".join(lines))
    console = Console()
    console.print(table)
    console.print("details of one method: arno methods NAME", highlight=False)
    console.print("a method of your own: arno run method=custom method.target=file.py:factory", highlight=False)


def show_method(name: str) -> None:
    """Print one method in full: the docstrings of its module and of its factory, its parts and its settings."""
    from ..methods import methods

    factory = methods.get(name)
    console = Console()
    console.print(escape(inspect.cleandoc(inspect.getmodule(factory).__doc__ or "")), highlight=False)
    console.print(f"\n[bold]{name}[/bold], parts: {escape(parts_of(methods, name))}")
    console.print(escape(inspect.cleandoc(factory.__doc__ or "").split(">>>")[0].rstrip()), highlight=False)
    console.print(f"settings: {escape(settings_of(methods, name)) or 'none'}")


def parts_of(registry: Registry, name: str) -> str:
    """The parts of a method."""
    if nested := registry.info(name).get("nested"):
        return f"any of {', '.join(nested.names())}"
    names = [type(part).__name__ for part in registry.get(name)()]
    return " + ".join(names) if names else "none, it is the round itself"


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


def show_clients(console: Console, partition: Partition, strata: Tensor, names: Sequence[str]) -> None:
    """Print how many training samples of each stratum each named client has; of many clients only the first."""
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
    from ..data.picture import draw_partition, summary

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
