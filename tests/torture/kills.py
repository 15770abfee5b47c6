"""Kills: every method, every engine, comparisons and stages, at every file operation and at any moment; once and twice.

After the kills the run is continued (`arno resume`; for comparisons and stages the same command again). It must compute
the bits of a run never stopped. Where nothing was written yet, the first command is given again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import psutil
from cases import Bad, Case, Verdict, check, computed, one_line, same
from commands import At, Said, forked, started
from operations import SIGNALS

SMALL = ("clients=7", "participation=0.5", "rounds=6", "checkpoint.every=2", "model.hidden=[8]", "data.limit=200")
#: Settings of the methods whose defaults do not suit seven clients and a small network.
SETTINGS = {
    "cluster_fedvarp": ("method.clusters=3",),
    "fedscavar": ("method.clusters=3",),
    "feddyn": ("method.alpha=0.1",),
    "heterofl": ("method.beta=[0.3,0.5,1.0,0.3,0.5,1.0,0.7]",),
    "qrmix": ("method.rank_k=3", "method.oversampling=3"),
    "fedrcl": ("local.augment=false", "local.epochs=1"),
    "lorenzo": ("local.epochs=1", "local.batch_size=8", "participation=1"),
    "compose": (
        "method.parts=[window,scaffold,cluster_varp,server_momentum]",
        "method.cluster_varp.clusters=3",
    ),
}
OWN = """
from dataclasses import dataclass
from arno.core.method_part import Part

@dataclass
class Mine(Part):
    "Adds nothing; its file is imported again by a resume."

def factory():
    return [Mine()]
"""
STAGES = {
    "qrmix": ("method=fedavgm", "method=qrmix", "method.rank_k=3", "method.oversampling=3"),
    "fedrcl": ("method=fedrcl", "method=fedavg"),
}
GRID = ("method=fedavg,scaffold", "seed=0..1", "rounds=4", "clients=5", "checkpoint.every=2", "model=softmax")


@dataclass(frozen=True)
class Recipe:
    """A command and how it is continued. folders: the runs that it leaves in its folder. prepare: writes its files."""

    name: str
    first: tuple[str, ...]
    again: tuple[str, ...]
    folders: tuple[str, ...] = ("run",)
    prepare: Callable[[Path], None] = lambda _: None


def methods() -> list[str]:
    """Every registered method, and one from a file of the user."""
    from arno.methods import methods as registry

    return [*registry.names(), "custom"]


def run_of(method: str, *words: str) -> Recipe:
    """A run of a method."""
    own = ("method.target=mine.py:factory",) if method == "custom" else ()
    first = ("run", f"method={method}", *SMALL, *SETTINGS.get(method, ()), *own, *words, "out=run", "--quiet")
    return Recipe(method, first, ("resume", "run", "--quiet"), prepare=_write_own)


def problem_quadratic() -> Recipe:
    words = ("problem=quadratic", "clients=7", "rounds=6", "checkpoint.every=2", "out=run", "--quiet")
    return Recipe("problem=quadratic", ("run", *words), ("resume", "run", "--quiet"))


def quadratic() -> Recipe:
    words = ("quadratic", "num_users=8", "epochs=40", "seltype=powd", "out=run", "--quiet")
    return Recipe("arno quadratic", words, ("resume", "run", "--quiet"))


def stages(name: str) -> Recipe:
    """Two stages: a warm-up, and the method that continues from its model."""
    words = ("run", "--stages", "one.yaml,two.yaml", "out=staged", "--quiet")
    return Recipe(f"stages {name}", words, words, ("staged/stage1", "staged/stage2"), lambda p: _write_stages(p, name))


def comparison() -> Recipe:
    words = ("compare", *GRID, "out=grid", "--jobs", "1")
    cells = tuple(f"grid/method={m}+seed={s}" for m in ("fedavg", "scaffold") for s in (0, 1))
    return Recipe("compare", words, (*words, "--retry"), cells)  # a cell whose process was killed has failed


def tuning() -> Recipe:
    search = ("method=fedavg,fedprox", "rounds=4", "clients=4", "seed=0..1", "data.limit=200", "model=softmax")
    words = ("tune", *search, "out=tuned", "--trials", "3", "--jobs", "1")
    cells = tuple(f"tuned/method={m}+seed={s}" for m in ("fedavg", "fedprox") for s in (0, 1))
    return Recipe("tune", words, (*words, "--retry"), cells)


def _write_own(folder: Path) -> None:
    (folder / "mine.py").write_text(OWN)


def _write_stages(folder: Path, name: str) -> None:
    from omegaconf import OmegaConf

    from arno.config import settings

    first, *second = STAGES[name]
    common = [*SMALL, "local.augment=false"]
    for file, words in (("one.yaml", [first, *common, "rounds=3"]), ("two.yaml", [*second, *common, "rounds=6"])):
        config = settings.plain(settings.compose(words)) | {"out": None}
        (folder / file).write_text(OmegaConf.to_yaml(OmegaConf.create(config)))


class Whole:
    """Runs that were never stopped, made once for each recipe: what they computed, their operations, their seconds."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def of(self, recipe: Recipe) -> dict:
        place = self.store / recipe.name.replace(" ", "_").replace("=", "_")
        known = place / "whole.json"
        if not known.exists():
            self._make(recipe, place, known)
        return json.loads(known.read_text())

    def _make(self, recipe: Recipe, place: Path, known: Path) -> None:
        work = place.with_name(f"{place.name}.{os.getpid()}")
        work.mkdir(parents=True)
        recipe.prepare(work)
        said = forked(recipe.first, work, journal=work / ".journal")
        assert said.status == 0, (recipe, said)
        found = {
            "computed": {name: computed(work / name) for name in recipe.folders},
            "operations": (work / ".journal").read_text().splitlines() if (work / ".journal").exists() else [],
            "seconds": said.seconds,
        }
        place.mkdir(exist_ok=True)
        (place / f"{work.name}.part").write_text(json.dumps(found))
        (place / f"{work.name}.part").replace(known)
        shutil.rmtree(work)


