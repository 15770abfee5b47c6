"""Published figures: every file can be read and run, readings and bands mean what they say."""

from math import inf

import pytest

from arno.analysis.scores import Record
from arno.core.metric import Metric
from arno.errors import ArnoError
from arno.grids.compare import resolve
from arno.reproduce.figure import FIGURES, Reading, load, names, parse
from arno.reproduce.page import band, number
from arno.reproduce.run import cells
from arno.reproduce.verdict import _outcome, value

SMALL = {
    "source": "Somebody",
    "claim": "a is better",
    "setting": "small",
    "hours": 0.1,
    "run": ["rounds=2"],
    "seeds": [0, 1],
    "published_data": "emnist",
    "arms": {"a": {"settings": ["method=fedavg"], "best_of": ["local.lr=0.1", "local.lr=1"]}, "b": {}},
    "readings": {"rounds": {"kind": "rounds_to", "metric": "test_accuracy", "target": 0.7, "published_target": 0.5}},
    "checks": [{"says": "a first", "left": "b", "right": "a", "ratio": [1.5, None]}],
    "quick": ["rounds=1"],
}


@pytest.mark.parametrize("name", names())
def test_every_figure_can_be_read_and_its_settings_resolved(name):
    figure = load(name)
    assert figure.source
    assert figure.claim
    assert figure.hours > 0
    if not figure.arms:
        assert figure.by, "a figure without arms names the command that settles it"
        return
    assert figure.checks
    assert figure.quick
    grid = cells(figure)
    assert len({cell.folder for cell in grid}) == len(grid), "every run has a folder of its own"
    assert all(config["seed"] in figure.seeds for config in resolve(grid[:2]))
    known = {one.name for one in (Metric("gap", ""), Metric("test_accuracy", ""), Metric("test_loss", ""))} | {
        "test_f1"
    }
    assert {reading.metric for reading in figure.readings.values()} <= known


def test_the_figures_of_the_field_are_there():
    wanted = ["scaffold-table3-0", "scaffold-table4", "scaffold-table5", "scaffold-figure3", "fedprox-figure1-90"]
    wanted += ["fednova-figure5-random", "fedexp-linear", "fedvarp-section5", "powd-quadratic-30", "powd-fashion-2"]
    assert set(wanted) <= {path.stem for path in FIGURES.glob("*.yaml")}


def test_an_arm_runs_once_per_setting_that_is_tried_and_seed():
    figure = parse("small", SMALL)
    assert [cell.title for cell in cells(figure)] == [
        "a local.lr=0.1 seed=0",
        "a local.lr=0.1 seed=1",
        "a local.lr=1 seed=0",
        "a local.lr=1 seed=1",
        "b seed=0",
        "b seed=1",
    ]
    assert cells(figure)[2].overrides == ("rounds=2", "method=fedavg", "local.lr=1", "seed=0")
    coarse = figure.coarse()
    assert coarse.seeds == (0,)
    assert cells(coarse)[0].overrides[:2] == ("rounds=2", "rounds=1")
    assert figure.on(("data=emnist",)).readings["rounds"].target == 0.5
    assert figure.on(("rounds=9",)).readings["rounds"].target == 0.7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sedes": [1]}, "seeds"),
        ({"checks": [{"says": "", "left": "c", "value": [0, 1]}]}, "arm of small"),
        ({"checks": [{"says": "", "left": "a", "value": [0, 1], "reading": "x"}]}, "reading of small"),
        ({"checks": [{"says": "", "left": "a", "ratio": [0, 1]}]}, "one arm"),
        ({"readings": {"r": {"kind": "best"}}}, "kind of a reading"),
    ],
)
def test_a_wrong_file_is_refused(change, words):
    with pytest.raises(ArnoError, match=words):
        parse("small", SMALL | change)


def test_readings():
    rows = [{"round": t, "test_accuracy": x, "gap": 10.0**-t} for t, x in enumerate([0.1, 0.5, 0.7, 0.9], 1)]
    record = Record(rows, [Metric("test_accuracy", ""), Metric("gap", "", "less")], 4)
    read = {
        Reading("rounds_to", "test_accuracy", target=0.7): 3,
        Reading("rounds_to", "test_accuracy", target=0.95): 5,
        Reading("rounds_to", "gap", target=0.01): 2,
        Reading("final", "test_accuracy"): 0.9,
        Reading("last", "test_accuracy", count=2): 0.8,
        Reading("at", "test_accuracy", round=2): 0.5,
        Reading("decade", "gap", target=1e-3, round=1): 1,
        Reading("decade", "gap", target=1e-9, round=2): 1,
    }
    for reading, wanted in read.items():
        assert value(record, reading) == pytest.approx(wanted), reading.words


def test_a_check_holds_if_the_mean_lies_in_its_band():
    check = parse("small", SMALL).checks[0]
    assert band(check) == "ratio at least 1.5"
    found = _outcome(check, {"a": {"rounds": {0: 10, 1: 20}}, "b": {"rounds": {0: 20, 1: 40}}})
    assert (found.holds, found.found.mean) == (True, pytest.approx(2))
    assert not _outcome(check, {"a": {"rounds": {0: 10, 1: 20}}, "b": {"rounds": {0: 10, 1: 20}}}).holds
    never = {"a": {"rounds": {0: 10, 1: 20}}, "b": {"rounds": {0: 20, 1: inf}}}
    assert _outcome(check, never).holds, "a run that diverged is infinitely slow"
    assert number(_outcome(check, never).found.mean) == "inf"


@pytest.mark.parametrize(
    ("ratios", "holds", "certain"),
    [((2.0, 2.1), True, True), ((1.2, 3.0), True, False), ((1.0, 1.01), False, True), ((2.0,), True, False)],
)
def test_a_check_is_certain_if_its_interval_does_not_cross_the_end_of_the_band(ratios, holds, certain):
    (check,) = parse("small", SMALL).checks
    by_seed = dict(enumerate(ratios))
    read = {"b": {"rounds": by_seed}, "a": {"rounds": dict.fromkeys(by_seed, 1.0)}}
    found = _outcome(check, read)
    assert (found.holds, found.certain) == (holds, certain)
