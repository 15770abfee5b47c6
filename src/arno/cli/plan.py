"""`arno plan`: what a run would take, before it is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArnoError
from .parser import parser_of

if TYPE_CHECKING:
    from ..runs.plan import Plan

ABOUT = """\
Prints what `arno run` with the same settings would take: memory, disk, bytes and seconds per round, the engine, the
kernel with the reason for its choice, and whether the run would be refused. The seconds come from a few steps of local
training on this machine. Memory, disk and seconds are estimates. Commas and ranges make a grid, as for `arno compare`;
runs that differ only in their seed are planned once.
"""

EXAMPLES = """\
examples
  arno plan data=fashion_mnist model=lenet5 clients=100 participation=0.1 method=scaffold
  arno plan method=fedavg,scaffold clients=100,1000 seed=0..4
  arno plan problem=quadratic clients=1000000 method=scaffold --json

Exit status: 0, or 2 if a run would be refused.
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("plan", ABOUT, EXAMPLES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="start from this configuration file")
    parser.add_argument("--json", action="store_true", help="print JSON: a list with a plan for each kind of run")
    options = parser.settings(arguments)

    from ..config import settings as configs
    from ..grids.grid import cells
    from ..runs.plan import plan

    base = None if options.config is None else configs.read(options.config) | {"out": None}
    grid = cells(options.overrides)
    if base is not None and len(grid) > 1:
        raise ArnoError("--config with several values of a setting", "a file describes one run", "leave one out")
    kinds: dict[str, list[tuple[str, ...]]] = {}
    for cell in grid:
        kinds.setdefault(cell.varied, []).append(cell.overrides)
    plans = [(name, len(runs), plan(configs.plain(configs.compose(runs[0], base)))) for name, runs in kinds.items()]
    if options.json:
        print(json.dumps([{"name": name, "runs": runs} | one.to_json() for name, runs, one in plans], indent=2))
    else:
        for name, runs, one in plans:
            if len(plans) > 1:
                print(f"== {name}" + (f", {runs} runs" if runs > 1 else ""))
            show(one)
        if len(grid) > 1:
            show_grid([(runs, one) for _, runs, one in plans])
    return 2 if any(one.refused for _, _, one in plans) else 0


def show(plan: Plan) -> None:
    """Print a plan."""
    from ..core.resources import Need, shown, summed

    rows = [("problem", plan.problem), ("method", plan.method)]
    if plan.parameters:
        rounds = (
            f"{plan.rounds:,}, with {plan.cohort:,} of {plan.clients:,} clients and {plan.local_steps:,} local steps"
        )
        workers = f", {plan.workers} workers" if plan.workers else ", in one process"
        memory, disk = ([Need(*item) for item in items.items()] for items in (plan.memory_items, plan.disk_items))
        rows += [
            ("parameters", f"{plan.parameters:,}"),
            ("rounds", f"{rounds} each"),
            ("engine", plan.engine + workers),
            *([("kernel", f"{plan.kernel}: {plan.kernel_reason}")] if plan.kernel else []),
            ("memory", f"about {summed(memory)}; this machine has {shown(plan.memory_room)}"),
            *([("shared memory", f"about {shown(plan.shared_memory)} of it")] if plan.shared_memory else []),
            ("disk", f"about {summed(disk)}; {shown(plan.disk_room)} are free"),
        ]
    if plan.seconds is not None:
        rows.append(("traffic", f"{shown(plan.up)} up, {shown(plan.down)} down per round"))
        rows.append(("time", f"about {plan.seconds:.2g} s per round, {duration(plan.rounds * plan.seconds)} in all"))
    rows += [("tight", line) for line in plan.tight] + [("refused", line) for line in plan.refused]
    for name, text in rows:
        print(f"{name:<14} {text}")


def show_grid(plans: list[tuple[int, Plan]]) -> None:
    """Print the sums over the runs of a grid."""
    from ..core.resources import shown

    runs = sum(count for count, _ in plans)
    seconds = sum(count * plan.rounds * (plan.seconds or 0) for count, plan in plans)
    most, jobs = max(plan.memory for _, plan in plans), min(runs, os.cpu_count() or 1)
    print(f"== all {runs} runs")
    at_once = f"`arno compare` runs at most {jobs} at a time, unless --jobs is given"
    print(f"{'memory':<14} at most {shown(most)} each; {at_once}")
    print(f"{'disk':<14} about {shown(sum(count * plan.disk for count, plan in plans))}")
    print(f"{'time':<14} about {duration(seconds)} one after the other")
    if refused := sum(count for count, plan in plans if plan.refused):
        print(f"{'refused':<14} {refused} of {runs}")


def duration(seconds: float) -> str:
    """A time as text.

    >>> duration(12.3), duration(600), duration(10_000), duration(1e6)
    ('12 s', '10 min', '2.8 h', '12 days')
    """
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return (
                f"{seconds / unit:.1f} {name}"
                if seconds < 10 * unit and name != "min"
                else f"{seconds / unit:.0f} {name}"
            )
    return f"{seconds:.2g} s"
