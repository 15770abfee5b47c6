"""The command line. Each command is a function here; what it needs is imported when it runs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ArnoError, unknown
from .version import __version__

if TYPE_CHECKING:
    from .experiment.run import RunResult

EPILOG = """\
examples
  arno run                                              FedAvg on the embedded digits
  arno run method=fedprox method.mu=0.1 partition.alpha=0.1 rounds=100 seed=1
  arno run data=fashion_mnist model=lenet5 clients=100 participation=0.1 local.lr=0.05
  arno compare method=fedavg,fedprox partition.alpha=0.1,1.0 seed=0..4
  arno report compare                                   what came of it, as one HTML file
  arno resume runs/20260131-120000-fedavg-1a2b          go on where a run was stopped
  arno methods                                          what there is, with papers and settings
"""

RUN = """\
Settings are written key=value, as in Hydra; the value is YAML. A group is chosen by its name and its own settings
follow it: method=fedprox method.mu=0.1. What may differ per client takes a number, a list with one number per client,
or a law: local.lr='uniform(0.001, 0.1)', local.epochs='choice(1, 5, 10)'.
"""

RUN_EXAMPLES = """\
examples
  arno run method=fedprox method.mu=0.1 data=fashion_mnist partition=dirichlet partition.alpha=0.3 \\
      clients=100 participation=0.1 rounds=50 local.epochs=1 local.batch_size=32 local.lr=0.05 seed=0
  arno run data=cifar10 data.root=~/data/cifar10 model=simple5layercnn clients=10
  arno run data=npz data.path=mine.npz model=custom model.target=my_net.py:Net
  arno run method=custom method.target=my_method.py:factory
  arno run --config runs/…/config.yaml seed=1           a run again, with another seed
  arno run --stages warm-up.yaml,qrmix.yaml out=mine     the second goes on from the first one's model and round

A run is a folder (its path is the last line printed): config.yaml, manifest.json, metrics.jsonl, clients.parquet,
checkpoints, final and best model, curves.png. Ctrl-C saves it; `arno resume` goes on.
"""


COMPARE = """\
Settings as for `arno run`; commas and ranges make a grid: method=fedavg,fedprox seed=0..4. A setting that only one
method has, or has otherwise, follows that method's name: fedprox.mu=0.1, lorenzo.participation=1.
Of the comparison itself: out=DIR (default: compare), target=0.9 (what it takes to reach it), metric=test_accuracy
(default: test_f1), test=wilcoxon (default: t).

What is compared are the methods or, where there is one, the values of the first key that has several; with more keys
that vary, within each of their combinations. The first method is the reference of the paired differences.
Given again with the same out=, finished cells are skipped, stopped ones go on; failed ones wait for --retry.
"""

COMPARE_EXAMPLES = """\
examples
  arno compare method=fedavg,fedprox,scaffold partition.alpha=0.1,1.0 seed=0..4 rounds=50 target=0.9
  arno compare method=fedavg,fedprox fedprox.mu=0.01,0.1 partition.alpha=0.1 seed=0..4 out=mu
  arno compare local.lr=0.01,0.03,0.1 seed=0..4 out=lr

The folder holds a run folder per cell, table.md, table.tex, table.csv, differences.csv, compare.png and compare.json.
"""


class Parser(argparse.ArgumentParser):
    """argparse, with errors as every other error of Arno: one line, exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Raise it; `main` prints it."""
        raise ArnoError(self.prog, message, f"see {self.prog} --help")

    def settings(self, arguments: list[str]) -> argparse.Namespace:
        """Options and settings in any order; whoever writes a setting as an option is told how it is written."""
        options, extra = self.parse_known_intermixed_args(arguments)
        if extra:
            key, _, value = extra[0].lstrip("-").partition("=")
            after = arguments[arguments.index(extra[0]) + 1 :]
            value = value or next((word for word in after[:1] if not word.startswith("-") and "=" not in word), "…")
            hint = f"a setting is written {key}={value}; see {self.prog} --help"
            raise ArnoError(f"{self.prog} {extra[0]}", "there is no such option", hint)
        return options


QUADRATIC = """\
Settings and their defaults:
  num_users=30 frac=0.1       K clients, of which m = max(int(frac K), 1) are selected every round
  seltype=rand powd=null      rand, uniform, powd, cpowd, rpowd, adapowd, roundrobin; candidates d (default 2m)
  lr=2e-5 le=2 epochs=15000   learning rate, local steps, rounds
  dim=5 alpha=3 spd=false     dimension, exponent of the shares' power law, full matrices H_k
  seed=0 until=0.5            of everything random; when adapowd's d has come down to m
  rho=false samples=100       estimate the selection's skew, from so many selections a round
  out=DIR track=mlflow        the folder; trackers
