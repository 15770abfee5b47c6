"""`arno runs`: list runs, comparisons and searches; show, compare, tag and remove them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArnoError
from .parser import parser_of

if TYPE_CHECKING:
    from ..analysis.run_entry import Entry
    from ..analysis.run_index import Catalogue

ABOUT = """\
Lists every run, comparison and search below FOLDER (default: the current folder), the newest first. Conditions choose
among them: KEY=VALUE, KEY!=VALUE, KEY>NUMBER (also <, >=, <=), since=7d, before=2026-01-31. KEY is name, kind, method,
data, status (running, stopped, killed, failed, done, damaged), tag, seed, round, rounds, score, seconds, a recorded
score (test_loss) or a setting (partition.alpha). VALUE may be a list a,b and may contain *. The score is the first
one that the task declares; ↓ means that less is better. A comparison is one line; --cells also lists its runs.
"""

EXAMPLES = """\
examples
  arno runs                                             what is below this folder
  arno runs runs method=scaffold status=failed since=7d
  arno runs 'score>0.9' partition.alpha=0.1 --sort score --limit 10
  arno runs show runs/20260131-120000-fedavg-1a2b       settings, scores, messages of a run
  arno runs diff runs/a runs/b                          in which settings and scores they differ
  arno runs tag baseline runs/a runs/b                  then: arno runs tag=baseline; --remove removes the tag
  arno runs rm runs/a                                   asks first; --yes does not
  arno runs rm status=failed before=30d --yes           what the conditions choose in the current folder

