"""Which pages of docs/results are older than the sources that their numbers depend on.

    python benchmarks/stale.py    name the stale pages and what changed; exit status 1 if there is one

A page ends with a comment: the sources that its numbers depend on, each with a digest. `make results NAME=…` writes it.
The sources are the modules that the study and the processes that it started really imported, and the study itself.
Comments, docstrings and empty lines of Python files do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
LINE = re.compile(r"\n*<!-- made from:(.*?)-->\n*", re.S)

#: What reads commands, refuses, keeps and shows records: no number of a page depends on it.
_OTHERS = ("cli/", "pictures/", "records/", "report/", "tracking/", "ui/", "__init__.py", "__main__.py", "errors.py")
_OTHERS += ("limits.py", "machine.py", "registry.py", "version.py", "config/check_factories.py", "config/meanings.py")
_OTHERS += ("runs/estimate.py", "runs/progress.py", "runs/signals.py", "runs/trust.py")
OTHERS = tuple(f"src/arno/{name}" for name in _OTHERS)
#: Nor does one depend on the programs that make pages of studies.
OTHERS += tuple(f"benchmarks/{name}.py" for name in ("cells", "results", "stale"))
#: Pages that say how long something takes: everything that was imported counts.
TIMED = ("qrmix_cost", "quadratic_time", "speed")
#: Sources that are no modules of Python, or that are run by an interpreter which notes nothing.
MORE = {
    "lorenzo_cifar10": ("src/arno/reproduce/figures/lorenzo-cifar10.yaml",),
    "reproduce": ("src/arno/reproduce/figures",),
    "speed": ("benchmarks/speed",),
}


def noting(notes: Path) -> dict[str, str]:
    """The environment of a process that notes its imports in a file, as do the processes that it starts."""
    paths = [str(ROOT / "benchmarks" / "noting"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "ARNO_NOTES": str(notes), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def imported(names: Iterable[str], timed: bool = False) -> set[str]:
    """The files of modules of this repository, without those on which no number depends."""
    found = set()
    for name in names:
        path = name.replace(".", "/")
        places = [f"src/{path}.py", f"src/{path}/__init__.py", f"benchmarks/{path}.py", f"benchmarks/studies/{path}.py"]
        found |= {place for place in places if (ROOT / place).is_file()}
    return {file for file in found if not file.startswith(OTHERS) or (timed and file.startswith("src/"))}


def sources(page: str, noted: Iterable[str]) -> dict[str, str]:
    """The sources of a page with their digests, from what was noted: names of modules, and FILE=DIGEST of its cells.

    Cells may have been made from several states of a source. Then it has all their digests, and no state equals them.
    """
    given = [line.split("=", 1) for line in noted if "=" in line]
    files = imported((line for line in noted if "=" not in line), page in TIMED) | set(MORE.get(page, ()))
    study = [f"benchmarks/studies/{page}{suffix}" for suffix in (".py", ".yaml")]
    files |= {file for file in study if (ROOT / file).exists()}
    found: dict[str, set[str]] = {}
    for file, one in [*given, *([file, digest(ROOT / file)] for file in files)]:
        found.setdefault(file, set()).add(one)
    return {file: "+".join(sorted(found[file])) for file in sorted(found)}


def digest(path: Path) -> str:
    """A digest of a file, or of all files in a folder with their names; `missing` if there is none."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and counts(p))
    total = blake2b(digest_size=6)
    for file in files:
        name = file.name if file == path else file.relative_to(path).as_posix()
        content = code(file.read_text("utf-8")) if file.suffix == ".py" else file.read_bytes()
        total.update(blake2b(name.encode()).digest() + blake2b(content).digest())
    return total.hexdigest() if files else "missing"


def counts(path: Path) -> bool:
    """Whether a file is a source: no cache, nothing hidden."""
    return path.suffix != ".pyc" and not path.name.startswith(".")


@cache
def code(text: str) -> bytes:
    """Python text without docstrings, comments and empty lines; the same with every version of Python.

    >>> code("# a comment\\n'''What it is.'''\\n\\nx = '#'  # a number\\n").decode()
    "x = '#'"
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines[first.lineno - 1 : first.end_lineno] = [""] * ((first.end_lineno or 0) - first.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


def mark(page: Path, made_from: Mapping[str, str]) -> None:
    """Note at the end of a page what its numbers were made from."""
    lines = "\n".join(f"{file}={one}" for file, one in made_from.items())
    text = LINE.sub("", page.read_text("utf-8")).rstrip()
    page.write_text(f"{text}\n\n<!-- made from:\n{lines}\n-->\n", "utf-8")


def changed(page: Path) -> list[str]:
    """The sources of a page that are not what its numbers were made from."""
    found = LINE.search(page.read_text("utf-8"))
    if found is None:
        return ["it does not say what it was made from"]
    return other({file: one for file, _, one in (pair.partition("=") for pair in found[1].split())})


def other(made_from: Mapping[str, str]) -> list[str]:
    """The sources that are not in the state that was noted."""
    return [file for file, one in made_from.items() if digest(ROOT / file) != one]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    pages = sorted(PAGES.glob("*.md"))
    stale = {page.name: what for page in pages if (what := changed(page))}
    for name, what in stale.items():
        print(f"{name}: {', '.join(what)}")
    print(f"{len(stale)} of {len(pages)} pages are older than their sources, or do not say what they were made from")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
