"""Build a source archive and a wheel, install the wheel into an empty environment, and use it outside the checkout.

    python tools/wheel_test.py    # make wheel-test

The wheel is built from the source archive, so both are complete. The demo runs with the settings of the Makefile.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="arno-wheel-") as name:
        folder = Path(name)
        wheel = built(folder)
        complete(wheel)
        use(installed(wheel, folder), folder / "elsewhere")


def built(folder: Path) -> Path:
    """The wheel, made from the source archive of a copy of the sources."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=NOT_COPIED)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    run([sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('..')"], tree)
    (archive,) = folder.glob("arno-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", str(folder), str(archive)], folder)
    (wheel,) = folder.glob("arno-*.whl")
    return wheel


def complete(wheel: Path) -> None:
    """Refuse a wheel that lacks a file of the package."""
    files = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "arno").rglob("*") if path.is_file()}
    wanted = {file for file in files if "__pycache__" not in file}
    if missing := sorted(wanted - set(zipfile.ZipFile(wheel).namelist())):
        raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}: name them in pyproject.toml, package-data")
    print(f"{wheel.name}: {len(wanted)} files, all of the package", flush=True)


def installed(wheel: Path, folder: Path) -> Path:
    """The programs of an empty environment with the wheel, in the versions of constraints.txt."""
    constraints = ROOT / "constraints.txt"
    torch = next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))
    run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    pip = [str(folder / "venv" / "bin" / "pip"), "install", "--quiet", "-c", str(constraints)]
    run([*pip, torch, f"{wheel}[ui]"], folder)
    return folder / "venv" / "bin"


def use(programs: Path, elsewhere: Path) -> None:
    """The demo, the conformance cases, the view and the help of every command, in a folder without the sources."""
    elsewhere.mkdir()
    arno, python = str(programs / "arno"), str(programs / "python")
    run(
        [python, "-c", f"import arno; assert arno.__file__.startswith({str(programs.parent)!r}), arno.__file__"],
        elsewhere,
    )
    listing = "from arno.cli import COMMANDS; print(*COMMANDS)"
    commands = subprocess.run([python, "-c", listing], cwd=elsewhere, capture_output=True, text=True, check=True).stdout
    for command in commands.split():
        run([arno, command, "--help"], elsewhere, quiet=True)
    print(f"help of {len(commands.split())} commands", flush=True)
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (demo,) = re.findall(r"^\t\$\(BIN\)/arno (compare .*out=demo)$", makefile, re.M)
    run([arno, *shlex.split(demo)], elsewhere)
    for file in ("report.html", "compare.png", "table.md"):
        assert (elsewhere / "demo" / file).stat().st_size, file
    run([arno, "conform"], elsewhere)
    served(arno, elsewhere)
    print("the wheel works", flush=True)


def served(arno: str, folder: Path) -> None:
    """Ask `arno ui` for its page; refuse an answer without one."""
    command = [arno, "ui", "demo", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
            visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
            with visitor.open(address, timeout=60) as answer:
                page = answer.read().decode()
            assert "<script" in page, page[:200]
            print(f"arno ui: a page of {len(page):,} characters", flush=True)
        finally:
            server.terminate()


def run(command: list[str], folder: Path, quiet: bool = False) -> None:
    """Run a program without the search path of this checkout; stop if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL if quiet else None)


if __name__ == "__main__":
    main()
