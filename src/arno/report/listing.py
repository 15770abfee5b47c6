"""What `arno methods` and `arno data` print."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..registry import Registry


def show_methods() -> None:
    """The table of methods."""
    from ..methods import methods

    table = Table("method", "parts", "formula", "settings", "paper", show_lines=True)
    for name in methods.names():
        info = methods.info(name)
        table.add_row(
            name,
            parts_of(methods, name),
            escape(info.get("formula", "")),
            escape(settings_of(methods, name)),
            escape(info.get("paper", "")),
        )
    console = Console()
    console.print(table)
    console.print("More of one: arno methods NAME. Your own: arno run method=custom method.target=file.py:factory")


def show_method(name: str) -> None:
    """One method in full: the text of its file's docstring and of its factory."""
    from ..methods import methods

    factory = methods.get(name)
    console = Console()
    console.print(escape(inspect.cleandoc(inspect.getmodule(factory).__doc__ or "")), highlight=False)
    console.print(f"\n[bold]{name}[/bold] is made of: {parts_of(methods, name)}")
    console.print(escape(inspect.cleandoc(factory.__doc__ or "").split(">>>")[0].rstrip()), highlight=False)
    console.print(f"settings: {escape(settings_of(methods, name)) or 'none'}")


def parts_of(registry: Registry, name: str) -> str:
    """The parts a method is made of."""
    names = [type(part).__name__ for part in registry.get(name)()]
    return " + ".join(names) if names else "none: the round itself"


def settings_of(registry: Registry, name: str) -> str:
    """Settings and their defaults."""
    return ", ".join(f"{p.name}={p.default}" for p in registry.settings(name).values())


def show_data() -> None:
    """The tables of data sets and partitions."""
    from ..data import datasets, partitions

    console = Console()
    for title, registry in (("data", datasets), ("partition", partitions)):
        table = Table(title, "what it is", "settings")
        for name in registry.names():
            first = inspect.cleandoc(registry.get(name).__doc__ or "").split("\n")[0]
            table.add_row(name, escape(first), escape(settings_of(registry, name)))
        console.print(table)


def show_partition(overrides: Sequence[str], path: Path) -> None:
    """Describe and draw who holds what."""
    from ..data.picture import draw_partition, summary
    from ..experiment.build import split
    from ..experiment.config import compose, plain

    config = plain(compose(overrides))
    dataset, train, held_out, partition = split(config)
    labels = dataset.y[train]
    console = Console()
    table = Table(f"{dataset.name}, {config['partition']['kind']}", "", show_header=True)
    table.add_row("samples", f"{len(train)} to train on, {len(held_out)} for validation, {len(dataset.y_test)} to test")
    for name, value in summary(partition, labels, dataset.classes).items():
        table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    draw_partition(partition, labels, dataset.classes, path)
    print(path)
