"""Checks whether the records of a run are complete. They run before the run continues."""

from __future__ import annotations

from ..config import settings as configs
from ..errors import ArnoError
from . import checkpoint as checkpoints
from . import clients, disk, metrics_file
from .checkpoint import Checkpoint
from .damage import Damaged, damaged
from .folder import PREVIOUS, RunFolder

#: The key in the manifest for lost rows of clients: the first and the last round of every gap that a repair left.
LOST = "lost_client_rows"


def newest(folder: RunFolder, previous: bool = False) -> tuple[Checkpoint, list[str]]:
    """The newest undamaged checkpoint, and a line for every newer checkpoint, all of which are damaged.

    previous: leave out the last file, even if it is not damaged.
    """
    found, notes = folder.saved(), list[str]()
    for path in reversed(found[:-1] if previous else found):
        try:
            return checkpoints.load(path), notes
        except Damaged as error:
            notes.append(f"warning: {path} {error.args[1]}; the run continues from the previous checkpoint")
    raise damaged(folder.checkpoints, "no checkpoint can be read", folder.path)


def verify(folder: RunFolder, saved: Checkpoint) -> None:
    """Refuse a run in which a round up to the checkpoint is missing, damaged or recorded twice."""
    verify_config(folder, saved)
    verify_clients(folder, saved.round, verify_rounds(folder, saved))


def verify_config(folder: RunFolder, saved: Checkpoint) -> None:
    """Refuse a configuration that lacks settings of the checkpoint. (A file of release 0.1 has no checksum.)"""
    stored, known = folder.config(), configs.translated(saved.config)
    missing = dict(configs.flat(known)).keys() - dict(configs.flat(stored)).keys()
    if missing:
        rule = f"it lacks {', '.join(sorted(missing)[:3])}, which the checkpoint has"
        raise damaged(folder.path / "config.yaml", rule, folder.path)


def verify_rounds(folder: RunFolder, saved: Checkpoint) -> dict[int, int]:
    """The rounds up to the checkpoint, with their numbers of clients; an error if a round is missing or repeated."""
    path, t, counts = folder.path / metrics_file.NAME, saved.round, dict[int, int]()
    first = saved.run.get("first")
    if first is not None and first > t:
        return counts
    for row in metrics_file.Reader(path, folder.mark).rows():
        allowed = (first,) if first is not None else () if saved.config.get("load") else (0, 1)
        if not counts and allowed and row["round"] not in allowed:
            raise damaged(f"{path}, line 1", f"holds round {row['round']}, not round {allowed[-1]}", folder.path)
        counts[row["round"]] = row.get("clients", 0)
        if row["round"] >= t:
            break
    last = max(counts, default=None)
    if last != t:
        rule = f"it holds no round {t}, after which {folder.checkpoint_path(t).name} was saved" + (
            f"; its last complete line is of round {last}" if last is not None else ""
        )
        raise damaged(path, rule, folder.path)
    return counts


def verify_clients(folder: RunFolder, t: int, counts: dict[int, int]) -> None:
    """Raise an error if rows of the clients up to round `t` are damaged, or if their numbers do not fit the rounds."""
    found: dict[int, int] = {}
    for piece in clients.pieces(folder.checkpoints):
        if clients.number(piece) <= t:
            for number, count in clients.rounds(piece).items():
                found[number] = found.get(number, 0) + count
    for number in sorted(found.keys() | counts.keys()):
        rows, took_part = found.get(number, 0), counts.get(number, 0)
        if rows != took_part and not _lost(folder, number):
            rule = f"hold {rows} rows of round {number}, in which {took_part} clients took part"
            raise damaged(f"{folder.checkpoints}/clients-*.parquet", rule, folder.path)


def refuse_other_config(folder: RunFolder) -> None:
    """Refuse a configuration of another run."""
    if folder.stranger() == "config.yaml":
        raise damaged(folder.path / "config.yaml", "belongs to another run", folder.path)


def recover_manifest(folder: RunFolder) -> list[str]:
    """Replace a damaged manifest by the previous manifest; return a line for the user if this was necessary."""
    path = folder.path / "manifest.json"
    try:
        folder.manifest()
        if folder.stranger() != path.name:
            return []
        reason = f"warning: {path} belongs to another run"
    except Damaged as error:
        reason = f"warning: {path} {error.args[1]}"
    if path.exists():
        disk.set_aside(path)
    elif not (folder.path / PREVIOUS).exists() and not folder.saved():
        return []  # the run was killed before it wrote its first manifest
    try:
        folder.update_manifest(**folder.manifest(PREVIOUS))
    except Damaged:
        return [f"{reason}; it is written again, and data that changed since the start are not noticed"]
    return [f"{reason}; the previous manifest is used"]


def _lost(folder: RunFolder, number: int) -> bool:
    try:
        return any(first <= number <= last for first, last in folder.manifest().get(LOST, []))
    except (ArnoError, TypeError, ValueError):
        return False
