"""Run a configuration or continue it, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import build
from ..config import settings as configs
from ..core.federation import Federation
from ..core.method_part import Part
from ..core.resources import allocating
from ..errors import ArnoError, described
from ..records import checkpoint as checkpoints
from ..records.damage import damaged
from ..records.folder import RunFolder
from ..records.lock import writing
from ..records.verify import newest, recover_manifest, refuse_other_config, verify
from ..tracking.follow import asked
from . import warm_start
from .current_folder import unchanged
from .estimate import check as check_room
from .estimate import refuse_records
from .loop import Interrupted, Loop, Totals
from .progress import Progress, Quiet
from .python_objects import again, from_python
from .python_objects import settings as given_objects
from .release_0_1 import refuse_order
from .result import RunResult
from .trust import check, named, note, replaced

#: The line for the user if an earlier release did not count all bytes of the run; the number of a round follows.
EARLIER_BYTES = "earlier rounds count only uploaded models as traffic; everything that a method sends counts from round"

__all__ = ["Interrupted", "RunResult", "execute", "resume", "run"]


def run(
    *overrides: str,
    method: Any = None,
    data: Any = None,
    model: Any = None,
    progress: Progress | None = None,
    **settings: Any,
) -> RunResult:
    """Train a federation. The settings are those of the command line, as strings or keywords.

    >>> import arno
    >>> result = arno.run("partition.alpha=0.1", method="fedprox", rounds=2, clients=5)    # doctest: +SKIP
    >>> result.history["test_accuracy"]                                                    # doctest: +SKIP

    overrides: `key=value` strings.
    method: a method's name, or a list of parts.
    data: the name of a data set, or an `arno.Data`.
    model: the name of a network; or a `torch.nn.Module`, whose weights are the initial model for every seed; or its
        class or a function, which makes the network without arguments, or from the shape of a sample and the number of
        outputs.
    settings: all other settings; a section is a dictionary: `local={"lr": 0.1}`.
    """
    parts = None
    if isinstance(method, Sequence) and not isinstance(method, str):
        parts, method = list(method), None
    given = settings | given_objects(data, model) | ({} if method is None else {"method": method})
    config = configs.plain(configs.compose(overrides, given))
    return execute(config, progress or Quiet(), parts)


def resume(
    path: Path | str,
    *overrides: str,
    data: Any = None,
    model: Any = None,
    parts: Sequence[Part] | None = None,
    progress: Progress | None = None,
    previous: bool = False,
    pictures: bool = True,
    trust: bool = False,
    allowed: Sequence[str] = (),
    until: int | None = None,
) -> RunResult:
    """Continue a run from its last checkpoint. The result is the same as that of an uninterrupted run.

    data, model: the objects with which the run was started, if it was started with objects. Other objects are refused.
    previous: continue from the checkpoint before the last one.
    trust: import your own files that the run names, even if you did not start this run on this machine.
    allowed: files that may be imported without `trust`.
    until: save the run and stop after this round; by default, after the last round.
    """
    folder = RunFolder.open(Path(path))
    with writing(folder.path, "a run"), unchanged(folder.path):
        before, allowed = folder.config(), [*allowed, *named(overrides)]
        refuse_other_config(folder)
        problem = dict(configs.flat(before)).get("problem.kind")
        if "engine" not in before and problem == "quadratic":  # a run stores its engine
            from .quadratic import simulate_again

            return simulate_again(folder, overrides)
        if not trust:
            check(folder.path, before, allowed, replaced(overrides))
        before = configs.current(before)
        again(folder.path, before, data, model)
        config = configs.plain(configs.compose(overrides, before))
        if not trust:  # after substitution, a stored ${…} or a key such as track.0 can name a file
            check(folder.path, config, allowed, replaced(overrides))
        saved = folder.saved()
        if not saved:
            _refuse_changes(before, config)
            notes = recover_manifest(folder)
            folder.rewind(-1)
            return _execute(config, progress or Quiet(), parts, folder, None, pictures, notes=notes, until=until)
        if previous and len(saved) < 2:
            raise ArnoError(f"{path}", "it has no checkpoint before the last one", "leave out --previous")
        loaded, notes = newest(folder, previous)
        if not trust:
            check(folder.path, loaded.config, allowed, replaced(overrides))
        _refuse_changes(configs.current(loaded.config), config)
        if "task" not in loaded.config:
            refuse_order(folder.path, config, parts)
        if config["rounds"] < loaded.round:
            done = f"{loaded.round} rounds are finished, and finished rounds cannot be removed"
            raise ArnoError(f"rounds = {config['rounds']}", done, f"try rounds={loaded.round + 10}")
        verify(folder, loaded)
        notes += recover_manifest(folder)
        return _execute(config, progress or Quiet(), parts, folder, loaded, pictures, notes=notes, until=until)


def execute(
    config: dict[str, Any],
    progress: Progress,
    parts: Sequence[Part] | None = None,
    *,
    pictures: bool = True,
    until: int | None = None,
) -> RunResult:
    """Run a resolved configuration in a new folder, to its last round or to the round `until`."""
    folder = RunFolder.new(config)
    existed, runs = folder.path.exists(), folder.path.parent.exists()
    try:
        with writing(folder.path, "a run"), unchanged(folder.path):
            return _execute(config, progress, parts, folder, None, pictures, new=True, until=until)
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
    until: int | None = None,
) -> RunResult:
    """Run or continue a configuration in a folder that this process may write.

    saved: the checkpoint from which the run continues. notes: lines for the user about the folder.
    """
    if new:
        folder.refuse_used()
    asked(config["track"])
    refuse_records(config)
    with allocating():
        fed, totals = build.federation(config | {"out": str(folder.path)}, parts), Totals()
    try:
        tight = check_room(config, fed, folder.path, 0 if new else folder.size())
    except ArnoError:
        fed.engine.close()
        raise
    if config["load"] and saved is None:
        warm_start.begin(fed, config)
    totals.first = fed.t + 1
    if new:
        note(folder.path, config)  # the configuration is written last, because with it the run can be resumed
        if config["model"]["kind"] == "python":  # the network cannot be made again from a file
            checkpoints.write_tensors(folder.path / "start.safetensors", {"w": fed.w})
        folder.create(config)
    else:
        _refuse_other_data(folder, fed)
        note(folder.path, config)
        folder.write_config(config)
    if saved is not None:
        totals = _restored(folder, fed, saved)
        if "downloaded_bytes" not in saved.run:
            notes = [*notes, f"{EARLIER_BYTES} {saved.round + 1} on"]
        folder.rewind(saved.round)
    with allocating():
        loop = Loop(config, fed, totals, folder, progress, [*notes, *tight], until)
        loop.run(command=parts is None and not from_python(config), pictures=pictures)
    return RunResult(folder.path)


def _restored(folder: RunFolder, fed: Federation, saved: checkpoints.Checkpoint) -> Totals:
    """Put the state of a checkpoint into the federation; an error for values that a run does not write."""
    try:
        size = fed.w.shape
        fed.restore(saved.federation)
        totals = Totals(**saved.run)
        if fed.t != saved.round or fed.w.shape != size or not totals.plain():
            raise ValueError(f"round {fed.t}, a model of shape {list(fed.w.shape)}")
        return totals
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        rule = f"does not hold the state of this run ({described(error)})"
        raise damaged(folder.checkpoint_path(saved.round), rule, folder.path) from error


def _refuse_other_data(folder: RunFolder, fed: Federation) -> None:
    """Refuse to continue if the data differ from the data at the beginning of the run."""
    earlier = folder.manifest().get("data_fingerprint") if (folder.path / "manifest.json").exists() else None
    if earlier not in (None, fed.problem.fingerprint()):
        raise ArnoError(f"the data of {folder.path}", "they have changed since the run began", "start a new run")


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue with settings that change what is computed."""
    odd = configs.differences(before, now)
    if odd:
        raise ArnoError(
            f"the configuration differs from that of the checkpoint in {'; '.join(odd)}",
            f"only {', '.join(configs.FREE)} may change",
            "start a new run with the other settings",
        )