Only records are read. FOLDER/.arno-index.json keeps the list; runs whose files have changed are read again.
"""
#: How many lines are printed without --limit.
LINES = 50
#: The largest width of the column of names.
WIDEST = 64
COLUMNS = ("name", "method", "data", "status", "round", "score", "", "started", "time")


def main(arguments: list[str]) -> int:
    """Run the command."""
    others: dict[str, Callable[[list[str]], int]] = {"show": show, "rm": rm, "tag": tag, "diff": diff}
    if arguments and arguments[0] in others:
        return others[arguments[0]](arguments[1:])
    parser = parser_of("runs", ABOUT, EXAMPLES, settings=False)
    forms = ("[FOLDER] [condition ...] [options]", "show|diff|rm RUN ...", "tag WORD RUN ...")
    parser.usage = "\n       ".join(f"arno runs {form}" for form in forms)
    parser.add_argument("words", nargs="*", metavar="FOLDER, condition", help="a folder and conditions")
    parser.add_argument("--sort", default="started", metavar="KEY", help="default: started; the best or newest first")
    parser.add_argument("--reverse", action="store_true", help="in reverse order")
    parser.add_argument(
        "--limit",
        type=int,
        default=None,
        metavar="N",
        help=f"how many lines, 0: all; default: {LINES}, with --json all",
    )
    parser.add_argument("--cells", action="store_true", help="also the runs of comparisons and searches")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a list with everything that is known about each entry"
    )
    options = parser.parse_intermixed_args(arguments)

    from ..analysis.run_filters import ordered

    catalogue, found = chosen(options.words, options.cells)
    found = ordered(found, options.sort, options.reverse)
    if options.limit is not None and options.limit < 0:
        raise ArnoError(f"--limit {options.limit}", "it is a number of lines", "--limit 0 prints all")
    most = options.limit if options.limit is not None else 0 if options.json else LINES
    shown = found[:most] if most else found
    if options.json:
        print(json.dumps([entry.to_json() | {"path": str(catalogue.path(entry.name))} for entry in shown], indent=1))
        return 0
    tell(catalogue, shown, len(found), options.cells)
    return 0


def chosen(words: Sequence[str], cells: bool) -> tuple[Catalogue, list[Entry]]:
    """The catalogue of the folder among the words, and the entries that the conditions choose."""
    from ..analysis.run_filters import is_filter, parse, select
    from ..analysis.run_index import Catalogue

    places = [word for word in words if not is_filter(word) or os.path.isdir(word)]
    if len(places) > 1:
        raise ArnoError(" ".join(places), "one folder is listed at a time", "a condition is written KEY=VALUE")
    filters = parse(word for word in words if word not in places)
    catalogue = Catalogue(places[0] if places else ".")
    return catalogue, select(catalogue.read(), filters, catalogue.folder, cells)


def tell(catalogue: Catalogue, shown: Sequence[Entry], count: int, cells: bool) -> None:
    """Print the table, the damaged runs, and how many lines are not shown."""
    if not count:
        print(f"no runs in {catalogue.folder}" if not catalogue.entries else "no run fulfils the conditions")
        return
    print_table([line(catalogue, entry) for entry in shown])
    for entry in shown:
        if entry.status == "damaged":
            path = catalogue.path(entry.name)
            print(printable(f"damaged: {path}: {entry.why}; arno repair {path}"))
        elif entry.status == "failed" and entry.why:
            print(printable(f"failed: {catalogue.path(entry.name)}: {entry.why}"))
    if len(shown) < count:
        print(f"{count - len(shown):,} more: --limit 0 prints all")
    folded = sum(bool(entry.part_of) for entry in catalogue.entries.values())
    if folded and not cells and not any(entry.part_of for entry in shown):
        print(f"{folded:,} runs are part of comparisons and searches: --cells lists them")


def line(catalogue: Catalogue, entry: Entry) -> list[str]:
    """The texts of a line of the table, one per column."""
    arrow = "" if entry.better == "more" else " ↓"
    label = f"{entry.label}{arrow}" + (f" of {entry.best}" if entry.best else "")
    unit = "" if entry.kind == "run" else " cells" if entry.cells else " trials"
    status = f"{entry.status}, {entry.why}" if entry.status == "stopped" and entry.why == "killed" else entry.status
    return [
        str(catalogue.path(entry.name)) + "".join(f" #{tag}" for tag in entry.tags),
        entry.method if entry.kind == "run" else f"{entry.kind}: {entry.method}",
        entry.data,
        status,
        f"{entry.round}/{entry.rounds}{unit}" if entry.rounds else "–",
        entry.declared().show(entry.score),
        "" if isnan(entry.score) else label,
        when(entry.started),
        span(entry.seconds),
    ]


def when(started: float) -> str:
    """A point in time as text.

    >>> when(float("nan"))
    '–'
    """
    try:
        return "–" if isnan(started) else f"{datetime.fromtimestamp(started):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # the year is out of range
        return "–"


def span(seconds: float) -> str:
    """A duration as text.

    >>> span(12.34), span(90), span(5000), span(300_000), span(float("nan"))
    ('12 s', '1 min 30 s', '1 h 23 min', '3 d 11 h', '–')
    """
    if isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.2g} s"
    whole = int(seconds)
    for name, unit, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {smaller}"
    return ""


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; on a terminal, long texts of the method and the data are cut.

    A name that is longer than WIDEST moves the other columns of its own line only.
    """
    clean = [[printable(text) for text in row] for row in rows]
    if sys.stdout.isatty():
        clean = [
            [text if i not in (1, 2) or len(text) <= 32 else text[:31] + "…" for i, text in enumerate(r)] for r in clean
        ]
    widths = [max(wide(row[i]) for row in [COLUMNS, *clean]) for i in range(len(COLUMNS))]
    widths[0] = max(w for w in (wide(row[0]) for row in [COLUMNS, *clean]) if w <= WIDEST)
    for row in [COLUMNS, *clean]:
        cells = [
            " " * (w - wide(text)) + text if i in (4, 5, 8) else text + " " * (w - wide(text))
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def wide(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> wide("abc"), wide("実験"), wide("e\u0301")
    (3, 4, 1)
    """
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum((2 if east_asian_width(c) in "WF" else 1) for c in text if not combining(c))


def printable(text: str) -> str:
    """A text without characters that would move the cursor of a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def one(path: Path) -> tuple[Catalogue, Entry]:
    """The entry of a folder."""
    from ..analysis.run_index import Catalogue

    catalogue = Catalogue(path)
    entry = catalogue.read().get(".")
    if entry is None:
        raise ArnoError(f"{path}", "is no run and no comparison", "arno runs lists the folders of all runs")
    return catalogue, entry


def show(arguments: list[str]) -> int:
    """`arno runs show`: print everything that is known about a run."""
    parser = parser_of(
        "runs show", "Prints settings, scores and last messages of a run or a comparison.", settings=False
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a comparison")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    from ..analysis.details import details

    catalogue, entry = one(options.run)
    found = details(options.run, entry)
    if options.json:
        print(json.dumps(entry.to_json() | {"path": str(options.run)} | found.to_json(), indent=1))
        return 0
    kind = f"{entry.kind}, " if entry.kind != "run" else ""
    why = f" ({entry.why})" if entry.why else ""
    facts = [
        ("", f"{options.run}"),
        ("status", f"{kind}{entry.status}{why}"),
        ("method", entry.method),
        ("data", entry.data),
    ]
    facts += [("cells" if entry.cells else "rounds", f"{entry.round} of {entry.rounds}")]
    facts += [("started", when(entry.started)), ("time", span(entry.seconds))]
    facts += [("tags", " ".join(entry.tags))] if entry.tags else []
    facts += [("best", f"{entry.best}: {entry.label} {entry.declared().show(entry.score)}")] if entry.best else []
    facts += [(name, text) for name, text in found.scores]
    facts += [("setting", f"{key}={value}") for key, value in found.settings.items()]
    facts += [("command", found.command)] if found.command else []
    facts += [("log", text) for text in found.log[-5:]]
    wide = max(len(name) for name, _ in facts)
    for name, text in facts:
        print(f"{printable(name):<{wide}}  {printable(text)}")
    for name, cell in catalogue.entries.items():
        if name != ".":
            print("  ".join(map(printable, (line(catalogue, cell)))))
    return 0


def diff(arguments: list[str]) -> int:
    """`arno runs diff`: print the settings and scores in which runs differ."""
    parser = parser_of("runs diff", "Prints the settings and last scores in which runs differ.", settings=False)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    options = parser.parse_args(arguments)
    if len(options.runs) < 2:
        raise ArnoError("arno runs diff", "it compares at least two runs", "give another run")

    from ..analysis.details import differing

    entries = [one(path)[1] for path in options.runs]
    for path, entry in zip(options.runs, entries, strict=True):
        if entry.kind != "run" or entry.status == "damaged":
            why = entry.why or f"is a {entry.kind}"
            raise ArnoError(f"{path}", why, "give the folders of runs that can be read")
    rows = [["", *map(str, options.runs)], *differing(options.runs, entries)]
    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(printable(text).ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def tag(arguments: list[str]) -> int:
    """`arno runs tag`: add a tag to runs, or remove it."""
    parser = parser_of("runs tag", "Adds a tag to runs and comparisons, or removes it.", settings=False)
    parser.add_argument("word", metavar="WORD", help="the tag; several: a,b")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs or comparisons")
    parser.add_argument("--remove", action="store_true", help="remove the tag")
    options = parser.parse_args(arguments)

    from ..analysis.run_entry import write_tags

    words = options.word.split(",")
    for word in words:
        if not word.isprintable() or not word.strip() or len(word) > 64 or " " in word:
            raise ArnoError(f"tag {word!r}", "a tag is one word of at most 64 characters", "try baseline")
    entries = [one(path)[1] for path in options.runs]
    for path, entry in zip(options.runs, entries, strict=True):
        kept = [word for word in entry.tags if word not in words]
        write_tags(path, kept if options.remove else [*kept, *dict.fromkeys(words)])
    return 0


def rm(arguments: list[str]) -> int:
    """`arno runs rm`: delete runs."""
    about = "Deletes runs and comparisons: only files that Arno wrote. It refuses a folder in which a process works."
    parser = parser_of("runs rm", about, settings=False)
    parser.add_argument("words", nargs="+", metavar="RUN, condition", help="folders, or conditions as for arno runs")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args(arguments)

    from ..analysis.delete_runs import refuse_removal, remove
    from ..analysis.run_filters import is_filter

    paths = [Path(word) for word in options.words if not is_filter(word) or os.path.isdir(word)]
    filters = [word for word in options.words if Path(word) not in paths]
    if filters and paths:
        raise ArnoError(" ".join(options.words), "folders and conditions cannot be mixed", "give one kind of them")
    if filters:
        catalogue, found = chosen(filters, cells=False)
        paths = [catalogue.path(entry.name) for entry in found if entry.status != "running"]
        if not paths:
            print("no run fulfils the conditions")
            return 0
    for path in paths:
        refuse_removal(path)
    if not options.yes and not agreed(paths):
        return 1
    for path in paths:
        left = remove(path)
        kept = f", except files that Arno did not write: {', '.join(left[:5])}" if left else ""
        print(printable(f"removed {path}{kept}"))
    return 0


def agreed(paths: Sequence[Path]) -> bool:
    """Ask whether to delete these folders; an error if the input is not a terminal."""
    if not sys.stdin.isatty():
        raise ArnoError(
            f"remove {len(paths)} run{'s' * (len(paths) != 1)}",
            "the input is not a terminal, so the command cannot ask",
            "add --yes",
        )
    for path in paths[:20]:
        print(printable(f"{path}"))
    more = f" ({len(paths) - 20} more)" if len(paths) > 20 else ""
    answer = input(f"delete {'this' if len(paths) == 1 else f'these {len(paths)}'}{more}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")
