"""`arno tune`: equal budgets, validation data only, the same winners after a stop."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import arno
from arno.analysis.budget import unequal_searches
from arno.analysis.tuning import Tuning
from arno.cli import main
from arno.errors import ArnoError
from arno.grids import searches as tuning
from arno.grids import tune
from arno.grids.grid import cells
from arno.grids.ranges import Range
from arno.grids.search import BATCH, Search, repair_storage, rungs
from arno.grids.spaces import spaces
from arno.grids.this_process import ThisProcess
from arno.methods import methods

pytest.importorskip("optuna")
SMALL = ["method=fedavg,fedprox", "rounds=4", "clients=4", "seed=0..1", "data.limit=200", "model=softmax"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trials run in this process: the tests of this fixture are not about workers."""
    monkeypatch.setattr(tune, "workers_for", lambda words, out: (ThisProcess(), ["engine=serial", *words]))
    yield
    methods._factories.pop("mine", None)


def search_for(optimum: float, trials: int, recorded: list[dict[str, object]], sign: int = 1) -> Search:
    """A search whose score is best at `optimum`, on a logarithmic scale."""
    space = {"local.lr": Range("log", 1e-4, 10.0)}
    search = Search("planted", space, sign, recorded)
    for first in range(0, trials, BATCH):
        asked = search.ask(min(BATCH, trials - first))
        for trial in reversed(asked):  # trials end in any order
            trial.scores[1] = -sign * abs(math.log10(float(trial.settings["local.lr"]) / optimum))
        search.tell(asked)
    return search


@pytest.mark.parametrize("sign", [1, -1])
def test_a_planted_optimum_is_found(sign: int) -> None:
    best = search_for(0.03, 40, [], sign).best
    assert abs(math.log10(float(best.settings["local.lr"]) / 0.03)) < 0.1
    random = search_for(0.03, BATCH, []).best
    assert abs(math.log10(float(random.settings["local.lr"]) / 0.03)) > 0.1  # the first batch alone does not find it


def test_a_search_continues_with_the_trials_of_one_that_never_stopped() -> None:
    whole = search_for(0.03, 24, [])
    recorded = [trial.values for trial in whole.trials[:11]]
    again = search_for(0.03, 24, recorded)
    assert [trial.values for trial in again.trials] == [trial.values for trial in whole.trials]


def test_the_better_half_goes_on() -> None:
    search = Search("halves", {"local.lr": Range("log", 1e-4, 10.0)}, -1, [])
    asked = search.ask(5)
    for trial, score in zip(asked, (3.0, 1.0, 2.0, 2.0, 9.0), strict=True):
        trial.scores[1] = score
    asked[1].lost = "diverged"
    assert [trial.number for trial in search.better_half(asked, 1)] == [0, 2, 3]


OWN = """
from arno import Part
from arno.methods import methods

@methods.register("mine", tune={"strength": "log(0.0001, 10)"})
def factory(*, strength: float = 1.0):
    return [Weak(strength)]

class Weak(Part):
    def __init__(self, strength):
        self.strength = strength

    def finish(self, t, v):
        from math import log10
        return v * 0.01 ** abs(log10(self.strength / 0.03))
"""


@pytest.mark.usefixtures("here")
def test_a_planted_optimum_is_found_by_runs_of_an_own_method_with_a_declared_range(tmp_path: Path) -> None:
    """The method is best at strength 0.03: any other value shortens the step of the server."""
    (tmp_path / "mine.py").write_text(OWN)
    words = ["method=custom", f"method.target={tmp_path / 'mine.py'}:factory", "model=softmax", "data.limit=300"]
    words += ["local.lr=0.02", "rounds=4", "clients=4", "seed=0", "engine=serial"]
    arno.tune(*words, out=tmp_path / "out", trials=24)
    found = Tuning.open(tmp_path / "out")
    assert found is not None
    (group,) = found.groups
    assert group.space == {"method.strength": "log(0.0001, 10.0)"}
    assert abs(math.log10(float(group.best["method.strength"]) / 0.03)) < 0.2


