"""Delete a run or a comparison. Only files that Arno wrote are deleted."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import ArnoError
from ..limits import read_json
from ..records import checksummed
from ..records.lock import holder, writing
from .run_entry import FILES, kind_of
from .run_index import here

#: The files that Arno writes into the folder of a run or a comparison. (The titles of panels name further pictures.)
WRITTEN = (
    *("manifest.json.previous", "final.safetensors", "best.safetensors", "start.safetensors", "clients.parquet"),
    *("client_scores.parquet", "counts.npy", "panels.json", "log.txt", "curves.png", "compare.png", "report.html"),
    *("table.md", "table.tex", "table.csv", "differences.csv", "client_scores.csv", "optuna.journal*"),
    *("*.part", "*.damaged", "*.damaged[0-9]*", ".arno-index.json"),
)
#: The folders that Arno makes in such a folder; they are deleted with everything in them.
HOLDS = ("checkpoints", "logs", "figures", "tensorboard", "track")


def refuse_removal(path: Path) -> None:
    """Raise an error if the folder is not a run or comparison, is a link, or is used by a process."""
    if path.is_symlink():
        raise ArnoError(f"{path}", "is a link", "give the folder itself")
    found = here(path)
    if found is None or not kind_of(path, found[0]):
        raise ArnoError(f"{path}", "is no run and no comparison", "arno runs lists them")
    for folder in (path.parent, path, *cells_in(path)):  # a comparison in the parent folder can start this run
        held = holder(folder)
        if held is not None:
            who = f"{held.what} in process {held.pid} on {held.host}" if held.host else held.what
            raise ArnoError(f"{folder}", f"is being written by {who}", "stop this process first")


def remove(path: Path) -> list[str]:
    """Delete a run, or a comparison with its cells. Return the files that remain, because Arno did not write them."""
    refuse_removal(path)
    return _remove(path)


def _remove(path: Path) -> list[str]:
    with writing(path, "a removal", links=True):
        left = [line for cell in cells_in(path) for line in _remove(cell)]
        for folder in _search(path)[::-1]:  # the folders of deleted trials are empty now
            with suppress(OSError):
                os.rmdir(folder)
        left += _clear(path)
    with suppress(OSError):
        path.rmdir()
    return left


def cells_in(path: Path) -> list[Path]:
    """The folders of the cells of a comparison and of the trials of a search; links are not followed."""
    found = list[Path]()
    if (path / "compare.json").is_file():
        with suppress(ArnoError, LookupError, TypeError):
            found = [
                path / str(cell["folder"]) for cell in checksummed.read(path / "compare.json", path, "command")["cells"]
            ]
    inside = [cell for cell in found if cell.parent == path and cell.name not in ("", ".", "..")]
    if (path / "tune.json").is_file():
        inside += _search(path)
    return [cell for cell in inside if not cell.is_symlink() and _is_run(cell)]


def _search(path: Path) -> list[Path]:
    """All folders below `search`, a folder before its subfolders; links are not followed."""
    below = path / "search"
    return [] if below.is_symlink() else [Path(folder) for folder, _, _ in os.walk(below)]


def _is_run(path: Path) -> bool:
    found = here(path)
    return found is not None and kind_of(path, found[0]) == "run"


def _clear(path: Path) -> list[str]:
    """Delete the files that Arno wrote into one folder. The files that identify it as a run are deleted last."""
    left, pictures = [], _pictures(path)
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name in FILES):
            folder = entry.is_dir(follow_symlinks=False)
            own = entry.name in HOLDS if folder or entry.is_symlink() else _written(entry.name, pictures)
            if entry.name == ".lock":
                continue
            if not own:
                left.append(entry.path)
            elif folder:
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)  # of a link, only the link itself
    return left


def _written(name: str, pictures: set[str]) -> bool:
    return name in FILES or name in pictures or any(fnmatchcase(name, pattern) for pattern in WRITTEN)


def _pictures(path: Path) -> set[str]:
    """The names of the pictures of the panels of a run."""
    from ..pictures.draw import slug

    try:
        panels = read_json(path / "panels.json") if (path / "panels.json").is_file() else []
        return {f"{slug(str(panel['title']))}.png" for panel in panels}
    except (ArnoError, LookupError, TypeError):
        return set()
