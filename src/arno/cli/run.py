"""`arno run`: train a federation."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..errors import ArnoError
from .parser import parser_of
from .print_result import finish

ABOUT = """\
Settings are written key=value, as in Hydra; the value is YAML. GROUP=NAME chooses an entry of a group, and the settings
of this entry are written GROUP.SETTING: method=fedprox method.mu=0.1. A setting that may differ per client takes a
number, a list with one number per client, or a distribution: local.lr='uniform(0.001, 0.1)',
local.epochs='choice(1, 5, 10)', local.epochs='each_round(integers(1, 5))'.
"""

EXAMPLES = """\
examples
  arno run method=fedprox method.mu=0.1 data=fashion_mnist partition=dirichlet partition.alpha=0.3 \\
      clients=100 participation=0.1 rounds=50 local.epochs=1 local.batch_size=32 local.lr=0.05 seed=0
  arno run data=sklearn data.name=diabetes clients=10   regression: the task follows from the data
  arno run data=cifar10 data.root=~/data/cifar10 model=simple5layercnn clients=10
  arno run data=npz data.path=mine.npz model=custom model.target=my_net.py:Net
  arno run method=custom method.target=my_method.py:factory
  arno run --config runs/…/config.yaml seed=1           the same run with another seed
  arno run --stages warm-up.yaml,qrmix.yaml out=mine    the second continues from the model of the first

A run is a folder (its path is the last line printed): config.yaml, manifest.json, metrics.jsonl, clients.parquet,
checkpoints, final and best model, pictures. Ctrl-C saves it; `arno resume` continues it.
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    asked = any(a in ("-h", "--help") for a in arguments)
    parser = parser_of("run", ABOUT, (settings_help() + group_help(arguments) if asked else "") + EXAMPLES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="start from this configuration file")
    parser.add_argument(
        "--stages", metavar="A,B", help="run these files one after another, each from the model of the previous one"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the run's folder")
    options = parser.settings(arguments)
    if options.stages is not None:
        return run_stages(options.stages.split(","), options)

    from ..config import settings as configs

    base = None if options.config is None else configs.read(options.config) | {"out": None}
    try:
        config = configs.plain(configs.compose(options.overrides, base))

        from ..runs.progress import choose
        from ..runs.run import execute

        return finish(lambda: execute(config, choose(options.quiet)), options.quiet)
    except ArnoError as error:
        if base is None:
            refuse_several(options.overrides, error)
        raise


def run_stages(files: list[str], options: argparse.Namespace) -> int:
    """Run configuration files one after another."""
    if options.config is not None:
        raise ArnoError("--config with --stages", "the stages are configuration files themselves", "leave one out")

    from ..runs import stages
    from ..runs.progress import choose

    return finish(lambda: stages.run_stages(files, options.overrides, choose(options.quiet)), options.quiet)


def refuse_several(words: Sequence[str], error: ArnoError) -> None:
    """If an error is about a setting with several values, raise an error that names the command for several runs."""
    from ..config.lists import values

    for word in words:
        value = word.partition("=")[2]
        if value in str(error) and len(list(values(value))) > 1:
            same = shlex.join(["arno", "compare", *words])
            rule = "a run takes one value of each setting"
            raise ArnoError(word, rule, f"to run each value: {same}") from error


def settings_help() -> str:
    """Every general setting with its default and its meaning; for a group, also the names of its entries."""
    from textwrap import wrap

    from ..config.names import registered
    from ..config.settings import GROUPS, describe, written

    lines = []
    for key, default, text in describe():
        if key in GROUPS:
            text = f"{text}: {', '.join([*registered(key), 'custom'])}"
        first, *more = wrap(text, 84)
        lines += [f"  {key:<20} {written(default):<15} {first}", *(" " * 39 + line for line in more)]
    text = "settings, their defaults and what they mean\n" + "\n".join(lines)
    return f"{text}\n  the settings of entries of groups: arno run --help method=fedprox data=table\n\n"


def group_help(words: Sequence[str]) -> str:
    """The settings of the entries that the command names (such as `method=fedprox`), with defaults and meanings."""
    from textwrap import wrap

    from ..config.settings import GROUPS, registry, written

    named = [(group, kind) for group, _, kind in (word.partition("=") for word in words) if group in GROUPS]
    if not named:
        return ""

    from ..methods.descriptions import read  # imports torch

    lines = []
    for group, kind in named:
        target = next((word.partition("=")[2] for word in words if word.startswith(f"{group}.target=")), None)
        if not kind or (kind == "custom" and not target):
            continue
        lead, texts = read(registry(group).get(kind, target).__doc__ or "")
        lines += [f"{group}={kind}", *(f"  {line}" for line in wrap(lead, 118))]
        for name, parameter in registry(group).settings(kind, target).items():
            default = "" if parameter.default is parameter.empty else written(parameter.default)
            first, *more = wrap(texts.get(name, "use only this many samples" if name == "limit" else ""), 72) or [""]
            lines += [f"  {f'{group}.{name}':<26} {default:<21} {first}", *(" " * 51 + line for line in more)]
        lines.append("")
    return "\n".join([*lines, ""]) if lines else ""
