"""`arno quadratic`: simulations of client selection on quadratics, as run folders and pictures, without torch."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..config import settings as configs
from ..config.settings import parse
from ..errors import ArnoError, unknown
from ..limits import words as split
from ..pictures.figure import COLOURS, figure
from ..quadratic import METRICS, Simulation, Study, simulate, sweep, too_fast
from ..records import disk, metrics_file
from ..records.clients import write_parquet
from ..records.damage import Damaged
from ..records.folder import RunFolder
from ..records.lock import writing
from ..records.verify import recover_manifest
from ..tracking.follow import Tracking, asked
from ..version import __version__
from .result import RunResult

OWN = ("out", "track")
#: The name of the engine in the manifest of a simulation.
ENGINE = "quadratic simulation"


def studies(overrides: Sequence[str]) -> tuple[list[Study], dict[str, Any]]:
    """The studies of a grid of settings (commas and ranges make a grid), and the settings of the command itself.

    >>> grid, _ = studies(["seltype=rand,powd", "powd=9", "seed=0..1"])
    >>> [(s.label, s.seed) for s in grid]
    [('rand', 0), ('rand', 1), ('powd d=9', 0), ('powd d=9', 1)]
    """
    values = _grid if any(mark in text for text in overrides for mark in (",", "..")) else lambda text: [text]
    known = [f.name for f in fields(Study)]
    keys, choices, own = [], [], {}
    for text in overrides:
        key, value = parse(text)
        if key in OWN:
            own[key] = _folder(value) if key == "out" else value
        elif key not in known:
            raise unknown("key", key, [*known, *OWN])
        else:
            keys.append(key)
            choices.append([parse(f"{key}={v}")[1] for v in values(text.partition("=")[2])])
    grid: dict[Study, None] = {}
    for chosen in product(*choices):
        settings = dict(zip(keys, chosen, strict=True))
        if "powd" not in str(settings.get("seltype", "rand")) and "powd" in settings:
            make({"powd": settings.pop("powd")})  # it is checked but not used: other selections have no candidates
        grid[make(settings)] = None
    return list(grid), own


def _folder(value: Any) -> str | None:
    """The name of the folder that a user gave."""
    if isinstance(value, list | dict):
        raise ArnoError(f"out = {value!r}", "it must be one name", "try out=runs/mine")
    out = None if value is None else str(value)
    configs.check_out(out)
    return out


def _grid(text: str) -> list[str]:
    from ..config.lists import values

    return list(values(text))


def make(settings: dict[str, Any]) -> Study:
    """A study from settings; each value is converted to the type of its setting."""
    usual = {f.name: f.default for f in fields(Study)}
    out: dict[str, Any] = {}
    for name, value in settings.items():
        kind = int if name == "powd" else type(usual[name])
        good = (
            isinstance(value, kind) or (kind is float and isinstance(value, int)) or (name == "powd" and value is None)
        )
        if not good or (kind is not bool and isinstance(value, bool)):
            raise ArnoError(f"{name} = {value!r}", f"it must be of type {kind.__name__}", f"e.g. {name}={usual[name]}")
        out[name] = float(value) if kind is float else value
    return Study(**out)


def run(overrides: Sequence[str], quiet: bool = False) -> int:
    """Run the command: one study gives a run folder; several studies give a table and a picture."""
    grid, own = studies(overrides)
    asked(own.get("track"))
    lines = [] if quiet else sorted({line for s in grid for line in too_fast(s.lr, 9.0)})
    for line in lines:
        print(line)
    if len(grid) == 1:
        path, simulation = one(grid[0], own)
        if not quiet:
            show(simulation)
        print(path)
        return 0
    if own.get("track"):
        raise ArnoError("track= with several studies", "only a single run is tracked", "leave out track=")
    out = Path(own.get("out") or f"runs/{datetime.now():%Y%m%d-%H%M%S}-quadratic")
    names = labels(grid)
    began = perf_counter()
    found = sweep(grid)
    spent = perf_counter() - began
    groups: dict[str, list[Simulation]] = {}
    for name, simulation in zip(names, found, strict=True):
        groups.setdefault(name, []).append(simulation)
    with writing(out, "a sweep"):
        save_groups(groups, out / "sweep.npz")
        draw_groups(groups, out / "sweep.png")
    if not quiet:
        print(f"{len(grid)} simulations of {grid[0].epochs} rounds in {spent:.2f} s")
        table(groups)
        print(f"picture: {out / 'sweep.png'}")
    print(out)
    return 0


def labels(grid: Sequence[Study]) -> list[str]:
    """The group of each study of a sweep: studies that differ in their seed only are one group.

    >>> labels(studies(["lr=0.1,0.2", "seed=0..1"])[0])
    ['rand lr=0.1', 'rand lr=0.1', 'rand lr=0.2', 'rand lr=0.2']
    """
    several = {f.name: {getattr(study, f.name) for study in grid} for f in fields(Study)}
    if len(several["epochs"]) > 1:
        rule = "all simulations of a sweep have the same number of rounds"
        raise ArnoError(f"epochs = {', '.join(map(str, sorted(several['epochs'])))}", rule, "make a sweep for each")
    other = [name for name in several if name not in ("seltype", "powd", "seed") and len(several[name]) > 1]
    return [" ".join([study.label, *(f"{name}={getattr(study, name)}" for name in other)]) for study in grid]


def one(study: Study, own: dict[str, Any]) -> tuple[Path, Simulation]:
    """Simulate, and write a run folder; `arno run --config` repeats the run with the general engine."""
    config = study.config() | {"out": own.get("out")} | ({"track": own["track"]} if own.get("track") else {})
    folder = RunFolder.new(config)
    with writing(folder.path, "a run"):
        if not _stopped(folder):
            folder.refuse_used()
        return folder.path, _simulated(folder, study, config)


def _stopped(folder: RunFolder) -> bool:
    """Whether a simulation in this folder was stopped before its end; then the folder holds no result."""
    try:
        manifest = folder.manifest()
    except Damaged:
        return False
    return manifest.get("engine") == {"name": ENGINE} and manifest.get("status") != "done"


def simulate_again(folder: RunFolder, overrides: Sequence[str]) -> RunResult:
    """Repeat a stored simulation: it is fast and has no checkpoints."""
    recover_manifest(folder)
    words = split(folder.manifest().get("command"), f"{folder.path / 'manifest.json'}")
    if overrides:
        same = shlex.join([*words, *overrides])
        raise ArnoError(" ".join(overrides), "a simulation has no checkpoints to continue from", f"try {same} out=DIR")
    grid, _ = studies(words[2:])
    config = grid[0].config() | {"out": str(folder.path)}
    if configs.differences(folder.config(), configs.translated(config)):
        rule = "its command gives other settings than config.yaml"
        raise ArnoError(f"{folder.path / 'manifest.json'}", rule, "start the simulation again with another out=")
    _simulated(folder, grid[0], config)
    return RunResult(folder.path)


def _simulated(folder: RunFolder, study: Study, config: dict[str, Any]) -> Simulation:
    """Simulate, and record the simulation in its folder. The manifest is written first; it names this engine."""
    began = perf_counter()
    folder.update_manifest(
        status="running", arno=__version__, python=platform.python_version(), platform=platform.platform(),
        **{name: package(name) for name in ("numpy", "numba", "torch")}, seed=study.seed, parameters=study.dim,
        metrics=[metric.to_json() for metric in METRICS],
        started=datetime.now().astimezone().isoformat(timespec="seconds"), engine={"name": ENGINE},
        command="arno quadratic " + " ".join(f"{f.name}={getattr(study, f.name)}" for f in fields(study)
                                             if getattr(study, f.name) != f.default),
    )  # fmt: skip
    folder.create(config)
    tracking = Tracking(folder.path, config.get("track"))
    simulation = simulate(study)
    seconds = perf_counter() - began
    digest = blake2b(digest_size=16)
    for array in (simulation.instance.h, simulation.instance.e, simulation.instance.p):
        digest.update(array.tobytes())
    write(folder, simulation)
    folder.write_panels([])
    disk.remove(folder.path / "curves.png")
    draw_one(simulation, folder.path / "curves.png")
    folder.update_manifest(
        status="done", rounds=study.epochs, best_round=study.epochs, seconds=round(seconds, 4),
        wall=round(perf_counter() - began, 3), data_fingerprint=digest.hexdigest(),
        **folder.checksums(), picks=simulation.picks.tolist(), **simulation.skew,
    )  # fmt: skip
    for line in tracking.finish():
        print(line)
    return simulation


def write(folder: RunFolder, s: Simulation) -> None:
    """Write the numbers of every round, the cohort of every round, and the model."""
    import pyarrow as pa
    from safetensors.numpy import save_file

    columns: dict[str, Any] = {"gap": s.gap, "distance": s.distance, "loss_evaluations": s.evaluations}
    columns |= {"rho": s.rho, "rho_star": s.rho_star} if len(s.rho) else {}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    named = ({"round": t, **dict(zip(columns, row, strict=True))} for t, row in enumerate(rows, 1))
    folder.write_text(metrics_file.NAME, "".join(metrics_file.line(row, folder.mark) for row in named))
    rounds = np.repeat(np.arange(1, s.study.epochs + 1), s.chosen.shape[1])
    columns = {"round": rounds, "client": s.chosen.ravel()}
    arrays = [pa.Array.from_buffers(pa.int64(), len(a), [None, pa.py_buffer(a)]) for a in columns.values()]
    table = pa.Table.from_arrays(arrays, names=list(columns))  # `pa.table` would import pandas
    write_parquet(table, folder.path / "clients.parquet")
    for name in ("final", "best"):
        save_file({"w": s.path[-1].copy()}, folder.path / f"{name}.safetensors")


def package(name: str) -> str | None:
    """The version of a package, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def show(s: Simulation) -> None:
    """Print the result of a simulation."""
    print(f"{s.study.label}: {s.study.epochs} rounds, {s.study.m} of {s.study.num_users} clients a round")
    print(f"F(w) − F(w*)  {s.gap[0]:.4g} → {s.gap[-1]:.4g}      ‖w − w*‖  {s.distance[0]:.4g} → {s.distance[-1]:.4g}")
    print(f"losses evaluated for the selection: {int(s.evaluations.sum())}")
    for name, value in s.skew.items():
        print(f"{name}: {value:.4f}")


