"""Comparisons of made-up runs: everything follows the declarations of the metrics, never their names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from arno.analysis.comparison import Comparison
from arno.analysis.comparison_picture import bands
from arno.analysis.scores import Record
from arno.analysis.statistics import summary
from arno.core.metric import TRAIN_LOSS, Metric, over_clients
from arno.errors import ArnoError
from arno.report.html import write_report
from arno.report.tables import sheets

#: A metric that no part of Arno knows. Less is better, and no value is below 2.
MISS = Metric("miss", "misfit", "less", low=2, axis="misfit")
#: Its counterpart of which more is better.
FIT = Metric("fit", "fitness", high=-2)
DECLARED = (MISS.on("test"), MISS.on("val"), FIT.on("test"), FIT.on("val"), *over_clients(MISS), TRAIN_LOSS)
#: test_miss by method and seed, at the end. `good` is better at every seed by about the same amount.
FINALS = {"good": (3.0, 4.0, 5.01), "bad": (3.5, 4.51, 5.5)}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the folder of a run."""

    def folder(method: str, seed: int, rows: Sequence[dict[str, Any]], **more: Any) -> Path:
        path = tmp_path / f"{method}{seed}"
        path.mkdir()
        config = {"method": {"kind": method}, "seed": seed, "rounds": 4, "clients": 4, **more.pop("config", {})}
        (path / "config.yaml").write_text(yaml.safe_dump(config))
        manifest = {"status": "done", "metrics": [metric.to_json() for metric in DECLARED], **more}
        (path / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))
        lines = ({"round": t, "seconds": 0.5, "local_steps": 10 * t, **row} for t, row in enumerate(rows, 1))
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return folder


def recorded(final: float) -> list[dict[str, Any]]:
    """Four rounds that end with this misfit. The validation misfit is smallest in the second round."""
    test, val = [final + 3, final + 1, final + 2, final], [6.0, 2.5, 3.0, 4.0]
    rows = []
    for x, v in zip(test, val, strict=True):
        rows.append({"test_miss": x, "val_miss": v, "test_fit": -x, "val_fit": -v, "client_miss_worst_decile": x + 1})
        rows[-1] |= {f"client_miss_p{q}": x + q / 100 for q in range(0, 101, 10)}
    return rows


@pytest.fixture
def paths(write: Write) -> list[Path]:
    return [write(name, seed, recorded(x)) for name, finals in FINALS.items() for seed, x in enumerate(finals)]


def test_the_lowest_is_first_and_wins(paths):
    found = Comparison.of(paths[::-1])  # the worse one is the reference
    assert found.metric == "test_miss"
    assert list(found.table()["name"]) == ["good", "bad"]
    assert found.winners() == ["good"]
    assert list(found.table()["winner"]) == [True, False]
    (gap,) = found.differences().to_dict("records")
    assert gap["difference"] == pytest.approx(sum(FINALS["good"]) / 3 - sum(FINALS["bad"]) / 3)
    assert gap["difference"] < 0


def test_the_highest_is_first_and_wins_where_more_is_better(paths):
    found = Comparison.of(paths)
    found.record["metric"] = "test_fit"
    assert list(found.table()["name"]) == ["good", "bad"]
    assert found.winners() == ["good"]
    assert found.differences()["difference"][0] < 0, "bad minus good, now of a score of which more is better"


@pytest.mark.parametrize(("metric", "sign"), [("test_miss", 1), ("test_fit", -1)])
def test_the_best_round_has_the_best_validation_score(paths, metric, sign):
    scores = Comparison.of(paths).scores(metric=metric)
    assert list(scores["best"]) == [sign * (x + 1) for finals in FINALS.values() for x in finals]
    assert Comparison.of(paths).scores(metric=f"val_{metric[5:]}")["best"].isna().all(), "it cannot choose itself"
    assert Comparison.of(paths).scores(metric="client_miss_worst_decile")["best"].isna().all()


@pytest.mark.parametrize(
    ("metric", "target", "rounds"),
    [
        ("test_miss", 5.0, 2),
        ("test_miss", 3.0, 4),
        ("test_miss", 2.9, None),
        ("test_fit", -5.0, 2),
        ("test_fit", -1, None),
    ],
)
def test_a_target_is_reached_from_its_side(paths, metric, target, rounds):
    score = Comparison.of(paths[:1]).scores(target, metric).to_dict("records")[0]
    expected = pytest.approx([float("nan")] * 2 if rounds is None else [rounds, 10 * rounds], nan_ok=True)
    assert [score["rounds"], score["steps"]] == expected