def kill_case(kind: str, recipe: Recipe, whole: Whole, runner: Callable[..., Said], plan: str) -> Case:
    """Kill a command as `plan` says, and continue it.

    plan: `op N torn` (at an operation), `time F` (after a share of its seconds); two of them, joined by `+`, are a kill
    of the command and one of its continuation.
    """

    def act(folder: Path, rng: Random) -> Verdict:
        known, kills = whole.of(recipe), 0
        recipe.prepare(folder)
        for number, one in enumerate(plan.split("+")):
            words = recipe.first if number == 0 or not written(folder, recipe) else recipe.again
            said = runner(words, folder, **moment(one, known))
            cell = said.status == 1 and "(killed by SIGKILL)" in said.out
            if not said.killed and not cell:
                check(said, " ".join(words[:2]))
            kills += said.killed or cell
        continued(recipe, folder, runner)
        for name in recipe.folders:
            same(folder / name, known["computed"][name], name)
        return Verdict("identical", kills=kills)

    return Case(kind, f"{kind}/{recipe.name}/{plan}", act)


def signal_case(recipe: Recipe, whole: Whole, runner: Callable[..., Said], plan: str) -> Case:
    """Stop a command with signals as `plan` says, and continue it. It ends orderly: status 130, or done."""
    ended = (0, 130, -signal.SIGTERM)  # SIGTERM while Python starts

    def act(folder: Path, rng: Random) -> Verdict:
        known = whole.of(recipe)
        recipe.prepare(folder)
        said = runner(recipe.first, folder, **moment(plan, known))
        if said.status not in ended or said.broken:
            check(said._replace(status=said.status or 1), "stopped by a signal")
        continued(recipe, folder, runner)
        for name in recipe.folders:
            same(folder / name, known["computed"][name], name)
        return Verdict("identical")

    return Case("signal", f"signal/{recipe.name} {_engine(recipe)}/{plan}", act)


def _engine(recipe: Recipe) -> str:
    return next((word for word in recipe.first if word.startswith("engine=")), "")


def written(folder: Path, recipe: Recipe) -> bool:
    """Whether there is something to continue."""
    return any((folder / name / "config.yaml").exists() for name in recipe.folders)


def moment(plan: str, known: dict) -> dict:
    word, number, *action = plan.split()
    if word == "time":
        return {"after": float(number) * known["seconds"]}
    return {"at": At(int(number), action[0] if action else "kill")}


def continued(recipe: Recipe, folder: Path, runner: Callable[..., Said]) -> None:
    """Continue a command that was killed until it has ended."""
    said = check(runner(recipe.again, folder), "continued")
    if said.refused and recipe.again != recipe.first and not written(folder, recipe):
        said = check(runner(recipe.first, folder), "run again")  # there was nothing to continue
    if said.refused:
        raise Bad("silent", f"a killed run is refused: {one_line(said.err)}")


def everything_killed(words: tuple[str, ...], folder: Path, **how: object) -> Said:
    """A new process; afterwards every process that it left behind is killed, as those of a Ray cluster."""
    mark = f"{folder.name}-{os.getpid()}"
    said = started(words, folder, environment={"ARNO_TORTURE_MARK": mark}, **how)  # type: ignore[arg-type]
    for process in psutil.process_iter():
        try:
            if process.environ().get("ARNO_TORTURE_MARK") == mark:
                process.kill()
        except (psutil.Error, OSError):
            continue
    return said