def space(*words: str, **ranges: str) -> list[dict[str, str]]:
    given = {key.replace("__", "."): Range.of(text) for key, text in ranges.items()}
    found = spaces(cells(words), {key: one for key, one in given.items() if one}, words)
    return [{key: str(one) for key, one in each.items()} for each in found]


def test_a_value_or_range_for_one_method_goes_before_one_for_all() -> None:
    both, rate, mu = "method=fedavg,fedprox", "log(0.001, 1)", {"method.mu": "log(0.001, 1)"}
    wide = "log(0.1, 10.0)"
    assert space(both) == [
        {"local.lr": "log(0.001, 1.0)"},
        {"local.lr": "log(0.001, 1.0)", "method.mu": "log(0.001, 1.0)"},
    ]
    assert space(both, "local.lr=0.1") == [{}, {"method.mu": "log(0.001, 1.0)"}]
    assert space(both, "fedprox.mu=0.1", local__lr=wide) == [{"local.lr": wide}, {"local.lr": wide}]
    own = space(both, "fedprox.mu=1", fedprox__local__lr=wide, local__lr=rate)
    assert own == [{"local.lr": "log(0.001, 1.0)"}, {"local.lr": wide}]
    assert space(both, "local.lr=0.1", "fedprox.mu=1", fedprox__local__lr=wide) == [{}, {"local.lr": wide}]
    assert space(both, "fedavg.local.lr=0.1", fedprox__mu="any(0, 1)")[0] == {}
    assert set(mu) < set(space(both, server_lr=wide)[1])


def run(out: Path, *words: str, trials: int = 4, **plan: str) -> Tuning:
    arno.tune(*SMALL, *words, out=out, trials=trials, **plan)
    found = Tuning.open(out)
    assert found is not None
    return found


def digits(path: Path, poisoned: bool) -> str:
    """The digits as arrays; with `poisoned` test data, whose labels say nothing."""
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    flipped = 1 - y[200:] if poisoned else y[200:]
    np.savez(path, x=x[:200], y=y[:200], x_test=x[200:], y_test=flipped)
    return f"data.path={path}"


@pytest.mark.usefixtures("here")
def test_budgets_are_equal_and_test_data_are_not_read(tmp_path: Path) -> None:
    words = ["data=npz", "data.val=0.2", "local.lr=log(0.001, 10)"]
    both = {}
    for poisoned in (False, True):
        source = digits(tmp_path / f"{poisoned}.npz", poisoned)
        out = tmp_path / f"out-{poisoned}"
        both[poisoned] = run(out, *words, source)
    clean, poisoned = both[False], both[True]
    assert [group.best for group in clean.groups] == [group.best for group in poisoned.groups]
    assert [group.scores() for group in clean.groups] == [group.scores() for group in poisoned.groups]
    assert {group.cost("rounds") for group in clean.groups} == {4 * 1 + 2 * 3}
    assert {"method.mu", "local.lr"} == {*clean.groups[1].space}
    finals = {p: arno.Comparison.open(tmp_path / f"out-{p}").table()["final"].max() for p in (False, True)}
    assert finals[False] > 0.8 > 0.5 > finals[True]  # the comparison does read them
    searched = next((tmp_path / "out-False" / "search").rglob("metrics.jsonl"))
    assert not any(name.startswith("test_") for name in json.loads(searched.read_text().splitlines()[-1]))