def table(groups: dict[str, list[Simulation]]) -> None:
    """Print the gap after three rounds: mean ± standard deviation over the seeds."""
    rounds = next(iter(groups.values()))[0].study.epochs
    at = sorted({max(1, rounds // 15), max(1, rounds // 3), rounds})
    print(f"{'F(w) − F(w*) after round':<26}" + "".join(f"{t:>22}" for t in at) + f"{'seeds':>8}")
    for label, members in groups.items():
        cells = []
        for t in at:
            gaps = np.array([s.gap[t - 1] for s in members])
            cells.append(f"{gaps.mean():.4g}" + (f" ± {gaps.std(ddof=1):.2g}" if len(gaps) > 1 else ""))
        print(f"{label:<26}" + "".join(f"{cell:>22}" for cell in cells) + f"{len(members):>8}")


def save_groups(groups: dict[str, list[Simulation]], path: Path) -> None:
    """Write the curves of a sweep, with at most a thousand points each."""
    epochs = next(iter(groups.values()))[0].study.epochs
    at = np.unique(np.linspace(0, epochs - 1, min(epochs, 1000)).astype(int))
    arrays = {"rounds": at + 1}
    for label, members in groups.items():
        arrays |= {f"{label} gap": np.stack([s.gap[at] for s in members])}
        arrays |= {f"{label} distance": np.stack([s.distance[at] for s in members])}
        arrays |= {f"{label} picks": np.stack([s.picks for s in members])}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def draw_one(s: Simulation, path: Path) -> None:
    """Draw the gap, the distance, and for each client how often it was selected and its share."""
    fig, axes = figure(1, 3, (13, 3.8))
    at = np.unique(np.linspace(0, s.study.epochs - 1, min(s.study.epochs, 2000)).astype(int))
    for axis, curve, label in ((axes[0][0], s.gap, "F(w) − F(w*)"), (axes[0][1], s.distance, "‖w − w*‖")):
        axis.plot(at + 1, curve[at], color=COLOURS[0], lw=1.4)
        axis.set(xlabel="round", ylabel=label, yscale="log")
    clients = np.arange(s.study.num_users)
    axes[0][2].bar(clients, s.picks / s.picks.sum(), color=COLOURS[5], label="picked")
    axes[0][2].plot(clients, s.instance.p, "o", ms=3, color=COLOURS[3], label="share $p_k$")
    axes[0][2].set(xlabel="client", ylabel="frequency")
    axes[0][2].legend(frameon=False)
    _plain(axes[0])
    fig.savefig(path, dpi=110)


def draw_groups(groups: dict[str, list[Simulation]], path: Path) -> None:
    """Draw the gap and the distance of each selection over the rounds: the mean over seeds and its 95 % interval."""
    fig, axes = figure(1, 2, (12, 4.4))
    epochs = next(iter(groups.values()))[0].study.epochs
    at = np.unique(np.linspace(0, epochs - 1, min(epochs, 1500)).astype(int))
    for axis, name, label in ((axes[0][0], "gap", "F(w) − F(w*)"), (axes[0][1], "distance", "‖w − w*‖")):
        for i, (strategy, members) in enumerate(groups.items()):
            curves = np.log(np.stack([getattr(s, name)[at] for s in members]))
            mean = curves.mean(0)
            half = 1.96 * curves.std(0, ddof=1) / len(curves) ** 0.5 if len(curves) > 1 else 0 * mean
            axis.plot(at + 1, np.exp(mean), color=COLOURS[i % 8], label=strategy, lw=1.6)
            axis.fill_between(at + 1, np.exp(mean - half), np.exp(mean + half), color=COLOURS[i % 8], alpha=0.18, lw=0)
        axis.set(xlabel="round", ylabel=f"{label} (geometric mean over seeds)", yscale="log")
    axes[0][0].legend(frameon=False, fontsize=8)
    _plain(axes[0])
    fig.savefig(path, dpi=120)


def _plain(axes: Any) -> None:
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