def cases(whole: Whole, seed: int, share: float = 1.0) -> Iterator[Case]:
    """All cases; share: the part of them that is made."""
    rng = Random(f"kills {seed}")

    def some(count: int) -> int:
        return max(1, round(count * share))

    yield from _serial(whole, rng, some)
    yield from _parallel(whole, rng, some)
    yield from _commands(whole, rng, some)
    yield from _signals(whole, Random(f"signals {seed}"), some)


def _signals(whole: Whole, rng: Random, some: Callable[[int], int]) -> Iterator[Case]:
    serial, workers = run_of("scaffold", "engine=serial"), run_of("scaffold", "engine=processes", "engine.workers=2")
    for recipe in (serial, workers, quadratic(), stages("qrmix"), comparison()):
        for action in SIGNALS:
            for _ in range(some(8)):
                yield signal_case(recipe, whole, forked, f"op {rng.randint(1, OPERATIONS)} {action}")
    for recipe in (serial, workers):  # while Python starts, too
        for action in SIGNALS:
            for _ in range(some(3)):
                yield signal_case(recipe, whole, started, f"op {rng.randint(1, 12)} {action}")


def _serial(whole: Whole, rng: Random, some: Callable[[int], int]) -> Iterator[Case]:
    kind = "kill, serial"
    for method in methods():
        recipe = run_of(method, "engine=serial")
        for _ in range(some(5)):
            yield kill_case(f"{kind}, time", recipe, whole, forked, f"time {rng.uniform(0.02, 0.98):.3f}")
        for _ in range(some(5)):
            yield kill_case(f"{kind}, operation", recipe, whole, forked, _operation(rng))
        for _ in range(some(4)):
            plan = f"{rng.choice((_operation(rng), _time(rng)))}+{rng.choice((_operation(rng), _time(rng)))}"
            yield kill_case(f"{kind}, double", recipe, whole, forked, plan)
    every = run_of("scaffold", "engine=serial")
    for number in range(1, some(OPERATIONS) + 1):  # one method at every operation
        yield kill_case(f"{kind}, operation", every, whole, forked, f"op {number} {'torn' if number % 2 else 'kill'}")
    for recipe in (problem_quadratic(), quadratic(), stages("qrmix"), stages("fedrcl")):
        for _ in range(some(12)):
            yield kill_case("kill, quadratic and stages", recipe, whole, forked, rng.choice((_operation, _time))(rng))
        for _ in range(some(4)):
            yield kill_case("kill, quadratic and stages", recipe, whole, forked, f"{_operation(rng)}+{_time(rng)}")


def _parallel(whole: Whole, rng: Random, some: Callable[[int], int]) -> Iterator[Case]:
    for method in methods():
        recipe = run_of(method, "engine=processes", "engine.workers=2")
        for _ in range(some(4)):
            yield kill_case("kill, processes", recipe, whole, forked, rng.choice((_operation, _time))(rng))
        yield kill_case("kill, processes", recipe, whole, forked, f"{_operation(rng)}+{_time(rng)}")
    if has_ray():
        for method in rng.sample(methods(), some(24)):
            recipe = run_of(method, "engine=ray", "engine.workers=2")
            yield kill_case("kill, ray", recipe, whole, everything_killed, rng.choice((_operation, _late))(rng))


def _commands(whole: Whole, rng: Random, some: Callable[[int], int]) -> Iterator[Case]:
    for method in rng.sample(methods(), some(30)):
        recipe = run_of(method, "engine=serial")
        yield kill_case("kill, arno command", recipe, whole, started, rng.choice((_operation, _late))(rng))
    for _ in range(some(24)):
        plan = rng.choice((_operation(rng), _time(rng), f"{_time(rng)}+{_operation(rng)}"))
        yield kill_case("kill, compare", comparison(), whole, forked, plan)
    for _ in range(some(12)):
        yield kill_case("kill, compare", comparison(), whole, started, _operation(rng))
    for _ in range(some(20)):
        plan = rng.choice(
            (f"op {rng.randint(1, OPERATIONS_OF_SEARCH)} kill", _time(rng), f"{_time(rng)}+{_operation(rng)}")
        )
        yield kill_case("kill, tune", tuning(), whole, forked, plan)


#: About how many file operations a run of six rounds has.
OPERATIONS = 80
#: The same of a search with its comparison.
OPERATIONS_OF_SEARCH = 400


def _operation(rng: Random) -> str:
    return f"op {rng.randint(1, OPERATIONS)} {rng.choice(('kill', 'torn'))}"


def _time(rng: Random) -> str:
    return f"time {rng.uniform(0.02, 0.98):.3f}"


def _late(rng: Random) -> str:
    """A new process takes some seconds longer than a forked one."""
    return f"time {rng.uniform(1, 8):.3f}"


@cache
def has_ray() -> bool:
    from importlib.util import find_spec

    return find_spec("ray") is not None
