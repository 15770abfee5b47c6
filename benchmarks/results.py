"""Make a page of docs/results from a committed study, and say on it how long that took.

    python benchmarks/results.py NAME [words for the study]

A study is a file of benchmarks/studies. NAME.yaml is a comparison: its title, what the page says before and after the
tables, and the words for `arno compare`; its runs are kept in runs/NAME, and one that was stopped goes on. NAME.py is a
program that writes its page itself. The page also notes the sources that it was made from (see stale.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import yaml
from rich.console import Console

from arno.cli.compare import tell
from arno.errors import ArnoError, unknown
from arno.grids.compare import own_keys, run_grid
from arno.report.tables import markdown, sheets
from stale import LINE, SOURCES, mark

ROOT = Path(__file__).resolve().parents[1]
STUDIES, PAGES = ROOT / "benchmarks" / "studies", ROOT / "docs" / "results"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted({path.stem for pattern in ("*.py", "*.yaml") for path in STUDIES.glob(pattern)})
    parser.add_argument("name", metavar="NAME", help=", ".join(known))
    options, words = parser.parse_known_args(arguments)
    if options.name not in known:
        raise unknown("study", options.name, known)
    file, page = STUDIES / f"{options.name}.yaml", PAGES / f"{options.name}.md"
    status = compared(file, page, words) if file.exists() else programmed(file.with_suffix(".py"), page, words)
    print(page)
    return status


def compared(file: Path, page: Path, words: list[str]) -> int:
    """Run a comparison and write its page."""
    plan = yaml.safe_load(file.read_text())
    own, rest = own_keys([*plan["compare"], *words])
    out, console = Path(own.pop("out") or Path("runs") / file.stem), Console()
    found = run_grid(rest, out, own, console=console)
    status = tell(found, out, console)
    shutil.copy(out / "compare.png", page.with_suffix(".png"))
    lines = [f"# {plan['title']}", "", f"    arno compare {' '.join(plan['compare'])}", "", plan["before"]]
    lines += [f"![{plan['title']}]({page.stem}.png)", "", markdown(sheets(found)), plan.get("after", "")]
    page.write_text("\n".join(lines).rstrip() + "\n")
    stamp(page, found.record["seconds"], "all calls together")
    return status


def programmed(file: Path, page: Path, words: list[str]) -> int:
    """Run a program that writes its page."""
    began = perf_counter()
    status = subprocess.run([sys.executable, str(file), *words], check=False).returncode
    if status == 0:
        stamp(page, perf_counter() - began, "runs that were there already not counted")
    return status


def stamp(page: Path, seconds: float, note: str) -> None:
    """Say at the end of a page how it was made, how long that took, and from which sources."""
    text = re.sub(r"\n*Made by `make results NAME=.*\n*\Z", "", LINE.sub("", page.read_text())).rstrip()
    took = f"took {timedelta(seconds=round(seconds))} on {os.cpu_count()} cores ({note})"
    page.write_text(f"{text}\n\nMade by `make results NAME={page.stem}`; {took}.\n")
    if page.stem in SOURCES:
        mark(page)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArnoError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
        sys.exit(130)