Commas and ranges make a sweep: seltype=rand,powd,adapowd powd=6,9,15 seed=0..19
"""


REPORT = """\
One HTML file about runs: the table with intervals and paired differences, curves over rounds, local steps, bytes and
idealised parallel time, who holds what, how well each client is served, drift, selection, what each method shows of
itself, in what the runs differ, and how to reproduce them. It needs no network, so it can be mailed or kept.

RUN is the folder of a run, or that of a comparison. Runs that differ only in their seed are taken together.
"""

REPORT_EXAMPLES = """\
examples
  arno report demo                                      a comparison; writes demo/report.html
  arno report runs/a runs/b runs/c --out abc.html       some runs
  arno report demo --pdf                                also figures for a paper, in demo/figures
  arno run … eval.clients=true                          records how well each client is served
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: runs a command and exits with its status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        status = dispatch([a for a in arguments if a != "--debug"])
    except ArnoError as error:
        if debug:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def dispatch(arguments: list[str]) -> int:
    """Find the command and run it."""
    parser = Parser(
        prog="arno",
        description="Federated optimisation under heterogeneous data. Many streams, one river.",
        epilog="commands\n" + "".join(f"  {n:<12}{f.__doc__}\n" for n, f in COMMANDS.items()) + "\n" + EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="arno COMMAND [key=value ...] [--help]",
    )
    parser.add_argument("--version", action="version", version=f"arno {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
        parser.print_help()
        return 0
    if arguments[0] not in COMMANDS:
        raise unknown("command", arguments[0], COMMANDS)
    return COMMANDS[arguments[0]](arguments[1:])


def _parser(command: str, description: str = "", epilog: str = "", settings: bool = True) -> Parser:
    usage = f"arno {command} [key=value ...] [options]" if settings else None
    parser = Parser(
        prog=f"arno {command}",
        usage=usage,
        description=description or COMMANDS[command].__doc__,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if settings:
        parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings")
    return parser


def _settings_help() -> str:
    from textwrap import wrap

    from .completion import registered
    from .experiment.config import GROUPS, describe, written

    lines = []
    for key, default, text in describe():
        value = written(default)
        if key in GROUPS:
            names = [*registered(key), "custom"] if key in ("method", "model") else registered(key)
            text = f"{text}: {', '.join(names)}"
        first, *more = wrap(text, 84)
        lines += [f"  {key:<20} {value:<15} {first}", *(" " * 39 + line for line in more)]
    return "settings, their defaults and what they mean\n" + "\n".join(lines) + "\n\n"


def run(arguments: list[str]) -> int:
    """train a federation"""
    asked = any(a in ("-h", "--help") for a in arguments)
    parser = _parser("run", RUN, (_settings_help() if asked else "") + RUN_EXAMPLES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="start from this configuration file")
    parser.add_argument("--stages", metavar="A,B", help="run these files in turn, each from the last one's model")
    parser.add_argument("--quiet", action="store_true", help="print only the run's folder")
    options = parser.settings(arguments)
    if options.stages is not None:
        return _stages(options.stages.split(","), options)

    from .experiment import config as configs

    base = None if options.config is None else configs.read(options.config) | {"out": None}
    try:
        config = configs.plain(configs.compose(options.overrides, base))

        from .experiment.progress import choose
        from .experiment.run import execute

        return _finish(lambda: execute(config, choose(options.quiet)), options.quiet)
    except ArnoError as error:
        if base is None:
            _refuse_several(options.overrides, error)
        raise


def _refuse_several(words: Sequence[str], error: ArnoError) -> None:
    """Where the value that an error complains of is several ones, say what makes a grid."""
    from .experiment.grid import values

    for word in words:
        value = word.partition("=")[2]
        if value in str(error) and len(list(values(value))) > 1:
            same = shlex.join(["arno", "compare", *words])
            rule = "a run takes one value of each setting"
            raise ArnoError(word, rule, f"for a run of each: {same}") from error


def _stages(files: list[str], options: argparse.Namespace) -> int:
    if options.config is not None:
        raise ArnoError("--config with --stages", "the stages are configuration files themselves", "leave one out")

    from .experiment.progress import choose
    from .experiment.stages import run_stages

    return _finish(lambda: run_stages(files, options.overrides, choose(options.quiet)), options.quiet)


def resume(arguments: list[str]) -> int:
    """continue a run that was stopped or killed"""
    parser = _parser("resume", "Continue a run. rounds=, eval.…= and checkpoint.…= may change; nothing else may.")
    parser.add_argument("--previous", action="store_true", help="from the checkpoint before the last one")
    parser.add_argument("--quiet", action="store_true", help="print only the run's folder")
    parser.usage = "arno resume RUN [key=value ...] [options]"
    options = parser.settings(arguments)
    if not options.overrides:
        parser.error("give the run's folder")
    path, *overrides = options.overrides

    from .experiment.progress import choose
    from .experiment.run import resume as again

    progress = choose(options.quiet)
    return _finish(lambda: again(path, *overrides, progress=progress, previous=options.previous), options.quiet)


def _finish(job: Callable[[], RunResult], quiet: bool) -> int:
    from .experiment.run import Interrupted

    try:
        result = job()
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 130
    if not quiet:
        _table(result)
    print(result.path)
    return 0


def _table(result: RunResult) -> None:
    """The scores of the last model and of the best one."""
    from rich.console import Console
    from rich.table import Table

    from .experiment.progress import number

    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    best_round = result.folder.manifest()["best_round"]
    best = next((row for row in rows if row["round"] == best_round), rows[-1])
    shown = {
        "test_accuracy": "test accuracy",
        "test_f1": "test F1",
        "test_loss": "test loss",
        "val_f1": "validation F1",
        "client_accuracy_mean": "per client",
        "client_accuracy_std": "std",
        "client_accuracy_worst_decile": "worst 10%",
    }
    metrics = [metric for metric in shown if metric in rows[-1]] or [k for k, v in rows[-1].items() if k != "round"]
    table = Table("", "last", "best")
    table.add_row("round", str(rows[-1]["round"]), str(best["round"]))
    for metric in metrics:
        numbers = ("–" if metric not in row else number(row[metric]) for row in (rows[-1], best))
        table.add_row(shown.get(metric, metric), *numbers)
    console = Console()
    console.print(table)
    console.print(f"curves: {result.path / 'curves.png'}", highlight=False)


def compare(arguments: list[str]) -> int:
    """run methods × settings × seeds; tables with intervals and paired tests"""
    parser = _parser("compare", COMPARE, COMPARE_EXAMPLES)
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help="cells at a time; default: one per core")
    parser.add_argument("--retry", action="store_true", help="run failed cells again, from their beginning")
    options = parser.settings(arguments)

    from .experiment.compare import command

    return command(options.overrides, options.jobs, options.retry)


def report(arguments: list[str]) -> int:
    """write one HTML file about runs: tables, curves, clients, drift"""
    parser = _parser("report", REPORT, REPORT_EXAMPLES, settings=False)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run or of a comparison")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html, in RUN if there is only one")
    parser.add_argument("--png", action="store_true", help="also every picture as PNG, in `figures` beside the file")
    parser.add_argument("--pdf", action="store_true", help="the same as PDF")
    options = parser.parse_args(arguments)

    from .experiment.comparison import Comparison, runs_in
    from .report.figures import write_figures
    from .report.html import write_report

    one = options.runs[0] if len(options.runs) == 1 else None
    found = Comparison.of([one] if one else [cell for run in options.runs for cell in runs_in(run)])
    path = options.out or (one or Path()) / "report.html"
    write_report(found, path)
    kinds = [kind for kind in ("png", "pdf") if getattr(options, kind)]
    if kinds:
        print(f"figures: {write_figures(found, path.parent / 'figures', kinds)}")
    print(path)
    return 0


