"""Make a page of docs/results from a committed study, and say on it how long that took.

    python benchmarks/results.py NAME [words for the study]

A study is a file of benchmarks/studies. NAME.yaml is a comparison: its title, what the page says before and after the
tables, and the words for `arno compare`; its runs are kept in runs/NAME, and one that was stopped goes on. NAME.py is a
program that writes its page itself. The page also notes the sources that it was made from (see stale.py). A study that
was not finished ends with status 3: its page, if it has written one, is stamped, too. Runs that are there already count
with the sources of the call that made them (runs/made): remove runs/ to make everything from the sources of today.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import yaml
from rich.console import Console

from arno.cli.compare import tell
from arno.errors import ArnoError, unknown
from arno.grids.compare import own_keys, run_grid
from arno.report.tables import markdown, sheets
from stale import LINE, TIMED, digest, imported, mark, noting, sources

ROOT = Path(__file__).resolve().parents[1]
STUDIES, PAGES = ROOT / "benchmarks" / "studies", ROOT / "docs" / "results"
UNFINISHED = 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted({path.stem for pattern in ("*.py", "*.yaml") for path in STUDIES.glob(pattern)})
    parser.add_argument("name", metavar="NAME", help=", ".join(known))
    options, words = parser.parse_known_args(arguments)
    if options.name not in known:
        raise unknown("study", options.name, known)
    file, page = STUDIES / f"{options.name}.yaml", PAGES / f"{options.name}.md"
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "imports"
        notes.touch()
        make = compared if file.exists() else programmed
        try:
            status, seconds, note = make(file if file.exists() else file.with_suffix(".py"), page, words, notes)
        finally:
            noted = gathered(page.stem, notes.read_text().split())
    if seconds is not None:
        stamp(page, seconds, note, noted)
        print(page)
    return status


def gathered(name: str, noted: list[str]) -> list[str]:
    """What this call and earlier ones noted, as FILE=DIGEST: the runs of an earlier call may be used again.

    A study that keeps finished runs in the repository says itself what each of them was made from; one that measures
    seconds measures them anew.
    """
    if name in TIMED or any("=" in line for line in noted):
        return noted
    kept = Path("runs") / "made" / name
    earlier = kept.read_text().split() if kept.exists() else []
    now = [f"{file}={digest(ROOT / file)}" for file in imported(noted)]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("\n".join(sorted({*earlier, *now})) + "\n")
    return [*earlier, *now]


#: Status, seconds if there is a page to stamp, and what they count.
Made = tuple[int, float | None, str]


def compared(file: Path, page: Path, words: list[str], notes: Path) -> Made:
    """Run a comparison and write its page."""
    os.environ.update(noting(notes))
    sys.path.insert(0, str(ROOT / "benchmarks" / "noting"))  # the processes of the runs get this path
    plan = yaml.safe_load(file.read_text())
    own, rest = own_keys([*plan["compare"], *words])
    out, console = Path(own.pop("out") or Path("runs") / file.stem), Console()
    found = run_grid(rest, out, own, console=console)
    status = tell(found, out, console)
    shutil.copy(out / "compare.png", page.with_suffix(".png"))
    lines = [f"# {plan['title']}", "", f"    arno compare {' '.join(plan['compare'])}", "", plan["before"]]
    lines += [f"![{plan['title']}]({page.stem}.png)", "", markdown(sheets(found)), plan.get("after", "")]
    page.write_text("\n".join(lines).rstrip() + "\n")
    with notes.open("a") as noted:
        noted.writelines(f"{name}\n" for name in sys.modules)
    return status, found.record["seconds"], "all calls together"


def programmed(file: Path, page: Path, words: list[str], notes: Path) -> Made:
    """Run a program that writes its page."""
    began, before = perf_counter(), page.stat().st_mtime_ns if page.exists() else 0
    status = subprocess.run([sys.executable, str(file), *words], check=False, env=noting(notes)).returncode
    written = page.exists() and page.stat().st_mtime_ns != before
    made = written and status in (0, UNFINISHED)  # a trial with other settings writes its page elsewhere
    return status, perf_counter() - began if made else None, "runs that were there already not counted"


def stamp(page: Path, seconds: float, note: str, noted: list[str]) -> None:
    """Say at the end of a page how it was made, how long that took, and from which sources."""
    text = re.sub(r"\n*Made by `make results NAME=.*\n*\Z", "", LINE.sub("", page.read_text())).rstrip()
    took = f"took {timedelta(seconds=round(seconds))} on {os.cpu_count()} cores ({note})"
    page.write_text(f"{text}\n\nMade by `make results NAME={page.stem}`; {took}.\n")
    mark(page, sources(page.stem, noted))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArnoError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
        sys.exit(130)
