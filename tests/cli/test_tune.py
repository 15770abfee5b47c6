"""`arno tune`: equal budgets, validation data only, the same winners after a stop."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import arno
from arno.analysis.tuning import Tuning
from arno.cli import main
from arno.errors import ArnoError
from arno.grids import tune as tuning
from arno.grids.ranges import Range
from arno.grids.search import BATCH, Search, rungs

pytest.importorskip("optuna")
SMALL = ["method=fedavg,fedprox", "rounds=4", "clients=4", "seed=0..1", "data.limit=200"]


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
    assert {group.cost("rounds") for group in clean.groups} == {4 * 1 + 2 * 1 + 1 * 2}
    assert {"method.mu", "local.lr"} == {*clean.groups[1].space}
    finals = {p: arno.Comparison.open(tmp_path / f"out-{p}").table()["final"].max() for p in (False, True)}
    assert finals[False] > 0.8 > 0.5 > finals[True]  # the comparison does read them
    searched = next((tmp_path / "out-False" / "search").rglob("metrics.jsonl"))
    assert not any(name.startswith("test_") for name in json.loads(searched.read_text().splitlines()[-1]))


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
    with pytest.raises(ArnoError, match="another seeds"):
        run(tmp_path / "stopped", search_seeds="77")


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
        (["method=any(fedavg, fedprox)"], "method is not searched"),
        (["local.lr=log(0.1)"], "two ends"),
        (["local.lr=any(1)"], "nothing to choose"),
        (["--trials", "1"], "at least two"),
        (["--search-seeds", "0..5"], "uses seed 0, 1, 2 too"),
        (["data.val=0"], "validation data, and there are none"),
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
