"""`arno repair`: rebuild the files of a damaged run, as far as possible.

A file that is replaced is kept with the suffix `.damaged`. If records of rounds are lost, the run goes back to the
newest checkpoint before these rounds, and `arno resume` computes the rounds again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import settings as configs
from ..errors import ArnoError
from ..limits import Unreadable, named_in_text
from ..limits import words as split
from . import checkpoint as checkpoints
from . import clients, disk, metrics_file
from .checkpoint import Checkpoint
from .damage import Damaged
from .folder import PREVIOUS, RESULTS, RunFolder
from .verify import LOST, verify_clients, verify_config, verify_rounds


def repair(path: Path) -> list[str]:
    """Repair the run in a folder. Return a line for each change; no line if nothing was damaged."""
    folder = RunFolder(named_in_text(path))
    if not (folder.checkpoints.is_dir() or (path / "manifest.json").exists() or (path / PREVIOUS).exists()):
        raise ArnoError(f"{path}", "is no run", "give the folder that arno run printed last")
    return Repair(folder).run()


class Repair:
    """The repair of a run. saved: its undamaged checkpoints, oldest first. done: a line for each change."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.path = folder, folder.path
        self.saved: list[Checkpoint] = []
        self.done: list[str] = []

    def run(self) -> list[str]:
        """Repair every file."""
        self.checkpoints()
        self.config()
        self.manifest()
        self.records()
        self.clients()
        self.results()
        return self.done

    def checkpoints(self) -> None:
        """Rename damaged checkpoints."""
        for path in self.folder.saved():
            try:
                saved = checkpoints.load(path)
                if self.of_another_run(saved):
                    raise Damaged(f"{path}", "belongs to another run")
                self.saved.append(saved)
            except Damaged as error:
                self.aside(path, error.args[1])
        if self.done and not self.saved:
            self.done.append("no checkpoint is left: arno resume computes all rounds again")

    def of_another_run(self, saved: Checkpoint) -> bool:
        """Whether a checkpoint holds other settings than this run. Releases can write the same settings differently."""
        if self.folder.mark in ("", configs.mark(saved.config)):
            return False
        try:
            return bool(configs.differences(_current(saved.config), _current(self.folder.config())))
        except ArnoError:  # the configuration is damaged, but other files hold its mark
            return True

    def config(self) -> None:
        """Rebuild the configuration from the newest checkpoint, or from the command in the manifest."""
        path = self.path / "config.yaml"
        odd = self.folder.stranger()
        try:
            _current(self.folder.config())
            if odd == path.name:
                raise Damaged(f"{path}", "belongs to another run")
            if self.saved:
                verify_config(self.folder, self.saved[-1])
            return
        except Unreadable:
            raise
        except ArnoError as error:
            reason = str(error.args[1]) if path.exists() else "is missing"
        found = self.saved[-1].config if self.saved else self.commanded()
        if found is None:
            rule = f"{reason}, and neither a checkpoint nor the manifest holds the configuration"
            raise ArnoError(f"{path}", rule, "start the run again with another out=")
        self.aside(path, reason)
        self.folder = RunFolder(self.path)  # the new object has the mark of the other files
        self.folder.write_config(found)
        self.done.append(f"config.yaml was rebuilt from {'a checkpoint' if self.saved else 'the manifest'}")

    def commanded(self) -> dict[str, Any] | None:
        """The configuration of the command in the manifest; None if there is none, or if it names own code or ${…}."""
        for name in ("manifest.json", PREVIOUS):
            try:
                words = split(self.folder.manifest(name)["command"], name)
                own = any(".target" in word.partition("=")[0] or "${" in word for word in words)
                if words[:2] == ["arno", "run"] and not own:
                    return configs.plain(configs.compose(words[2:]))
            except (ArnoError, KeyError):
                continue
        return None

    def manifest(self) -> None:
        """Rebuild the manifest from the previous manifest, or from the configuration."""
        path = self.path / "manifest.json"
        try:
            self.folder.manifest()
            if self.folder.stranger() != path.name:
                return
            reason = "belongs to another run"
        except Damaged as error:
            reason = str(error.args[1]) if path.exists() else "is missing"
        self.aside(path, reason)
        try:
            values, source = self.folder.manifest(PREVIOUS), "the one before its last change"
        except Damaged:
            config = self.folder.config()
            values, source = {"seed": config.get("seed")}, "the configuration"
        rounds = {"rounds": self.saved[-1].round} if self.saved else {}
        self.folder.update_manifest(**(values | {"status": "interrupted"} | rounds))
        self.done.append(f"manifest.json was rebuilt from {source}; arno resume completes it")

    def records(self) -> None:
        """Remove damaged lines of the records, and go back to a checkpoint before the damage."""
        path = self.path / metrics_file.NAME
        try:
            if self.saved:
                verify_rounds(self.folder, self.saved[-1])
            self.folder.rows()
            return
        except Damaged as error:
            reason = f"{error.args[0]} {error.args[1]}"
        lines = list(metrics_file.lines(path)) if path.is_file() else []
        once = list(dict.fromkeys(lines))
        if path.exists():
            self.aside(path, reason)
        self.folder.write_bytes(metrics_file.NAME, b"".join(once), sync=True)
        self.folder.write_bytes(metrics_file.NAME, metrics_file.up_to(self.path, self.last()), sync=True)
        if len(once) < len(lines):
            self.done.append(
                f"{len(lines) - len(once)} lines of {metrics_file.NAME} that were there twice were removed"
            )
        while self.saved:
            try:
                verify_rounds(self.folder, self.saved[-1])
                break
            except Damaged:
                self.back(self.saved[-2].round if len(self.saved) > 1 else -1)
        try:
            self.folder.rows()
        except Damaged:
            self.unfinished()

    def last(self) -> int:
        """The last round that the records can hold."""
        manifest = self.folder.manifest()
        done = manifest.get("status") == "done" and self.saved
        return self.saved[-1].round if done else 2**62

    def clients(self) -> None:
        """Go back to a checkpoint before damaged rows of the clients; if there is none, give up these rows."""
        while self.saved:
            saved = self.saved[-1]
            try:
                verify_clients(self.folder, saved.round, verify_rounds(self.folder, saved))
                return
            except Damaged as error:
                if self.from_table(saved):
                    return
                before = self.whole_before()
                if before is None:
                    self.drop_clients(saved, f"{error.args[0]} {error.args[1]}")
                    return
                self.done.append(f"{error.args[0]} {error.args[1]}")
                self.back(before)
                self.unfinished()

    def from_table(self, saved: Checkpoint) -> bool:
        """Rebuild damaged pieces from `clients.parquet`, if this file is undamaged and holds the rows of all rounds."""
        whole = self.path / "clients.parquet"
        try:
            table = clients.load(self.folder.verified(whole.name)) if whole.exists() else None
        except Damaged:
            return False
        if table is None or clients.counted(table) != verify_rounds(self.folder, saved):
            return False
        for piece in clients.pieces(self.folder.checkpoints):
            self.aside(piece, "is replaced")
        clients.write_piece(table, self.folder.checkpoints, saved.round)
        self.done.append("the rows of the clients in checkpoints were rebuilt from clients.parquet")
        return True

    def whole_before(self) -> int | None:
        """The newest earlier checkpoint up to which no rows of the clients are damaged."""
        for saved in reversed(self.saved[:-1]):
            try:
                verify_clients(self.folder, saved.round, verify_rounds(self.folder, saved))
                return saved.round
            except Damaged:
                continue
        return None

    def drop_clients(self, saved: Checkpoint, reason: str) -> None:
        """Rename damaged pieces, and write into the manifest which rounds have no rows of their clients now."""
        counts, found = verify_rounds(self.folder, saved), dict[int, int]()
        for piece in clients.pieces(self.folder.checkpoints):
            if clients.number(piece) > saved.round:
                continue
            try:
                rounds = clients.rounds(piece)
            except Damaged as error:
                self.aside(piece, error.args[1])
                continue
            if any(number in found or counts.get(number, 0) != count for number, count in rounds.items()):
                self.aside(piece, "holds other rows than the rounds have")
            else:
                found |= rounds
        lost = spans([number for number, count in counts.items() if found.get(number, 0) != count])
        self.folder.update_manifest(**{LOST: lost})
        text = ", ".join(f"{first} to {last}" for first, last in lost)
        self.done.append(f"{reason}; no checkpoint before them is kept")
        self.done.append(f"the rows of the clients of rounds {text} are lost; models and scores are not affected")
        self.merge()

    def results(self) -> None:
        """Rebuild the files that a finished run writes at its end, or let `arno resume` write them again."""
        manifest = self.folder.manifest()
        for name in [name for name in manifest.get("checksums") or {} if name in RESULTS]:
            path = self.path / name
            if path.is_file() and self.folder.intact(name):
                continue
            self.aside(path, "is damaged: its checksum does not match" if path.exists() else "is missing")
            if name == "clients.parquet" and clients.pieces(self.folder.checkpoints):
                self.merge()
            else:
                self.done.append(f"arno resume writes {name} again")
                self.unfinished()

    def merge(self) -> None:
        """Write `clients.parquet` of a finished run again from its pieces."""
        manifest, name = self.folder.manifest(), "clients.parquet"
        if manifest.get("status") == "done":
            self.aside(self.path / name, "is replaced")
            self.folder.merge_clients()
            new = self.folder.checksums((name,))
            self.folder.update_manifest(**{key: (manifest.get(key) or {}) | values for key, values in new.items()})
            self.done.append("clients.parquet was rebuilt from the pieces in checkpoints")

    def back(self, t: int) -> None:
        """Go back to the checkpoint after round `t`; −1: to the beginning."""
        for path in self.folder.after(t):
            self.aside(path, "lies after the damage")
        self.saved = [saved for saved in self.saved if saved.round <= t]
        kept = self.path / metrics_file.NAME
        cut = metrics_file.up_to(self.path, t)
        if len(cut) < kept.stat().st_size:
            self.aside(kept, f"holds rounds after round {max(t, 0)}, which will be computed again")
            self.folder.write_bytes(metrics_file.NAME, cut, sync=True)
        if (self.path / "clients.parquet").exists():
            self.aside(self.path / "clients.parquet", "holds rounds that will be computed again")
        where = (
            f"to the checkpoint after round {t}" if self.saved else "to the beginning: no checkpoint before it is kept"
        )
        self.done.append(f"the run went back {where}")

    def unfinished(self) -> None:
        """Write into the manifest that the run is not finished any more."""
        rounds = {"rounds": self.saved[-1].round} if self.saved else {}
        self.folder.update_manifest(status="interrupted", checksums={}, sizes={}, **rounds)

    def aside(self, path: Path, reason: str) -> None:
        """Rename a file to `….damaged` and add a line about it; do nothing if the file is missing."""
        if path.exists():
            self.done.append(f"{path.relative_to(self.path)} {reason}: kept as {disk.set_aside(path).name}")


def _current(config: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with all settings of this version; only translated if it names a user's factories.

    Such factories are not imported here.
    """
    if any(key.endswith(".target") for key, _ in configs.flat(config)):
        return configs.translated(config)
    return configs.current(config)


def spans(numbers: list[int]) -> list[list[int]]:
    """The first and the last number of every sequence of consecutive numbers.

    >>> spans([1, 2, 3, 7, 9, 10])
    [[1, 3], [7, 7], [9, 10]]
    """
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return out
