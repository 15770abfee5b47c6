"""The finished runs of a long study as lines of docs/results/cells/NAME.jsonl, so that it goes on from a clone.

A cell is one run: an arm, a seed, a setting. Its line holds its settings, its scores, the seconds of its run and the
sources that it was made from; the study reads it and does not run the cell again. A line with other settings than the
cell has now does not count. The folders of the runs are not needed, except that of a run from whose model others start:
without it, it is run again, and so are those that started from another model than the one of its line.

The sources are those at the beginning of the run. A source that was changed before the end of the run, or while it was
stopped, has both digests, so that the cell counts as older.

Most changes of a source move no bit. `--confirm` repeats the first rounds of older runs, one run of each kind, with the
sources of today. If the training losses of these rounds are the same to the last bit, the runs of this kind no longer
count as older, and the page says so. A change that acts only in later rounds is not found in this way.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple

from arno.runs.result import RunResult
from stale import OTHERS, PAGES, ROOT, digest, imported, noting, other

CELLS = PAGES / "cells"
#: What the study keeps of a run.
Measure = Callable[[RunResult], dict[str, Any]]
FIRST = 5  # how many rounds `--confirm` repeats
UNFINISHED = 3  # the exit status of a study with cells left to run


class Cell(NamedTuple):
    """A run: its name in the study, its settings, and the cell from whose last model it starts."""

    name: str
    words: tuple[str, ...]
    start: str = ""


class Book:
    """The cells of a study that are finished, and how to finish more of them.

    out: a folder for the runs. data: folders of data sets by name. words: more settings for every run, to try the
    study: then lines and page stay beside the runs. minutes: no run starts later than that. again: a cell from older
    sources counts as missing. confirm: before that, the first rounds of older cells are repeated.
    """

    def __init__(
        self,
        name: str,
        out: Path,
        data: Mapping[str, str] | None = None,
        words: Sequence[str] = (),
        *,
        minutes: float = float("inf"),
        again: bool = False,
        confirm: bool = False,
    ) -> None:
        self.out, self.data, self.words = out, dict(data or {}), tuple(words)
        self.file = (out if words else CELLS) / f"{name}.jsonl"
        self.again, self.confirm, self._ends, self._lock = again, confirm, perf_counter() + 60 * minutes, Lock()
        self.records: dict[str, dict[str, Any]] = {}
        self.repeated: dict[tuple[str, str], str] = {}  # kind of cell and its sources: later ones with the same bits
        self.sources: dict[str, dict[str, str]] = {}
        for number, line in enumerate(self.file.read_text("utf-8").splitlines() if self.file.exists() else (), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                sys.exit(f"error: {self.file}, line {number}: it is no line of a cell or of sources; remove it")

    def _take(self, line: dict[str, Any]) -> None:
        if "cell" in line:
            self.records[line["cell"]] = line
        elif "repeated" in line:
            self.repeated[line["repeated"], line["from"]] = line["sources"]
        else:
            self.sources[line["sources"]] = line["files"]

    def settings(self, cell: Cell) -> list[str]:
        """The settings of a cell; where a file of a partition lies does not count."""
        return [re.sub(r"^partition\.path=.*/", "partition.path=", word) for word in (*cell.words, *self.words)]

    def path(self, cell: Cell) -> Path:
        """The folder of a cell's run; other settings have another one."""
        settings = blake2b(" ".join(self.settings(cell)).encode(), digest_size=4).hexdigest()
        name = re.sub(r"[^\w.=+-]+", "_", cell.name)
        return self.out / f"{name}-{settings}"

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """The line of a finished cell; None if it is not finished with these settings."""
        found = self.records.get(cell.name)
        return found if found and found["settings"] == self.settings(cell) else None

    def scores(self, cell: Cell) -> dict[str, Any]:
        """What the study kept of a finished cell."""
        found = self.record(cell)
        assert found is not None, cell.name
        return dict(found["scores"])

    def seconds(self, cell: Cell) -> float:
        """How long the rounds of a finished cell took."""
        found = self.record(cell)
        assert found is not None, cell.name
        return float(found["seconds"])

    def unpaired(self, cell: Cell) -> bool:
        """Whether a finished cell started from another model than the one that the line of its start names."""
        found, start = self.record(cell), self.records.get(cell.start)
        return found is not None and start is not None and found.get("start") != start["model"]

    def older(self, cell: Cell) -> bool:
        """Whether a finished cell is from other sources than those that are here now, which were not confirmed."""
        return self.record(cell) is not None and bool(other(self.made_from(cell)))

    def kind(self, cell: Cell) -> tuple[str, str]:
        """What a finished cell has in common with those that differ from it only in the seed: settings and sources."""
        found = self.record(cell)
        assert found is not None, cell.name
        return " ".join(word for word in self.settings(cell) if not word.startswith("seed=")), found["sources"]

    def made_from(self, cell: Cell) -> dict[str, str]:
        """The sources of a finished cell; or later ones that gave the same bits."""
        settings, made = self.kind(cell)
        same = self.repeated.get((settings, made), made)
        return self.sources[same if other(self.sources[made]) else made]

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that are to be run."""
        return [
            cell
            for cell in cells
            if self.record(cell) is None or self.unpaired(cell) or (self.again and self.older(cell))
        ]

    def run(self, cells: Sequence[Cell], measure: Measure, jobs: int = 1) -> bool:
        """Run what is missing, several at a time: first what others start from; whether nothing is missing any more."""
        by_name = {cell.name: cell for cell in cells}
        lost = [cell.start for cell in cells if cell.start and cell.start not in by_name]
        assert not lost, f"no cell is called {lost[0]}"

        def one(cell: Cell) -> bool:
            if perf_counter() > self._ends:
                return False
            self._finish(cell, measure, by_name.get(cell.start))
            return True

        if self.confirm:
            whole = self._confirm(cells, jobs)
            if not self.again:
                return whole and not self.missing(cells)
        todo = self.missing(cells)
        while todo:
            starts = {cell.start: by_name[cell.start] for cell in todo if cell.start}
            again = [start for start in starts.values() if start not in todo and not self._there(start)]
            for some in (again, [cell for cell in todo if not cell.start], [cell for cell in todo if cell.start]):
                with ThreadPoolExecutor(jobs) as pool:
                    left = len(some) - sum(pool.map(one, some))
                if left:
                    left = len(self.missing(cells))
                    print(f"the time is over: {left} runs are left; the same command goes on from here", flush=True)
                    return False
            todo = [cell for cell in cells if self.unpaired(cell)]  # their start was run again, with another model
        return True

    def _finish(self, cell: Cell, measure: Measure, start: Cell | None = None) -> None:
        """Run a cell from the last model of its start, if it has one, and keep its line."""
        with tempfile.TemporaryDirectory() as folder:
            notes = Path(folder) / "imports"
            notes.touch()
            words = [f"load={self.path(start)}"] if start is not None else []
            before = self._begin(cell)
            result = self._perform(cell, self.path(cell), words, noting(notes))
            files = sources_of(notes, before)
        line: dict[str, Any] = {"cell": cell.name, "settings": self.settings(cell)}
        line |= {"scores": {"diverged": True} if result is None else measure(result)}
        line |= {"losses": {} if result is None else losses(result)}
        line |= {"seconds": 0 if result is None else round(json_of(result.path / "manifest.json")["seconds"], 1)}
        if start is not None:
            line["start"] = fingerprint(self.path(start))
        line["model"] = "" if result is None else fingerprint(result.path)
        self._keep(line, files)
        print(f"{cell.name}: {line['scores']} ({line['seconds']} s)", flush=True)

    def _confirm(self, cells: Sequence[Cell], jobs: int) -> bool:
        """Repeat the first rounds of a run of each kind that is older; whether there was time for all of them."""
        kinds: dict[tuple[str, str], Cell] = {}
        for cell in cells:
            here = not cell.start or any(self._there(one) for one in cells if one.name == cell.start)
            if self.older(cell) and here:
                kinds.setdefault(self.kind(cell), cell)
        starts = {cell.name: self.path(cell) for cell in cells}

        def one(cell: Cell) -> bool:
            if perf_counter() > self._ends:
                return False
            self._repeat(cell, starts.get(cell.start))
            return True

        with ThreadPoolExecutor(jobs) as pool:
            return all(pool.map(one, kinds.values()))

    def _repeat(self, cell: Cell, start: Path | None) -> None:
        """Repeat the first rounds of a finished cell, and keep a line if their losses are the same."""
        found, (settings, made) = self.records[cell.name], self.kind(cell)
        last = max(map(int, found["losses"]), default=None)
        words = [*([] if start is None else [f"load={start}"]), *([] if last is None else [f"rounds={last}"])]
        with tempfile.TemporaryDirectory() as folder:
            notes, before = Path(folder) / "imports", states()
            notes.touch()
            result = self._perform(cell, Path(folder) / "run", words, noting(notes))
            now = {} if result is None else losses(result)
            same = json.dumps(now) == json.dumps(found["losses"])
            print(f"{cell.name}: {'the same' if same else 'other'} losses", flush=True)
            if same:
                self._keep({"repeated": settings, "from": made}, sources_of(notes, before))

    def _there(self, cell: Cell) -> bool:
        """Whether the last model of a finished cell is in its folder."""
        found, path = self.record(cell), self.path(cell)
        return found is not None and (path / "final.safetensors").exists() and fingerprint(path) == found["model"]

    def _begin(self, cell: Cell) -> dict[str, str]:
        """The digests of all sources when the run of a cell began; what is in its folder stays if it can go on."""
        path = self.path(cell)
        noted = path.with_name(f"{path.name}.sources.json")
        stopped = (path / "manifest.json").exists() and json_of(path / "manifest.json")["status"] != "done"
        if stopped and noted.exists() and self.record(cell) is None:
            return json_of(noted)
        if path.exists():
            shutil.rmtree(path)  # its sources are older, or not known
        path.parent.mkdir(parents=True, exist_ok=True)
        before = states()
        noted.write_text(json.dumps(before), "utf-8")
        return before

    def _perform(self, cell: Cell, path: Path, words: Sequence[str], env: Mapping[str, str]) -> RunResult | None:
        """Run a cell in a process of its own, or continue it; None if a client diverged."""
        stopped = path.exists()
        command = ["resume", str(path)] if stopped else ["run", *cell.words, *self.words, *words, f"out={path}"]
        data = next((word.partition("=")[2] for word in cell.words if word.startswith("data=")), "")
        if data in self.data and not stopped:
            command.append(f"data.root={self.data[data]}")
        ended = subprocess.run(
            [sys.executable, "-m", "arno", *command],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode == 0:
            return RunResult(path)
        if " diverged in round " in ended.stderr:
            return None
        sys.exit(ended.stderr.strip() or f"error: {cell.name} ended with status {ended.returncode}")

    def _keep(self, line: dict[str, Any], files: dict[str, str]) -> None:
        """Write the line of a cell, and before it its sources, if no cell had the same."""
        key = blake2b(json.dumps(files).encode(), digest_size=6).hexdigest()
        lines = [] if key in self.sources else [{"sources": key, "files": files}]
        with self._lock:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                for one in (*lines, line | {"sources": key}):
                    file.write(json.dumps(one, ensure_ascii=False) + "\n")
                    self._take(one)

    def note(self, cells: Iterable[Cell]) -> None:
        """Tell `make results` which sources the cells of a page were made from."""
        found = [cell for cell in cells if self.record(cell)]
        if notes := os.environ.get("ARNO_NOTES"):
            pairs = {pair for cell in found for pair in self.made_from(cell).items()}
            with open(notes, "a", encoding="utf-8") as file:
                file.writelines(f"{name}={one}\n" for name, one in sorted(pairs))

    def page(self, page: Path) -> Path:
        """Where the page is written."""
        if not self.words:
            return page
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / page.name

    def state(self, cells: Sequence[Cell]) -> str:
        """How many cells are finished, for the page."""
        there = [cell for cell in cells if self.record(cell) is not None]
        older = sum(map(self.older, there))
        same = [cell for cell in there if self.made_from(cell) is not self.sources[self.kind(cell)[1]]]
        more = f"; {older} of them are older than the last change of the sources" if older else ""
        if same:
            more += f"; {len(same)} of them were made before a change of the sources: then the first {FIRST} rounds of "
            more += (
                f"{len(set(map(self.kind, same)))} of these runs were repeated and gave the same losses to the last bit"
            )
        spent = sum(self.records[cell.name]["seconds"] for cell in there) / 3600
        return (
            f"{len(there)} of {len(cells)} runs are finished{more}; together they took {spent:.1f} h, pauses included."
        )


def losses(result: RunResult) -> dict[str, float | None]:
    """The training losses of the first rounds of a run, by round."""
    return {str(row["round"]): row.get("train_loss") for row in result.rows[:FIRST]}


def sources_of(notes: Path, before: Mapping[str, str]) -> dict[str, str]:
    """The sources that a run noted, with the digests that they had before and have after it."""
    files = {}
    for file in sorted(imported(notes.read_text().split())):
        now = digest(ROOT / file)
        files[file] = "+".join(sorted({before.get(file, now), now}))
    return files


def states() -> dict[str, str]:
    """The digests of all sources of Arno on which numbers may depend."""
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "src" / "arno").rglob("*.py"))]
    return {file: digest(ROOT / file) for file in files if not file.startswith(OTHERS)}


def json_of(path: Path) -> dict[str, Any]:
    """A JSON file."""
    return dict(json.loads(path.read_text("utf-8")))


def fingerprint(path: Path) -> str:
    """A digest of the last model of a run."""
    return blake2b(RunResult(path).final.numpy().tobytes(), digest_size=6).hexdigest()


def options(about: str, out: str) -> argparse.ArgumentParser:
    """The options of every study with cells; the other words are settings for every run."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FOLDER", help="where data sets lie")
    parser.add_argument("--out", type=Path, default=Path(out), help="a folder for the runs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run later than that")
    parser.add_argument("--again", action="store_true", help="run cells anew that were made from older sources")
    confirm = "repeat the first rounds of runs from older sources; run nothing else without --again"
    parser.add_argument("--confirm", action="store_true", help=confirm)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="more settings for every run, to try the program")
    return parser


def kept(given: argparse.Namespace) -> dict[str, Any]:
    """The options of a `Book`."""
    return {"minutes": given.minutes, "again": given.again, "confirm": given.confirm}


def folders(given: Sequence[str]) -> dict[str, str]:
    """The folders of data sets by their names."""
    return {name: str(Path(folder).expanduser().resolve()) for name, _, folder in (one.partition("=") for one in given)}
