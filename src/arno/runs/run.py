"""Run a configuration or continue it, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import build
from ..config import settings as configs
from ..core.federation import Federation
from ..core.part import Part
from ..errors import ArnoError
from ..records import checkpoint as checkpoints
from ..records.folder import RunFolder
from ..records.lock import writing
from ..records.whole import newest, recover_manifest, verify
from ..tracking.follow import asked
from . import warm_start
from .release_0_1 import refuse_order
from .loop import Interrupted, Loop, Totals
from .progress import Progress, Quiet
from .result import RunResult
from .trust import check, named, note

__all__ = ["Interrupted", "RunResult", "execute", "resume", "run"]


def run(*overrides: str, method: Any = None, progress: Progress | None = None, **settings: Any) -> RunResult:
    """Train a federation; the same settings as on the command line, as strings or keywords.

    >>> import arno
    >>> result = arno.run("partition.alpha=0.1", method="fedprox", rounds=2, clients=5)    # doctest: +SKIP
    >>> result.history["test_accuracy"]                                                    # doctest: +SKIP

    overrides: `key=value` strings.
    method: a method's name, or a list of parts.
    settings: anything else, sections as dictionaries: `local={"lr": 0.1}`, `data="digits"`.
    """
    parts = None
    if isinstance(method, Sequence) and not isinstance(method, str):
        parts, method = list(method), None
    given = settings if method is None else {"method": method, **settings}
    config = configs.plain(configs.compose(overrides, given))
    return execute(config, progress or Quiet(), parts)


def resume(
    path: Path | str,
    *overrides: str,
    parts: Sequence[Part] | None = None,
    progress: Progress | None = None,
    previous: bool = False,
    pictures: bool = True,
    trust: bool = False,
    allowed: Sequence[str] = (),
) -> RunResult:
    """Continue a run from its last checkpoint (or the one before it); the result is that of a run never stopped.

    trust: import the user's own files that the run names, although this user has not used them for this run.
    allowed: such files that may be imported.
    """
    folder = RunFolder.open(Path(path))
    with writing(folder.path, "a run"):
        before, allowed = folder.config(), [*allowed, *named(overrides)]
        if not trust:
            check(folder.path, before, allowed)
        note(folder.path, before)
        before = configs.current(before)
        config = configs.plain(configs.compose(overrides, before))
        saved = folder.saved()
        if not saved:
            _refuse_changes(before, config)
            notes = recover_manifest(folder)
            folder.rewind(-1)
            return _execute(config, progress or Quiet(), parts, folder, None, pictures, notes=notes)
        if previous and len(saved) < 2:
            raise ArnoError(f"{path}", "it has no checkpoint before the last one", "leave out --previous")
        loaded, notes = newest(folder, previous)
        if not trust:
            check(folder.path, loaded.config, allowed)
        _refuse_changes(configs.current(loaded.config), config)
        if "task" not in loaded.config:
            refuse_order(folder.path, config, parts)
        if config["rounds"] < loaded.round:
            done = f"{loaded.round} rounds are done, and none is undone"
            raise ArnoError(f"rounds = {config['rounds']}", done, f"try rounds={loaded.round + 10}")
        verify(folder, loaded)
        notes += recover_manifest(folder)
        return _execute(config, progress or Quiet(), parts, folder, loaded, pictures, notes=notes)


def execute(
    config: dict[str, Any], progress: Progress, parts: Sequence[Part] | None = None, *, pictures: bool = True
) -> RunResult:
    """Run a resolved configuration in a new folder."""
    folder = RunFolder.new(config)
    existed, runs = folder.path.exists(), folder.path.parent.exists()
    try:
        with writing(folder.path, "a run"):
            return _execute(config, progress, parts, folder, None, pictures, new=True)
    finally:
        if not existed:
            folder.remove_if_empty(not runs)


def _execute(
    config: dict[str, Any],
    progress: Progress,
    parts: Sequence[Part] | None,
    folder: RunFolder,
    saved: checkpoints.Checkpoint | None,
    pictures: bool,
    new: bool = False,
    notes: Sequence[str] = (),
) -> RunResult:
    """Run or continue a configuration in a folder that this process may write.

    saved: where to continue from. notes: what the user must know of the folder.
    """
    if new:
        folder.refuse_used()
    asked(config["track"])
    fed, totals = build.federation(config, parts), Totals()
    if config["load"] and saved is None:
        warm_start.begin(fed, config)
    totals.first = fed.t + 1
    if new:
        folder.create(config)
        note(folder.path, config)
    else:
        _refuse_other_data(folder, fed)
        folder.write_config(config)
    if saved is not None:
        fed.restore(saved.federation)
        totals = Totals(**saved.run)
        folder.rewind(saved.round)
    Loop(config, fed, totals, folder, progress, notes).run(command=parts is None, pictures=pictures)
    return RunResult(folder.path)


def _refuse_other_data(folder: RunFolder, fed: Federation) -> None:
    """Refuse to continue with other data than the run began with."""
    earlier = folder.manifest().get("data_fingerprint") if (folder.path / "manifest.json").exists() else None
    if earlier not in (None, fed.problem.fingerprint()):
        raise ArnoError(f"the data of {folder.path}", "they have changed since the run began", "start a new run")


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue with settings that change what is computed."""
    odd = configs.differences(before, now)
    if odd:
        raise ArnoError(
            f"the configuration differs from the checkpoint's in {'; '.join(odd)}",
            f"only {', '.join(configs.FREE)} may change",
            "start a new run for that",
        )
