"""`arno watch`: follow a run or a comparison in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from .parser import parser_of
from .runs import line, one, printable, span

if TYPE_CHECKING:
    from ..analysis.run_entry import Entry
    from ..analysis.run_index import Catalogue

ABOUT = """\
Shows a run or a comparison until it ends: its status, rounds, scores, time left and last messages. Ctrl-C ends the
display; the run continues. If the output is not a terminal, one line is printed after each change.

Exit status: 0 if the run is done, 1 if it has stopped or failed.
"""
#: Seconds between two updates; the most messages that are shown; the width of the bar.
PAUSE, MESSAGES, BAR = 0.5, 6, 30


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("watch", ABOUT, settings=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a comparison")
    path: Path = parser.parse_args(arguments).run
    catalogue, _ = one(path)
    with suppress(KeyboardInterrupt):
        return 0 if follow(catalogue).status == "done" else 1
    return 130


def follow(catalogue: Catalogue) -> Entry:
    """Show the entry of a folder until no process works on it. Return the last entry."""
    drawn, before, live = 0, list[str](), sys.stdout.isatty()
    while True:
        entry = catalogue.again([*catalogue.entries])["."] if before else catalogue.entries["."]
        lines = list(shown(catalogue, entry))
        if live and lines != before:
            print(f"\x1b[{drawn}F\x1b[0J" * bool(drawn) + "\n".join(lines), flush=True)
            drawn = len(lines)
        elif not live and told(lines) != told(before):
            print(told(lines), flush=True)
        before = lines
        if entry.status != "running":
            return entry
        time.sleep(PAUSE)
        if entry.kind != "run":
            catalogue.read()  # finds new cells


def told(lines: list[str]) -> str:
    """One line, for an output that is not a terminal."""
    return lines[1] if lines else ""


def shown(catalogue: Catalogue, entry: Entry) -> Iterator[str]:
    """The lines of the view."""
    from shutil import get_terminal_size

    from ..analysis.details import log

    wide = get_terminal_size((100, 24)).columns - 1
    part = entry.round / entry.rounds if entry.rounds else 0.0
    unit = "round" if entry.kind == "run" else "cells" if entry.cells else "trials"
    scores = "" if isnan(entry.score) else f"  {entry.label} {entry.declared().show(entry.score)}"
    why = f" ({entry.why})" if entry.why and entry.status != "running" else ""
    left = entry.pace * (entry.rounds - entry.round) if entry.status == "running" and entry.round else float("nan")
    what = f"  {entry.method} on {entry.data}" if entry.method else ""
    yield printable(f"{catalogue.folder}{what}")[:wide]
    done = f"  {unit} {entry.round}/{entry.rounds}{scores}" if entry.rounds else ""
    yield printable(f"{entry.status}{why}{done}")[:wide]
    if not sys.stdout.isatty():
        return
    if entry.rounds:
        full = round(part * BAR)
        rest = "" if isnan(left) else f"  about {span(left)} left"
        took = f"{span(entry.seconds)}{' so far' if entry.status == 'running' else ''}"
        yield f"[{'#' * full}{'.' * (BAR - full)}] {part:4.0%}  {took}{rest}"[:wide]
    cells = [cell for name, cell in catalogue.entries.items() if name != "."]
    for cell in [cell for cell in cells if cell.status == "running"][:MESSAGES]:
        yield printable("  " + "  ".join(filter(None, line(catalogue, cell)[:7])))[:wide]
    for message in log(catalogue.folder)[-MESSAGES:]:
        yield printable(f"  {message}")[:wide]
