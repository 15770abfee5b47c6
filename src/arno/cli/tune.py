"""`arno tune`: search the settings of each method with equal budgets, then compare the methods at their best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .compare import tell
from .parser import parser_of

if TYPE_CHECKING:
    from ..grids.searches import Plan

ABOUT = """\
Settings are written as for `arno compare`. A setting whose value is a range is searched, for each method separately:
  local.lr='log(0.001, 1)'      a number, on a logarithmic scale       local.epochs='int(1, 10)'   a whole number
  fedprox.mu='linear(0, 1)'     a number, for FedProx only             method.rule='any(a, b)'     one of a list
Without a range for local.lr, log(0.001, 1) is searched, and each method adds the ranges that it declares for its own
settings (`arno methods NAME` shows them). A setting with a value is not searched.

Every method gets the same number of trials and of rounds. Trials are scored on validation data, with separate seeds.
The best settings of each method are then compared on the seeds of seed= (default 0..2); only these runs read test data.
If you give the same command again, the search and the comparison continue.
"""

EXAMPLES = """\
examples
  arno tune method=fedavg,fedprox,scaffold partition.alpha=0.1 rounds=40 seed=0..4 out=tuned
  arno tune method=fedavg,fedadam local.lr='log(0.01, 1)' fedadam.server_lr='log(0.001, 0.1)' --trials 30
  optuna-dashboard tuned/optuna.journal                 the trials in Optuna's own dashboard

The folder holds the comparison (as `arno compare` writes it), tune.json and the runs of the search.
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("tune", ABOUT, EXAMPLES)
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="trials per method; default: 20")
    parser.add_argument("--search-seeds", default="1000", metavar="S", help="seeds of the search; default: 1000")
    parser.add_argument("--no-pruning", action="store_true", help="train every trial to the last round")
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help="runs at a time; default: one per core")
    parser.add_argument("--retry", action="store_true", help="run failed runs of the comparison again")
    options = parser.settings(arguments)

    from ..grids.searches import Plan

    plan = Plan(options.trials, options.search_seeds, not options.no_pruning, options.jobs, options.retry)
    return run(options.overrides, plan)


def run(overrides: list[str], plan: Plan, folder: str = "tune") -> int:
    """Search, compare, and print the tables of both."""
    from rich.console import Console

    from ..grids.compare import own_keys
    from ..grids.tune import search_and_compare

    console = Console()
    own, words = own_keys(overrides)
    out = Path(own.pop("out") or folder)
    try:
        found = search_and_compare(words, out, own, plan, console=console)
    except KeyboardInterrupt:
        print("stopped; the same command continues it")
        return 130
    return tell(found, out, console)