def test_intervals_and_bands_end_at_the_declared_range(write):
    finals = (2.0, 2.1, 4.0)
    assert summary(finals).low < 2 < finals[1]
    found = Comparison.of([write("one", seed, recorded(x)) for seed, x in enumerate(finals)])
    row = found.table().to_dict("records")[0]
    assert row["final_low"] == 2
    assert row["final_high"] == pytest.approx(summary(finals).high)
    fit = found.table(metric="test_fit").to_dict("records")[0]
    assert fit["final_high"] == -2
    assert fit["final_low"] == pytest.approx(-summary(finals).high)
    left, right = bands(found).axes
    assert min(band.get_paths()[0].vertices[:, 1].min() for band in left.collections) >= 2
    assert min(segment[:, 0].min() for bar in right.collections for segment in bar.get_segments()) == 2


@pytest.mark.parametrize("log", [True, False])
def test_an_axis_is_logarithmic_by_declaration_only(paths, log):
    for path in paths:
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["metrics"][0]["log"] = log
        (path / "manifest.json").write_text(json.dumps(manifest))
    left, right = bands(Comparison.of(paths)).axes
    assert (left.get_yscale(), right.get_xscale()) == (("log", "log") if log else ("linear", "linear"))
    assert left.get_ylabel() == "test misfit"
    assert right.get_xlabel() == "final test misfit"


def test_uneven_runs_are_drawn_as_far_as_all_seeds_go(write):
    found = Comparison.of([write("one", 0, recorded(3.0)), write("one", 1, recorded(3.5)[:2])])
    [curve] = bands(found).axes[0].lines
    assert list(curve.get_xdata()) == [1, 2]


def test_the_worst_tenth_is_the_declared_one(paths):
    found = Comparison.of(paths)
    assert list(found.scores()["worst_decile"]) == [x + 1 for finals in FINALS.values() for x in finals]
    assert found.column("worst_decile").label == "misfit of the worst tenth of clients"
    assert (found.column("worst_decile").low, found.column("final").low, found.column("steps").low) == (2, 2, 0)


def test_a_run_diverges_by_any_declared_score(write):
    rows = recorded(3.0)
    rows[-1]["val_miss"] = float("nan")
    (group,) = Comparison.of([write("one", 0, rows)]).members
    assert group.lost[0] == ("val_miss is not finite after round 4", True)
    assert not Record([{"round": 1, "test_miss": 1.0, "undeclared": float("inf")}], DECLARED, 1).diverged()


def test_the_compared_score_is_the_first_declared_one_that_some_run_recorded(write):
    early = write("one", 0, [{"train_loss": 1.0}])
    found = Comparison.of([early])
    assert (found.metric, found.declared().better) == ("train_loss", "less")
    assert Comparison.of([early, write("two", 0, recorded(3.0))]).metric == "test_miss"
    assert Comparison.of([early]).declared("undeclared") == Metric("undeclared", "undeclared")


def test_the_tables_print_by_declaration(paths):
    found = Comparison.of(paths)
    found.record["target"] = 5.0
    scores, costs, gaps = sheets(found)
    assert scores.title == "test misfit, lower is better: mean ± standard deviation over 3 seeds"
    assert [row[0] for row in scores.places[""]] == ["★ good", "bad"]
    assert costs.title == "cost to reach test misfit 5, mean over the seeds"
    assert "worst 10 %: final misfit of the worst tenth of clients." in costs.notes
    assert gaps.places[""][0][:2] == ["bad", "+0.5000"]
    large = [replace_finals(path, 1000) for path in paths]
    scores, _, gaps = sheets(Comparison.of(large))
    assert [row[1] for row in scores.places[""]] == ["1004.0 ± 1.0", "1004.5 ± 1.0"]
    assert gaps.places[""][0][1] == "+0.5000", "by its own size"