@pytest.mark.usefixtures("here")
def test_stopped_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole")
    train, calls = tuning.Searching._train, []

    def stops(self: tuning.Searching, *arguments: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        train(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning.Searching, "_train", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "compare.json").exists()
    again = run(tmp_path / "stopped")
    assert [group.scores() for group in again.groups] == [group.scores() for group in whole.groups]
    assert [group.best for group in again.groups] == [group.best for group in whole.groups]
    with pytest.raises(ArnoError, match="other seeds"):
        run(tmp_path / "stopped", search_seeds="77")


@pytest.mark.usefixtures("here")
def test_trials_that_diverge_are_lost_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    words = ["local.lr=any(0.1, 1e30)", "engine=serial", "fedprox.mu=0.1"]
    found = run(out, *words, trials=6)
    lost = [trial for trial in found.groups[0].trials if trial["diverged"]]
    assert lost
    assert all(trial["settings"]["local.lr"] == "1e+30" for trial in lost)
    assert found.groups[0].best == {"local.lr": "0.1"}
    spent = {group.cost("rounds") for group in found.groups}
    assert bool(unequal_searches(found)) == (max(spent) > 1.05 * min(spent))
    monkeypatch.setattr(tuning, "run_cells", None)  # nothing is run again
    assert run(out, *words, trials=6) == found


def test_a_trial_whose_worker_is_killed_is_run_again(tmp_path: Path) -> None:
    """The first run of the method kills its process."""
    there = tmp_path / "there"
    (tmp_path / "mine.py").write_text(
        "import os\nfrom pathlib import Path\nfrom arno import Part\n"
        "def factory(*, die: bool = True):\n    return [Dies()] if die else []\n"
        "class Dies(Part):\n"
        "    def finish(self, t, v):\n"
        f"        there = Path({str(there)!r})\n"
        "        if not there.exists():\n"
        "            there.touch()\n"
        "            os.kill(os.getpid(), 9)\n"
        "        return v\n"
    )
    words = ["method=custom", f"method.target={tmp_path / 'mine.py'}:factory", *SMALL[1:], "engine=serial"]
    found = []
    for dies in (True, False):
        arno.tune(*words, f"method.die={dies}", out=tmp_path / f"out-{dies}", trials=3)
        record = Tuning.open(tmp_path / f"out-{dies}")
        assert record is not None
        found.append(record.groups[0])
    assert there.exists()
    assert found[0].scores() == found[1].scores()
    assert not any(trial["lost"] for trial in found[0].trials)


@pytest.mark.usefixtures("here")
def test_a_method_that_always_fails_stops_the_search(tmp_path: Path) -> None:
    factory = "def factory(*, a: float = 1.0):\n    return [Breaks()]\n"
    part = "class Breaks(Part):\n    def finish(self, t, v):\n        raise RuntimeError('broken')\n"
    early = "def early(*, a: float = 1.0):\n    raise RuntimeError('broken')\n"
    (tmp_path / "mine.py").write_text(f"from arno import Part\n{factory}{part}{early}")
    words = ["method=custom", f"method.target={tmp_path / 'mine.py'}:factory", *SMALL[1:]]
    with pytest.raises(ArnoError, match=r"all trials 1 to 3 failed; the first one: .*broken"):
        arno.tune(*words, out=tmp_path / "out", trials=3)
    words[1] = words[1].replace(":factory", ":early")
    with pytest.raises(
        ArnoError,
        match=r"search for custom: method\.target = .*: calling it failed: RuntimeError: broken .*; correct the code",
    ):
        arno.tune(*words, out=tmp_path / "early", trials=3)
    assert not (tmp_path / "early" / "search").exists()


@pytest.mark.usefixtures("here")
def test_every_setting_has_its_own_number_of_rounds(tmp_path: Path) -> None:
    found = run(tmp_path / "out", "rounds=4,8", "method=fedavg")
    assert found.rounds == (4, 8)
    for group, rounds in zip(found.groups, found.rounds, strict=True):
        assert max(int(t) for trial in group.trials for t in trial["scores"]) == rounds
        assert group.cost("rounds") == 4 * rounds / 4 + 2 * rounds * 3 / 4
    order = arno.Comparison.open(tmp_path / "out").table()
    assert sorted(order["rounds"]) == [4, 8]


@pytest.mark.usefixtures("here")
def test_a_folder_belongs_to_one_search(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, "method=fedavg", trials=2)
    with pytest.raises(ArnoError, match=r"--trials 3: the search in .* had 2, and its comparison has read test data"):
        run(out, "method=fedavg", trials=3)
    with pytest.raises(ArnoError, match="holds a comparison with searched settings"):
        arno.compare(*SMALL, out=out)
    (out / "tune.json").unlink()
    with pytest.raises(ArnoError, match="holds a comparison without a search"):
        run(out, "method=fedavg", trials=2)


def test_a_storage_that_a_killed_process_left_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / tuning.STORAGE
    search = search_for(0.03, 8, [])
    search.store(path)
    whole = path.read_bytes()
    repair_storage(path)
    assert path.read_bytes() == whole
    for rest in (whole[:-20], whole + b"{\n", b"no journal\n"):
        path.write_bytes(rest)
        (tmp_path / f"{tuning.STORAGE}.lock").touch()
        repair_storage(path)
        search.store(path)
        assert path.read_text().count("\n") == whole.decode().count("\n")


@pytest.mark.usefixtures("here")
def test_a_damaged_record_changes_nothing(tmp_path: Path) -> None:
    """It is refused by name; without it, the search proposes the same trials."""
    out = tmp_path / "out"
    whole = run(out, "method=fedavg", trials=3)
    record = out / "tune.json"
    text = json.loads(record.read_text())
    text["groups"][0]["trials"][0]["values"] = {"local.lr": "a", "x": [1]}
    for damage in ("", "[]", '{"methods": 1}', json.dumps(text), "{"):
        (out / "compare.json").unlink()
        record.write_text(damage)
        with pytest.raises(ArnoError, match="it is not a record of a search"):
            run(out, "method=fedavg", trials=3)
        record.unlink()
        assert run(out, "method=fedavg", trials=3) == whole


@pytest.mark.usefixtures("here")
def test_personal_methods_are_tuned_by_the_validation_samples_of_their_clients(tmp_path: Path) -> None:
    words = ["method=ditto", "data.client_val=0.3", "data.client_test=0.3", "local.lr=0.05", "data.limit=400"]
    found = run(tmp_path / "out", *words, trials=4)
    (group,) = found.groups
    assert len(set(group.scores())) > 1, "the global model does not depend on lam, the clients' models do"
    searched = next((tmp_path / "out" / "search").rglob("metrics.jsonl"))
    assert not any(name.startswith("test_") for name in json.loads(searched.read_text().splitlines()[-1]))


def test_the_command_shows_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tuned"
    words = ["tune", "method=fedavg", *SMALL[1:], "local.lr=log(0.5, 0.6)", f"out={out}", "--trials", "2"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "search: validation" in text
    assert "the search read no test data" in text
    report = (out / "report.html").read_text()
    assert "Search for settings" in report
    assert report.count("<circle") >= 2
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    kept = optuna.load_study(study_name="fedavg", storage=JournalStorage(JournalFileBackend(str(out / tuning.STORAGE))))
    assert len(kept.trials) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["local.lr=log(0, 1)"], "begins above zero"),
        (["local.lr=log(1, 0.1)"], "first end must be below"),
        (["local.epochs=int(1.5, 2)"], "whole numbers"),
        (["local.epochs=int(1, .inf)"], "must be finite"),
        (["method=any(fedavg, fedprox)"], "method is not searched"),
        (["local.lr=log(0.1)"], "two ends"),
        (["local.lr=any(1)"], "different values"),
        (["--trials", "1"], "at least two"),
        (["--trials", "9" * 30], "at most 100,000"),
        (["--search-seeds", "0..5"], "uses seed 0, 1, 2 too"),
        (["data.val=0"], "validation data, and there are none"),
        (["local.lr=0.1,log(0.5, 1)"], "is a range in a list of values"),
        (["local.lr=linear(-1, 1)"], "above 0; change the range"),
        (["local.epochs=linear(1, 3)"], "whole number and at least 1, at most 1e+09; write int(1, 10)"),
        (["local.batch_size=any(8, full)"], "it must be a number"),
        (["method=fedprox", "method.mu=linear(-1, 1)"], "at least 0; change the range"),
        (["participation=linear(0.1, 1)"], "participation is not searched"),
        (["method=fedavg,fedprox", "fedprox.rounds=int(10, 400)"], "fedprox.rounds is not searched"),
        (["method=fedavg,fedprox", "fedprox.data.val=any(0.1, 0.2)"], "fedprox.data.val is not searched"),
        (["seed=1000"], "try --search-seeds 1001"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *words, f"out={tmp_path / 'x'}"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_rungs_are_evaluated_rounds() -> None:
    for rounds in range(1, 50):
        for every in range(1, 12):
            found = rungs(rounds, every)
            assert found[-1] == rounds
            assert found == sorted(set(found))
            assert all(t % every == 0 or t == rounds for t in found)
