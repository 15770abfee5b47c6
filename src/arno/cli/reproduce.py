"""`arno reproduce`: repeat published figures and compare the values with the published ones."""

from __future__ import annotations

import json
import shlex
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArnoError
from .parser import parser_of

if TYPE_CHECKING:
    from ..reproduce.figure import Figure

ABOUT = """\
A figure is a table, a curve or a claim of a publication. It consists of settings, methods, and checks; a check has a
range of values that count as reproduced (its band). Without a name, the command lists the figures; with --show also
their settings and bands. With a name, it runs the figure as a comparison, prints our values beside the published ones
and whether every check holds, and writes this page into the folder of the figure. A figure that was stopped continues.
The common beginning of several names means all of them: scaffold-table3 is scaffold-table3-0, -10 and -100. Settings
override those of the figure (data.root=DIR, data=emnist, engine=serial). out=DIR names the folder (default:
runs/reproduce/NAME). With other settings, or with --quick, the result is no verdict on the figure. Exit status: 0 if
every check holds, 1 if a check does not hold.
"""

EXAMPLES = """\
examples
  arno reproduce                                list the figures
  arno reproduce scaffold-figure3               run one
  arno reproduce scaffold-table3                run three: scaffold-table3-0, -10 and -100
  arno reproduce scaffold-table3-0 --show       its setting, claim and bands
  arno reproduce scaffold-table3-0 --quick      one seed and few rounds: a coarse check
  arno reproduce scaffold-table3-0 data=emnist  the data of the publication
"""

#: The text below the list of figures.
NEXT = """
arno reproduce NAME --show    its setting, and the bands that count as reproduced
arno reproduce NAME --quick   a coarse check: one seed, few rounds
arno reproduce NAME           the figure itself
docs/results/reproduce.md has the verdicts so far, and explains them."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("reproduce", ABOUT, EXAMPLES)
    parser.usage = "arno reproduce [NAME ...] [key=value ...] [options]"
    parser.add_argument("--show", action="store_true", help="print the setting, the claim and the bands; run nothing")
    parser.add_argument("--quick", action="store_true", help="one seed, few rounds: a coarse check")
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help="runs at a time; default: one per core")
    parser.add_argument("--retry", action="store_true", help="run failed cells again, from their beginning")
    options = parser.settings(arguments)

    from ..reproduce.figure import load, meant, names

    asked = [word for word in options.overrides if "=" not in word]
    wanted = list(dict.fromkeys(name for word in asked for name in meant(word)))
    if not asked:
        if options.overrides:
            raise ArnoError(
                " ".join(options.overrides),
                "settings are those of a figure",
                "name the figure; arno reproduce lists them",
            )
        for name in names():
            print_line(load(name))
            if options.show:
                show(load(name))
        print(NEXT)
        return 0
    named = next((word for word in options.overrides if word.startswith("out=")), "")
    if named and len(wanted) > 1:
        raise ArnoError(named, f"{len(wanted)} figures need a folder each", "name one figure, or remove out=")
    status = 0
    for name in wanted:
        figure = load(name)
        if options.show:
            show(figure)
        else:
            words = tuple(word for word in options.overrides if "=" in word)
            status = max(status, run(figure, words, options.quick, options.jobs, options.retry))
    return status


def print_line(figure: Figure) -> None:
    """Print three lines about the figure."""
    print(f"{figure.name}  ({figure.hours:g} h on two cores{', by ' + figure.by if figure.by else ''})")
    print(f"    {figure.source}")
    print(f"    {figure.claim}")


def show(figure: Figure) -> None:
    """Print what is known about a figure before its first run."""
    from ..reproduce.page import about, band, published

    print("\n".join(about(figure)))
    for arm, one in figure.arms.items():
        tried = f"; best of {', '.join(one.best_of)}" if one.best_of else ""
        said = f"; published {published(one.published)}" if one.published is not None else ""
        print(f"- arm {arm}: {' '.join(one.settings)}{tried}{said}")
    for reading in figure.readings.values():
        print(f"- read: {reading.words}")
    for check in figure.checks:
        print(f"- check: {check.says}: {band(check)}")
    if figure.by:
        print(f"- run it with: {figure.by}")


def run(figure: Figure, words: tuple[str, ...], quick: bool, jobs: int | None, retry: bool) -> int:
    """Run a figure, print its page and write the page into its folder."""
    from rich.console import Console

    from ..reproduce.page import page
    from ..reproduce.run import reproduce
    from ..reproduce.verdict import judge

    given = tuple(word for word in words if not word.startswith("out="))
    named = next((word.partition("=")[2] for word in words if word.startswith("out=")), "")
    out = Path(named) if named else Path("runs") / "reproduce" / folder(figure.name, given, quick)
    asked = (figure.coarse() if quick else figure).on(given)
    command = ["arno", "reproduce", figure.name, *(["--quick"] if quick else []), *given, f"out={out}"]
    try:
        found = reproduce(asked, out, command, jobs=jobs, retry=retry, console=Console())
    except KeyboardInterrupt:
        print("stopped; the same command continues it")
        return 130
    verdict = judge(asked, found)
    other = quick or counted(given)
    notes = ["The settings differ from those of the figure: this is no verdict on the figure."] if other else []
    text = page(verdict, shlex.join(command[:-1]), notes)
    if other:
        holding = sum(one.holds for one in verdict.outcomes)
        head = f"# {figure.name}, other settings: {holding} of {len(verdict.outcomes)} checks hold"
        text = head + text.removeprefix(f"# {figure.name}: {verdict.word}")
    (out / "reproduce.md").write_text(text, "utf-8")
    record = verdict.record() | {"seconds": found.record["seconds"], "quick": quick, "settings": list(given)}
    (out / "reproduce.json").write_text(json.dumps(record, indent=1, ensure_ascii=False), "utf-8")
    print(text)
    print(out)
    return 0 if verdict.reproduced else 1


def folder(name: str, words: tuple[str, ...], quick: bool) -> str:
    """The folder of a figure with these settings. The location of the data does not change the folder."""
    digest = blake2b(" ".join(counted(words)).encode(), digest_size=4).hexdigest() if counted(words) else ""
    return "-".join(filter(None, [name, "quick" if quick else "", digest]))


def counted(words: tuple[str, ...]) -> list[str]:
    """The settings that change what is computed."""
    return [word for word in words if not word.startswith("data.root=")]