def replace_finals(path: Path, more: float) -> Path:
    """Add a number to every score of a run."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = ({k: x + more if "_miss" in k else x for k, x in row.items()} for row in rows)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_report_of_a_score_of_which_less_is_better(paths, tmp_path):
    write_report(Comparison.of(paths), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<strong class='winner'>good</strong> has the lowest mean of the final test misfit, 4.0033, and wins" in page
    assert "good ★" in page
    assert "bad ★" not in page
    assert "Lower test misfit is better." in page
    assert "negative is better" in page
    found = json.loads(page.split('id="data">')[1].split("</script>")[0])
    place = found["places"][0]
    about = {"label": "test misfit", "better": "less", "log": False, "low": 2, "high": None}
    assert place["curves"]["metrics"]["test_miss"] == about
    assert place["curves"]["metrics"]["test_fit"]["high"] == -2
    [chart] = place["panels"]["clients"]
    assert (chart["title"], chart["y"], chart["low"]) == ("Misfit of the clients", "misfit", 2)
    assert chart["lines"][0]["y"][0] == pytest.approx(sum(FINALS["good"]) / 3, rel=1e-5)


def test_a_report_without_a_winner_says_why(write, tmp_path):
    close = {"good": (3.0, 4.0, 5.0), "near": (3.5, 3.9, 5.4), "bad": (6.5, 7.51, 8.5)}
    runs = [write(name, seed, recorded(x)) for name, finals in close.items() for seed, x in enumerate(finals)]
    write_report(Comparison.of(runs), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "good</strong> has the lowest mean of the final test misfit, 4.0000, but no winner is marked: " in page
    assert "its difference to near may be chance." in page


def test_runs_of_an_earlier_release_declare_nothing(write, tmp_path):
    rows = [{"test_f1": x, "val_f1": 1 - x, "client_accuracy_worst_decile": x} for x in (0.25, 0.5, 0.75)]
    for row in rows:
        row |= {f"client_accuracy_p{q}": q / 100 for q in range(0, 101, 10)}
    found = Comparison.of([write("one", 0, rows, metrics=None)])
    assert (found.metric, found.declared().label, found.declared().high) == ("test_f1", "test F1", 1)
    (score,) = found.scores().to_dict("records")
    assert (score["final"], score["best"], score["worst_decile"]) == (0.75, 0.25, 0.75)
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "one: the panels of 1 of 1 runs were not recorded" in page
    assert "Accuracy of the clients" in page


@pytest.mark.parametrize("kind", ["custom", "gone"])
def test_reading_runs_no_foreign_code(kind, write, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('this code must not run')\n")
    monkeypatch.chdir(tmp_path)
    method = {"kind": kind, "target": "mine.py:factory"}
    configs = [{"method": method, "local": {"lr": lr}} for lr in (0.05, 0.1)]
    others = [{"local": {"lr": 0.05}, "problem": {"kind": "classification"}}]
    runs = [write(f"run{i}", 0, recorded(3.0), config=config) for i, config in enumerate([*configs, *others])]
    modules = set(sys.modules)
    found = Comparison.of(runs)
    assert len(found.members) == 3
    write_report(found, tmp_path / "report.html")
    assert not [name for name in set(sys.modules) - modules if "mine" in name]


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"method": {"kind": None}}, "names no method"),
        ({"method": {"kind": ["a"]}}, "names no method"),
        ({"method": "fedavg"}, "names no method"),
        ({"seed": "zero"}, "no seed or no rounds"),
        ({"rounds": None}, "no seed or no rounds"),
    ],
)
def test_a_configuration_without_what_a_comparison_needs_is_refused(config, rule, write):
    with pytest.raises(ArnoError, match=rule):
        Comparison.of([write("one", 0, recorded(3.0), config=config)])


@pytest.mark.parametrize(
    "metrics",
    [3, [3], [{}], [MISS.to_json() | {"digits": "4"}], [MISS.to_json() | {"better": "most"}], [{"name": "a"}]],
)
def test_a_manifest_with_other_declarations_is_refused(metrics, write):
    with pytest.raises(ArnoError, match="its metrics cannot be read"):
        Comparison.of([write("one", 0, recorded(3.0), metrics=metrics)])


def test_a_declaration_survives_json():
    for metric in (*DECLARED, Metric("gap", "F(w) − F(w*)", "less", 0, 5.5, 2, True, "gap", "gap")):
        assert Metric.from_json(json.loads(json.dumps(metric.to_json()))) == metric


def test_runs_of_two_releases_with_the_same_settings_are_one_group(write):
    old = {"method": {"kind": "lorenzo", "metric": "f1"}, "problem": {"kind": "classification"}}
    new = {"method": {"kind": "lorenzo", "metric": None}, "problem": {"kind": "supervised"}, "task": {"kind": "auto"}}
    found = Comparison.of([write("old", 0, recorded(3.0), config=old), write("new", 1, recorded(4.0), config=new)])
    assert [(group.name, list(group.runs)) for group in found.members] == [("lorenzo", [0, 1])]
    assert found.settings.shared["problem.kind"] == "supervised"


def test_a_validation_score_that_is_not_finite_is_never_the_best():
    scores = [(0.2, float("nan")), (0.6, 0.5), (0.4, 0.3)]
    rows = [{"round": t, "test_fit": test, "val_fit": val} for t, (test, val) in enumerate(scores, 1)]
    assert Record(rows, DECLARED, 3).scores("test_fit", None)["best"] == 0.6
