"""Which pages of docs/results are older than the sources that their numbers depend on.

    python benchmarks/stale.py                  name the stale pages and what changed; exit status 1 if there is one
    python benchmarks/stale.py --made NAME      note the sources of a page that was made by another command than
                                                `make results` just now

A page ends with a comment: each source that its numbers depend on (a file or a folder), with a digest of its contents.
`make results NAME=…` writes it. Comments, docstrings and empty lines of Python files do not count.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
LINE = re.compile(r"\n*<!-- made from: (.*?) -->\n*")

_ROUNDS = ("core", "kernels", "engines", "problems", "tasks", "models", "data", "selection.py")
#: What every number of a training run depends on.
TRAINING = tuple(f"src/arno/{name}" for name in _ROUNDS)
METHODS, STATISTICS = "src/arno/methods", "src/arno/analysis/statistics.py"
SIMULATION = ("src/arno/quadratic", "src/arno/core/cohorts.py", "src/arno/core/seeds.py")


def _methods(*names: str) -> tuple[str, ...]:
    return tuple(f"{METHODS}/{name}.py" for name in names)


#: The sources of each page, without the study itself.
SOURCES: dict[str, tuple[str, ...]] = {
    "fedscavar": (
        *TRAINING,
        *_methods("fedavg", "fedrolex", "sub_models", "fedprox", "scaffold", "cluster_fedvarp", "fedscavar", "compose"),
        STATISTICS,
    ),
    "label_skew": (*TRAINING, METHODS, STATISTICS),
    "lorenzo": (*TRAINING, *_methods("fedavg", "fedprox", "scaffold", "lorenzo")),
    "lorenzo_cifar10": (*TRAINING, *_methods("lorenzo")),
    "methods": (*TRAINING, METHODS),
    "personal": (*TRAINING, METHODS, STATISTICS),
    "power_of_choice": (*TRAINING, *_methods("fedavg")),
    "qrmix": (*TRAINING, *_methods("fedavg", "fedavgm", "fedrcl", "qrmix", "compose")),
    "qrmix_cifar10": (*TRAINING, *_methods("fedavgm", "fedrcl", "qrmix", "compose"), STATISTICS),
    "qrmix_cost": (*_methods("qrmix"), "src/arno/models", STATISTICS),
    "quadratic": SIMULATION,
    "quadratic_time": (*SIMULATION, *TRAINING, "src/arno/runs", "src/arno/records", "src/arno/tracking"),
    "reproduce": (*TRAINING, METHODS, "src/arno/reproduce"),
    "skew": (*TRAINING, *_methods("fedavg", "fedprox", "scaffold", "lorenzo"), "src/arno/analysis"),
    "speed": (*TRAINING, *_methods("fedavg", "scaffold", "fedvarp"), "benchmarks/speed"),
    "tuned": (*TRAINING, METHODS, "src/arno/analysis", "src/arno/grids"),
}


def sources(name: str, root: Path = ROOT) -> tuple[str, ...]:
    """The sources of a page, with its study."""
    studies = [f"benchmarks/studies/{name}{suffix}" for suffix in (".py", ".yaml")]
    return (*SOURCES[name], *(study for study in studies if (root / study).exists()))


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


def code(text: str) -> bytes:
    """Python text without docstrings, lines that are comments, and empty lines.

    >>> code("# a comment\\n'''What it is.'''\\n\\nx = 1  # kept\\n").decode()
    'x = 1  # kept'
    """
    without: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                without.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    kept = [line.rstrip() for i, line in enumerate(text.splitlines(), 1) if i not in without]
    return "\n".join(line for line in kept if line and not line.lstrip().startswith("#")).encode()


def mark(page: Path, root: Path = ROOT) -> None:
    """Note at the end of a page what its numbers were made from."""
    pairs = " ".join(f"{source}={digest(root / source)}" for source in sources(page.stem, root))
    page.write_text(f"{LINE.sub('', page.read_text('utf-8')).rstrip()}\n\n<!-- made from: {pairs} -->\n", "utf-8")


def changed(page: Path, root: Path = ROOT) -> list[str]:
    """The sources of a page that are not what its numbers were made from."""
    if page.stem not in SOURCES:
        return ["benchmarks/stale.py does not list its sources"]
    found = LINE.search(page.read_text("utf-8"))
    if found is None:
        return ["it does not say what it was made from"]
    noted = dict(pair.split("=", 1) for pair in found[1].split() if "=" in pair)
    return [source for source in sources(page.stem, root) if noted.get(source) != digest(root / source)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--made", metavar="NAME", choices=sorted(SOURCES), help="note the sources of this page")
    options = parser.parse_args(arguments)
    if options.made:
        mark(PAGES / f"{options.made}.md")
        return 0
    pages = sorted(PAGES.glob("*.md"))
    stale = {page.name: what for page in pages if (what := changed(page))}
    for name, what in stale.items():
        print(f"{name}: {', '.join(what)}")
    print(f"{len(stale)} of {len(pages)} pages are older than their sources, or do not say what they were made from")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