def methods(arguments: list[str]) -> int:
    """list the methods: paper, formula, parts, settings"""
    parser = _parser("methods", settings=False)
    parser.add_argument("name", nargs="?", help="show one method in full")
    options = parser.parse_args(arguments)

    from .report.listing import show_method, show_methods

    if options.name:
        show_method(options.name)
    else:
        show_methods()
    return 0


def data(arguments: list[str]) -> int:
    """list data sets; `arno data show …` describes a partition and draws it"""
    parser = _parser(
        "data", "`arno data` lists the data sets; `arno data show data=… partition=…` describes a partition."
    )
    parser.add_argument("--out", type=Path, default=Path("partition.png"), help="the picture (default: partition.png)")
    options = parser.settings(arguments)

    from .report.listing import show_data, show_partition

    if not options.overrides:
        show_data()
        return 0
    verb, *overrides = options.overrides
    if verb != "show":
        raise unknown("word after `arno data`", verb, ["show"])
    show_partition(overrides, options.out)
    return 0


def conform(arguments: list[str]) -> int:
    """replay conformance cases (the packaged ones by default)"""
    parser = _parser("conform", settings=False)
    parser.add_argument("cases", nargs="*", type=Path, metavar="CASE", help=".npz files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--backend", default="serial", help="replay on this engine")
    options = parser.parse_args(arguments)

    from .conform import PACKAGED, implemented, replay

    cases = options.cases or [case for case in sorted(PACKAGED.glob("*.npz")) if implemented(case)]
    outcomes = []
    for case in cases:
        outcome = replay(case, options.backend)
        outcomes.append(outcome)
        if not options.json:
            print(f"{outcome.name:<36} {outcome.error:.3e}  {'ok' if outcome.ok else 'FAIL'}", flush=True)
    if options.json:
        rows: list[dict[str, Any]] = [
            {"name": o.name, "error": o.error if isfinite(o.error) else None, "tolerance": o.tolerance, "ok": o.ok}
            for o in outcomes
        ]
        print(json.dumps(rows, indent=2, allow_nan=False))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def quadratic(arguments: list[str]) -> int:
    """simulate client selection on quadratics, 15,000 rounds in a moment"""
    parser = _parser("quadratic", QUADRATIC)
    parser.add_argument("--quiet", action="store_true", help="print only the folder")
    options = parser.settings(arguments)

    from .experiment.study import run as study

    return study(options.overrides, options.quiet)


def track(arguments: list[str]) -> int:
    """send a run's records to a tracker: arno track RUN --to mlflow"""
    parser = _parser("track", settings=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--to", default="mlflow", help="mlflow, tensorboard or wandb; mlflow@URI names a server")
    parser.add_argument("--follow", action="store_true", help="go on until the run is over")
    options = parser.parse_args(arguments)

    if options.follow and hasattr(os, "nice"):
        os.nice(10)  # the run comes first

    from .experiment.tracking import send

    sent = send(options.run, options.to, options.follow)
    print(f"{sent} rounds sent")
    return 0


def completion(arguments: list[str]) -> int:
    """print a completion script for your shell: eval "$(arno completion bash)\""""
    from .completion import SCRIPTS, words

    if arguments[:1] == ["--words"]:
        print("\n".join(words(arguments[1:])))
        return 0
    parser = _parser("completion", settings=False)
    parser.add_argument("shell", choices=sorted(SCRIPTS))
    print(SCRIPTS[parser.parse_args(arguments).shell])
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run,
    "resume": resume,
    "compare": compare,
    "report": report,
    "methods": methods,
    "data": data,
    "conform": conform,
    "quadratic": quadratic,
    "track": track,
    "completion": completion,
}
