"""`arno compare`: the grid, what is skipped, what happens when a cell fails or diverges, and what the tables say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import arno as package
from arno.analysis.comparison import Comparison
from arno.analysis.other_differences import other_differences
from arno.analysis.statistics import summary
from arno.config import settings as configs
from arno.grids import compare
from arno.grids.cells import Ended, Outcome, Workers, run_cell
from arno.grids.display import Display, display
from arno.grids.grid import cells
from arno.grids.processes import Processes
from arno.records.folder import RunFolder
from arno.records.lock import writing
from arno.records.metrics_file import read as recorded
from arno.runs.progress import Quiet

GRID = ("method=fedavg,fedprox", "fedprox.mu=1", "clients=5", "rounds=2", "model=softmax")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process, one after another; processes have tests of their own."""
    monkeypatch.setattr(compare, "Processes", InThisProcess)


class InThisProcess(Workers):
    """One worker, this process: a cell has ended when it was given."""

    def __init__(self, log: Path) -> None:
        self.ended: list[Ended] = []

    def room(self, config: dict[str, Any]) -> int:
        return 1

    def start(self, jobs: int) -> None:
        assert jobs == 1

    def free(self) -> int:
        return 1 - len(self.ended)

    def give(self, cell: int, config: dict[str, Any]) -> None:
        self.ended.append(Ended(cell, run_cell(config, Quiet())))

    def wait(self) -> list[Ended]:
        events, self.ended = self.ended, []
        return events

    def stop(self, times: int) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        pass


def ran(out: str) -> list[str]:
    """The cells that were run, as the lines say."""
    return re.findall(r"^\d+/\d+  (.*?)  (?:done|failed|diverged)", out, re.M)


def numbers(folder: str = "grid") -> pd.DataFrame:
    """The table without the times."""
    table = Comparison.open(folder).table()
    return table.drop(columns=[name for name in table if name.startswith("seconds")])


def test_the_grid_with_its_tables_and_picture_and_the_second_time_nothing_runs(arno):
    said = arno("compare", *GRID, "seed=0..1", "out=grid")
    assert said.status == 0, said
    lines = said.out.splitlines()
    assert lines[-3:] == ["picture: grid/compare.png", "report: grid/report.html", "grid"]
    assert "fedprox" in Path("grid/report.html").read_text()
    assert max(map(len, lines)) <= 80
    assert Path("grid/compare.png").read_bytes()[:4] == b"\x89PNG"
    assert {p.name for p in Path("grid").iterdir() if p.is_dir()} == {
        f"method={m}+seed={s}" for m in ("fedavg", "fedprox") for s in (0, 1)
    }
    finals = [
        json.loads(Path(f"grid/method=fedavg+seed={s}/metrics.jsonl").read_text().splitlines()[-1])["test_f1"]
        for s in (0, 1)
    ]
    mean, std = sum(finals) / 2, abs(finals[0] - finals[1]) / 2**0.5
    (row,) = [line for line in lines if line.startswith("★ fedavg")]  # even two seeds may agree
    assert f"{mean:.4f} ± {std:.4f}" in row
    half = 12.7062 * std / 2**0.5  # Student's t, one degree of freedom
    assert f"{max(mean - half, 0):.4f} to {min(mean + half, 1):.4f}" in row
    assert f"| ★ fedavg | {mean:.4f} ± {std:.4f} |" in Path("grid/table.md").read_text()
    assert f"$\\star$ fedavg & {mean:.4f} $\\pm$ {std:.4f} &" in Path("grid/table.tex").read_text()
    assert pd.read_csv("grid/table.csv").set_index("name").loc["fedavg", "final"] == pytest.approx(mean)
    assert list(pd.read_csv("grid/differences.csv")["name"]) == ["fedprox"]
    assert not list(Path("grid").rglob("curves.png")), "one picture for all"

    stamps = {p: p.stat().st_mtime_ns for p in Path("grid").rglob("*.safetensors")}
    again = arno("compare", *GRID, "seed=0..1", "out=grid")
    assert {p: p.stat().st_mtime_ns for p in Path("grid").rglob("*.safetensors")} == stamps
    assert ran(again.out) == []
    assert again.out.splitlines() == lines[4:]


def test_all_methods_see_the_same_partition_and_the_same_cohorts(arno, here):
    methods = ("fedavg", "scaffold", "fedvarp", "feddyn")
    arno("compare", f"method={','.join(methods)}", *GRID[2:], "clients=8", "participation=0.4", "seed=3,4", "out=grid")
    found = Comparison.open("grid")
    for seed in (3, 4):
        paths = [Path(f"grid/method={m}+seed={seed}") for m in methods]
        seen = [pq.read_table(p / "clients.parquet", columns=["round", "client", "count"]) for p in paths]
        assert all(other.equals(seen[0]) for other in seen)
        problems = [group.runs[seed].problem for group in found.members]
        for problem in problems[1:]:
            assert all((problem.partition[k] == problems[0].partition[k]).all() for k in range(8))
            assert (problem.x == problems[0].x).all()
            assert (problem.init(seed) == problems[0].init(seed)).all()
    cohorts = [pq.read_table(f"grid/method=fedavg+seed={s}/clients.parquet", columns=["client"]) for s in (3, 4)]
    assert not cohorts[0].equals(cohorts[1]), "another seed, other cohorts"


def test_a_new_cell_is_added_and_an_unfinished_one_goes_on(arno, here):
    arno("compare", *GRID, "seed=0", "out=grid")
    manifest = Path("grid/method=fedavg+seed=0/manifest.json")
    RunFolder(manifest.parent).update_manifest(status="running")
    said = arno("compare", *GRID, "seed=0..1", "out=grid")
    assert said.status == 0
    assert said.out.splitlines()[0] == "fedavg seed=0 continues after round 2 of 2"
    assert said.out.count("continues after") == 1
    assert ran(said.out) == ["fedavg seed=0", "fedavg seed=1", "fedprox seed=1"]
    assert json.loads(manifest.read_text())["status"] == "done"


def test_a_failed_cell_is_reported_every_time_and_run_again_on_request(arno, here):
    command = ("compare", *GRID[2:], "method=fedavg,custom", "custom.target=mine.py:factory", "seed=0", "out=grid")
    Path("mine.py").write_text("import os\ndef factory():\n    return [] if os.path.exists('mended') else [1 / 0]\n")
    for expected in (["fedavg seed=0", "custom seed=0"], []):
        said = arno(*command)
        assert said.status == 1
        assert ran(said.out) == expected
        failed = " ".join(said.out.split())
        assert "failed: custom seed=0: method.target = " in failed
        assert "calling it failed: ZeroDivisionError: division by zero" in failed
        assert "run again with --retry" in said.out
        assert "custom: failed at seed 0; its means are over 0 of 1 seeds." in said.out
    Path("mended").touch()
    said = arno(*command, "--retry")
    assert said.status == 0
    assert ran(said.out) == ["custom seed=0"]
    table = numbers().set_index("name")
    assert table.loc["custom", "final"] == table.loc["fedavg", "final"]


def test_settings_that_only_fail_when_they_are_built(arno, here):
    said = arno("compare", *GRID, "partition.alpha=0.5,-1", "seed=0", "out=grid")
    assert said.status == 1
    failed = " ".join(said.out.split())
    assert "failed: fedavg partition.alpha=-1 seed=0: partition.alpha = -1.0: it must be a positive number" in failed
    table = numbers()
    assert list(table["failed"]) == [0, 0, 1, 1]
    assert table["final"].isna().tolist() == [False, False, True, True]


def test_a_diverged_cell_is_reported_and_in_no_mean(arno, here, monkeypatch):
    """FedProx diverges at its second seed only: a huge learning rate is put into that cell's own configuration."""
    arno("compare", *GRID, "seed=0,2", "out=even")
    plain = compare.resolve

    def with_one_that_diverges(grid):
        for cell, config in zip(grid, plain(grid), strict=True):
            local = {"lr": 1e30} if (cell.name, cell.seed) == ("fedprox", "1") else {}
            yield config | {"local": config["local"] | local}

    monkeypatch.setattr(compare, "resolve", with_one_that_diverges)
    said = arno("compare", *GRID, "seed=0..2", "out=grid")
    again = arno("compare", *GRID, "seed=0..2", "out=grid", "--retry")
    assert said.status == 1
    assert "fedprox seed=1  diverged" in said.out
    assert "fedprox: diverged at seed 1; its means are over 2 of 3 seeds." in said.out
    assert "diverged in round 1: its update holds NaN or Inf" in " ".join(said.out.split())
    assert ran(again.out) == [], "the same bits would diverge again"
    grid, even = (numbers(f).set_index("name") for f in ("grid", "even"))
    assert (grid.loc["fedprox", "seeds"], grid.loc["fedprox", "diverged"]) == (2, 1)
    assert grid.loc["fedprox", "final"] == even.loc["fedprox", "final"]
    assert grid.loc["fedavg", "seeds"] == 3
    (difference,) = Comparison.open("grid").differences().to_dict("records")
    assert difference["pairs"] == 2
    assert difference["difference"] == Comparison.open("even").differences()["difference"][0]


def test_an_error_that_only_speaks_of_diverging_is_a_failure(arno, here):
    Path("mine.py").write_text(
        "from arno.errors import ArnoError, Diverged\n"
        "def factory(*, word='ArnoError'):\n    raise globals()[word]('it', 'diverged in round 3')\n"
    )
    words = ("method=custom", "custom.target=mine.py:factory", "custom.word=ArnoError,Diverged", *GRID[2:], "out=grid")
    said = arno("compare", *words).out
    assert "failed: custom word=ArnoError" in said
    assert "diverged: custom word=Diverged" in said


def test_a_comparison_is_not_resumed_as_a_run(arno, here):
    words = ("method=fedavg", *GRID[2:], "local.lr=choice(0.1, 0.2)", "target=0.5")
    arno("compare", *words, "out=grid")
    error = arno("resume", "grid").error
    assert "grid: is no run but a comparison; the same command continues it: arno compare method=fedavg" in error
    again = shlex.split(error.partition("continues it: arno ")[2])
    assert ran(arno(*again).out) == [], "it is the same command"
    assert Comparison.open("grid").record["target"] == 0.5


def test_the_record_holds_the_command_as_it_was_given(arno, monkeypatch):
    monkeypatch.setattr("arno.grids.cluster.Cluster", lambda words, out: InThisProcess(out))
    arno("compare", *GRID, "engine=ray", "out=grid")
    found = Comparison.open("grid")
    assert " engine=ray " in found.record["command"]
    assert {run.config["engine"]["kind"] for group in found.members for run in group.runs.values()} == {"serial"}


def stop(cell: str, after: int) -> None:
    """Leave a cell as a signal does."""
    folder = Path("grid", cell)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:after]))
    for late in RunFolder(folder).after(after):
        late.unlink()
    RunFolder(folder).update_manifest(status="interrupted", rounds=after)


def drawn(report: str) -> list[dict[str, Any]]:
    """The curves of a report's first setting."""
    data = re.search(r'id="data">(.*?)</script>', report, re.S)
    assert data
    return json.loads(data[1])["places"][0]["curves"]["lines"]  # type: ignore[no-any-return]


def test_cells_that_are_part_way_are_drawn_and_never_counted(arno, here):
    arno("compare", *GRID, "rounds=4", "seed=0..2", "out=grid")
    stop("method=fedprox+seed=1", 3)
    shutil.rmtree("grid/method=fedprox+seed=2")
    found = Comparison.open("grid")
    assert [(len(g.runs), list(g.partial)) for g in found.members] == [(3, []), (1, [1])]
    assert numbers().set_index("name")["seeds"].to_dict() == {"fedavg": 3, "fedprox": 1}
    assert found.differences()["pairs"].tolist() == [1]
    name = "fedprox, seed 1: 3 of 4 rounds"
    assert any(line.get_label() == name and len(line.get_xdata()) == 3 for line in found.figure().axes[0].lines)
    assert arno("report", "grid", "--png").status == 0
    page = Path("grid/report.html").read_text()
    assert f"<p>{name}, drawn, not in the means</p>" in page
    assert "<p>fedprox: no finished run with seed 2</p>" in page
    curves = drawn(page)
    assert [line["name"] for line in curves] == ["fedavg", "fedprox", name]
    assert [len(line["x"]["round"]) for line in curves] == [4, 4, 3]
    assert curves[1]["y"]["test_f1"]["low"] == [], "one seed"
    assert list(Path("grid/figures").glob("test_f1-round.png"))


def test_a_comparison_of_which_nothing_is_over(arno, here):
    words = ("method=fedavg", *GRID[2:], "seed=0..1", "out=grid")
    arno("compare", *words)
    stop("+seed=0", 1)
    shutil.rmtree("grid/+seed=1")
    Path("grid/report.html").unlink()
    assert arno("report", "grid").status == 0
    page = Path("grid/report.html").read_text()
    assert "No run has a result" in page
    assert [line["name"] for line in drawn(page)] == ["fedavg, seed 0: 1 of 2 rounds"]
    assert '"metric":"test_f1"' in page
    assert "one seed (0)" in page
    Path("grid/report.html").unlink()
    shutil.rmtree("grid/+seed=0")
    error = arno("report", "grid").error
    assert "grid: none of its runs has finished a round; continue it with: arno compare method=fedavg" in error
    assert not Path("grid/report.html").exists()


def test_one_seed_says_so(arno, here):
    said = arno("compare", *GRID, "out=grid")
    assert said.status == 0
    assert "One seed: no intervals, no tests and no winner" in said.out
    assert "±" not in said.out
    assert "★" not in said.out
    assert numbers()[["final_std", "final_low", "final_high"]].isna().all().all()


def test_what_it_takes_to_reach_a_target(arno, here):
    grid = ("method=fedavg,scaffold", "clients=5", "rounds=8", "model=softmax", "seed=0..1")
    said = arno("compare", *grid, "target=0.8", "out=grid")
    assert "cost to reach test F1 0.8" in said.out
    found = Comparison.open("grid")
    for _, row in found.scores().iterrows():
        run = next(r for g in found.members if g.label == row["label"] for s, r in g.runs.items() if s == row["seed"])
        reached = run.history[run.history["test_f1"] >= 0.8].iloc[0]
        assert row["rounds"] == reached.name
        assert (row["steps"], row["bytes"]) == (reached["local_steps"], reached["uploaded_bytes"])
    figure = found.figure()
    assert figure.get_suptitle() == (
        "test F1: digits, split by dirichlet, α = 0.5, model softmax, 5 clients, 8 rounds, 2 seeds"
    )
    left, right = figure.axes
    assert sorted(text.get_text() for text in left.get_legend().texts) == ["fedavg", "scaffold", "target 0.8"]
    assert [0.8, 0.8] in [list(line.get_ydata()) for line in left.lines]
    assert [0.8, 0.8] in [list(line.get_xdata()) for line in right.lines]
    other = found.figure("test_loss").axes[0]
    assert "target 0.8" not in {text.get_text() for text in other.get_legend().texts}, "it is a target of the F1"
    said = arno("compare", *grid, "target=0.99", "out=grid")
    assert ran(said.out) == [], "the target is no setting of the runs"
    rows = [line.split() for line in said.out.splitlines() if " 0 of 2 " in line]
    assert [row[:7] for row in rows] == [[name, "0", "of", "2", "–", "–", "–"] for name in ("scaffold", "fedavg")]
    assert "Runs that never reached the target are not in the means" in said.out


def test_within_a_setting_each_has_its_own_reference_ranking_and_tests(arno, here):
    said = arno("compare", *GRID, "partition.alpha=0.1,10", "seed=0..2", "out=grid")
    assert said.out.count("partition.alpha=0.1\n") == 3, "scores, costs, differences"
    found = Comparison.open("grid")
    table, gaps = found.table(), found.differences()
    assert list(table["setting"]) == ["partition.alpha=0.1"] * 2 + ["partition.alpha=10"] * 2
    assert list(gaps["setting"]) == ["partition.alpha=0.1", "partition.alpha=10"]
    finals = found.finals()
    for _, gap in gaps.iterrows():
        mine, first = (finals[f"{name} {gap['setting']}"] for name in ("fedprox", "fedavg"))
        assert gap["difference"] == pytest.approx(sum(mine[s] - first[s] for s in range(3)) / 3)
    assert (gaps["p_holm"] >= gaps["p"]).all()
    assert gaps["p_holm"].min() == pytest.approx(min(1, 2 * gaps["p"].min()))


def test_what_a_method_brings_along_is_said(arno, here):
    said = arno("compare", "method=fedavg,lorenzo", "lorenzo.patience=null", *GRID[2:], "seed=0", "out=grid")
    told = " ".join(said.out.split())
    assert "Unlike fedavg, lorenzo runs with local.epochs=5, local.lr=0.01, local.weight_decay=0.0001." in told


def test_general_settings_of_one_method_only(arno, here):
    said = arno("compare", *GRID, "participation=0.4", "fedprox.participation=1", "seed=0", "out=grid")
    assert said.status == 0
    assert "Unlike fedavg, fedprox runs with participation=1.0." in said.out
    found = Comparison.open("grid")
    assert [runs[0].history["clients"].iloc[0] for runs in found.groups.values()] == [2, 5]


def test_one_method_in_several_settings_compares_those(arno, here):
    arno("compare", "local.lr=0.1,0.01", *GRID[2:], "seed=0..1", "out=grid")
    found = Comparison.open("grid")
    assert list(found.groups) == ["local.lr=0.1", "local.lr=0.01"]
    assert found.places == [""]
    assert list(found.differences()["reference"]) == ["local.lr=0.1"]


def test_a_folder_with_other_settings_is_refused(arno, here):
    arno("compare", *GRID, "out=grid")
    assert "local.lr: 0.05 → 0.1" in arno("compare", *GRID, "local.lr=0.1", "out=grid").error
    assert "rounds: 2 → 3" in arno("compare", *[*GRID, "rounds=3"], "out=grid").error


def test_a_failed_cell_with_other_settings_is_refused_too(arno, here):
    arno("compare", *GRID, "partition.alpha=-1", "out=grid")
    assert "partition.alpha: -1.0 → 0.5" in arno("compare", *GRID, "partition.alpha=0.5", "out=grid").error


def test_two_comparisons_in_one_folder_are_refused(arno, here):
    with writing(Path("grid"), "a comparison"):
        assert "grid: is being written by a comparison" in arno("compare", *GRID, "out=grid").error
    assert arno("compare", *GRID, "out=grid").status == 0


def test_bad_settings_are_refused_before_anything_runs(arno):
    assert "did you mean 'fedprox'" in arno("compare", "method=fedavg,fedpro", "out=grid").error
    assert "written after its name, as fedprox.mu=0.1" in arno("compare", *GRID, "method.mu=1", "out=grid").error
    assert "scaffold is not among" in arno("compare", *GRID, "scaffold.mu=1", "out=grid").error
    assert "must not be larger than the second" in arno("compare", "seed=4..0").error
    assert "seed = x" in arno("compare", *GRID, "seed=0,x", "out=grid").error
    assert "target = high: it must be a number" in arno("compare", *GRID, "target=high", "out=grid").error
    assert "unknown test 'u'" in arno("compare", *GRID, "test=u", "out=grid").error
    assert "--jobs 0" in arno("compare", *GRID, "--jobs", "0").error
    assert not Path("grid").exists()


@pytest.mark.parametrize(("word", "remedy"), [("metric=accuracy", "metric=test_accuracy"), ("target=90", "target=0.9")])
def test_a_wrong_word_is_refused_before_anything_runs(word, remedy, arno, here):
    error = arno("compare", *GRID, word, "out=grid").error
    assert remedy in error
    assert not Path("grid").exists()


REGRESSION = ("data=sklearn", "data.name=diabetes")
OWN = ("data.client_test=0.2",)
QUADRATIC = ("problem=quadratic", "local.lr=1e-3")


@pytest.mark.parametrize(
    ("problem", "words", "message"),
    [
        ((), "metric=accuracy", "metric = accuracy: it does not say which data; write metric=test_accuracy"),
        ((), "metric=test_acuracy", "did you mean 'test_accuracy'?"),
        ((), "target=90", "target = 90: test F1 is at least 0 and at most 1; write target=0.9"),
        ((), "target=-0.1", "target = -0.1: test F1 is at least 0 and at most 1; change the target"),
        ((), "target=101", "at most 1; change the target"),
        (REGRESSION, "metric=rmse", "write metric=test_rmse"),
        (REGRESSION, "metric=val_rsme", "did you mean 'val_rmse'?"),
        (REGRESSION, "target=-1", "target = -1: test RMSE is at least 0; change the target"),
        (REGRESSION, "metric=test_r2 target=1.5", "target = 1.5: test R² is at most 1; change the target"),
        (OWN, "metric=own_f2", "did you mean 'own_f1'?"),
        ((), "metric=personal_f1", "the clients have no test samples of their own; add data.client_test=0.2"),
        ((), "metric=own_accuracy", "the clients have no test samples of their own; add data.client_test=0.2"),
        (OWN, "metric=personal_f1", "method=fedavg has no personal models; add eval.finetune=5, which"),
        (QUADRATIC, "metric=gaps", "did you mean 'gap'?"),
        (QUADRATIC, "target=-1", "target = -1: F(w) − F(w*) is at least 0; change the target"),
    ],
)
def test_a_wrong_metric_or_target_is_refused_by_its_declaration(problem, words, message):
    own, _ = compare.own_keys(words.split())
    with pytest.raises(package.ArnoError, match=re.escape(message)):
        compare.check_metric(own, [configs.plain(configs.compose(problem))])


def test_personal_scores_are_asked_of_the_methods_that_have_none():
    cells = [configs.plain(configs.compose((*OWN, f"method={name}"))) for name in ("fedper", "fedprox")]
    with pytest.raises(
        package.ArnoError, match=r"method=fedprox has no personal models; add fedprox\.eval\.finetune=5"
    ):
        compare.check_metric({"metric": "personal_f1", "target": None}, cells)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ((), "metric=test_accuracy target=0.9"),
        ((), "metric=test_loss target=2.5"),
        ((), "metric=lorenzo_pool"),
        (REGRESSION, "target=60"),
        (REGRESSION, "metric=test_r2 target=-2"),
        (OWN, "metric=own_accuracy"),
        ((*OWN, "method=fedper"), "metric=personal_accuracy target=0.5"),
        ((*OWN, "eval.finetune=5"), "metric=personal_accuracy target=0.5"),
        (QUADRATIC, "target=1e6"),
        (QUADRATIC, "metric=distance target=0"),
        (("partition.alpha=-1",), ""),
    ],
)
def test_a_right_metric_and_target_are_accepted(problem, words):
    own, _ = compare.own_keys(words.split())
    compare.check_metric(own, [configs.plain(configs.compose(problem))])


def test_a_metric_that_nobody_recorded(arno, here):
    error = arno("compare", *GRID, "metric=test_auc", "out=grid").error
    assert "metric = test_auc" in error
    assert "test_accuracy" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("method=fedavg fedprox.mu=0.1", "fedprox is not among the methods compared; write method=fedavg,fedprox"),
        ("fedprox.mu=0.1", "fedprox is not among the methods compared; write method=fedavg,fedprox"),
        ("method=fedavg,fedprox fedpox.mu=1", "'fedpox.mu': no method has this name; did you mean fedprox.mu?"),
        ("method=fedavg,fedprox fedprox.nu=1", "'fedprox.nu': its own settings are mu; did you mean fedprox.mu?"),
        ("method=fedavg,scaffold scaffold.mu=1", "scaffold has no settings of its own; see arno methods scaffold"),
        ("method=fedavg fedavg.particpation=1", "did you mean fedavg.participation?"),
        ("method=fedavg,fedprox fedprox.local.lrr=1", "did you mean 'local.lr'?"),
        ("method=fedavg locl.lr=1", "did you mean 'local.lr'?"),
        ("method=fedavg custom.target=it.py:f", "custom is not among the methods compared"),
    ],
)
def test_a_setting_of_a_method_that_is_not_there_or_has_it_not(words, message, arno):
    assert message in arno("compare", *words.split(), "out=grid").error
    assert not Path("grid").exists()


def test_parts_of_a_composed_method_keep_their_settings():
    (cell,) = cells(["method=compose", "compose.parts=[proximal]", "compose.proximal.mu=1"])
    assert configs.plain(configs.compose(cell.overrides))["method"]["proximal"]["mu"] == 1


def test_intervals_of_shares_end_where_shares_do(small):
    finals = {"fedavg": (0.99, 0.9, 0.98), "fedprox": (0.01, 0.1, 0.02)}
    for (method, seed), final in {(m, s): finals[m][s] for m in finals for s in range(3)}.items():
        run = package.run(*small, f"method={method}", f"seed={seed}", out=f"{method}{seed}")
        rows = recorded(run.path)
        scores = {"test_f1": final, "test_loss": final, "client_accuracy_worst_decile": final}
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(row | scores) + "\n" for row in rows))
    found = Comparison.of([f"{method}{seed}" for method in finals for seed in range(3)])
    table = found.table().set_index("name")
    for name in ("final", "area", "worst_decile"):
        assert table.loc["fedavg", f"{name}_high"] == 1
        assert table.loc["fedavg", f"{name}_low"] == pytest.approx(summary(finals["fedavg"]).low)
        assert table.loc["fedprox", f"{name}_low"] == 0
    assert found.table(metric="test_loss").set_index("name").loc["fedavg", "final_high"] > 1, "a loss has no such end"
    left, right = found.figure().axes
    bars = [segment[:, 0] for bar in right.collections for segment in bar.get_segments()]
    assert [bar.tolist() for bar in bars] == [
        pytest.approx([table.loc[name, "final_low"], table.loc[name, "final_high"]]) for name in finals
    ]
    bands = [band.get_paths()[0].vertices[:, 1] for band in left.collections]
    assert max(band.max() for band in bands) <= 1
    assert min(band.min() for band in bands) >= 0
    (gap,) = found.differences().to_dict("records")
    gaps = [b - a for a, b in zip(*finals.values(), strict=True)]
    assert (gap["low"], gap["high"]) == pytest.approx((summary(gaps).low, summary(gaps).high)), "no share"
    assert gap["low"] < -1


def test_from_python(here):
    found = package.compare(method=["fedavg", "fedprox"], seed=range(2), clients=5, rounds=2, model="softmax", out="a")
    assert list(found.groups) == ["fedavg", "fedprox"]
    assert found.seeds == [0, 1]
    assert set(found.history.columns) >= {"label", "seed", "round", "test_f1", "local_steps"}
    assert len(found.history) == 8
    words = ("seed=0,1", "target=0.4", "out=b")
    lists = package.compare(*words, local={"lr": [0.1, 0.01]}, clients=5, rounds=2, model="softmax")
    assert list(lists.groups) == ["local.lr=0.1", "local.lr=0.01"]
    assert lists.path == Path("b")
    assert list(lists.table()["reached"]) == list(lists.table(target=0.4)["reached"])
    assert lists.table(target=0.999)["rounds"].isna().all()


def test_runs_made_one_by_one_are_grouped_by_what_they_differ_in(small):
    paths = [
        package.run(*small, f"method={m}", f"partition.alpha={a}", f"seed={s}", out=f"{m}{a}{s}").path
        for m in ("fedprox", "fedavg")
        for a in (1, 2)
        for s in (0, 1)
    ]
    found = Comparison.of(paths)
    assert list(found.groups) == [f"{m} partition.alpha={a}" for m in ("fedprox", "fedavg") for a in ("1.0", "2.0")]
    assert [len(runs) for runs in found.groups.values()] == [2] * 4
    assert list(found.differences()["reference"]) == ["fedprox", "fedprox"]
    assert found.settings.shared["clients"] == 5
    assert found.settings.differing["fedprox partition.alpha=1.0"]["partition.alpha"] == 1
    with pytest.raises(package.ArnoError, match="given twice"):
        Comparison.of([paths[0], paths[0]])
    with pytest.raises(package.ArnoError, match="holds no runs"):
        Comparison.open("nowhere")


def test_what_methods_bring_along_makes_no_setting_and_what_a_user_sets_does(small):
    def runs(*more: str) -> list[Path]:
        return [
            package.run(
                *small, "rounds=1", "partition=iid", "participation=1", *words.split(), out=f"{words}{more}"
            ).path
            for words in ("method=fedavg", "method=lorenzo", *more)
        ]

    found = Comparison.of(runs())
    assert list(found.groups) == ["fedavg", "lorenzo"]
    assert list(found.differences()["reference"]) == ["fedavg"]
    (note,) = other_differences(found)
    assert note == "Unlike fedavg, lorenzo runs with local.epochs=5, local.lr=0.01, local.weight_decay=0.0001."
    labels = list(Comparison.of(runs("method=lorenzo local.lr=0.05")).groups)
    assert labels == ["fedavg local.lr=0.05", "lorenzo local.lr=0.01", "lorenzo local.lr=0.05"]


def test_the_best_is_chosen_by_validation_and_never_by_test(small):
    run = package.run(*small, out="run")
    rows = recorded(run.path)
    for row, (val, test) in zip(rows, [(0.5, 0.9), (0.8, 0.6), (0.7, 0.95), (0.6, 0.7)], strict=True):
        row |= {"val_f1": val, "test_f1": test}
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (score,) = Comparison.of(["run"]).scores().to_dict("records")
    assert (score["final"], score["best"]) == (0.7, 0.6)
    assert score["area"] == pytest.approx((0.9 / 2 + 0.6 + 0.95 + 0.7 / 2) / 3)


def test_a_run_that_ends_without_a_finite_loss_has_diverged(small):
    run = package.run(*small, out="run")
    rows = recorded(run.path)
    rows[-1]["test_loss"] = float("nan")
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (group,) = Comparison.of(["run"]).members
    assert not group.runs
    assert group.lost[0].diverged


def test_a_run_that_failed_is_no_result(small):
    package.run(*small, out="run").folder.update_manifest(status="failed")
    (group,) = Comparison.of(["run"]).members
    assert not group.runs
    assert group.lost[0].reason.startswith("failed after round 4")
    assert not group.lost[0].diverged


def test_a_failed_cell_that_somebody_resumed_counts(arno, here):
    command = ("compare", *GRID[2:], "method=custom", "method.target=mine.py:factory", "out=grid")
    Path("mine.py").write_text(
        "import os\nfrom arno import Part\ndef factory():\n    return [Mine()]\n"
        "class Mine(Part):\n    def begin(self, t):\n        t == 1 and not os.path.exists('mended') and 1 / 0\n"
    )
    assert arno(*command).status == 1
    Path("mended").touch()
    assert arno("resume", "grid/run").status == 0
    said = arno(*command)
    assert said.status == 0
    assert ran(said.out) == []


def test_a_line_that_a_kill_cut_short_is_left_out(small):
    run = package.run(*small, out="run")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "test_f1"')
    assert len(Comparison.of(["run"]).history) == 4


def test_the_display_on_a_terminal():
    console = Console(file=StringIO(), force_terminal=True, width=80)
    with display(["fedavg seed=0", "fedavg seed=1", "lorenzo seed=0"], 5, console) as shown:
        shown.began(0)
        shown.began(1)
        shown.moved(0, 25, 50)
        said = [shown.bar.tasks[0].fields["text"], *(t.description for t in shown.bar.tasks)]
        assert said[0].startswith("2/5  0:00:0")
        assert said[0].endswith(" left")
        assert said[1:] == ["cells", "  fedavg seed=0", "  fedavg seed=1"]
        assert shown.bar.tasks[0].completed == 2.5
        assert shown.bar.tasks[1].fields["text"] == "round 25/50"
        shown.ended(0, Outcome())
        shown.ended(1, Outcome("interrupted", interrupted=True))
        assert [t.description for t in shown.bar.tasks] == ["cells"]
        assert shown.bar.tasks[0].completed == 3, "what was interrupted is not done"


def test_the_time_left_is_that_of_the_cells_to_come(monkeypatch: pytest.MonkeyPatch):
    shown = Display(["a", "b", "c", "d"], 10)
    assert shown.left == "?"
    shown.began(0)
    shown.ended(0, Outcome())
    shown.began(1)
    shown.moved(1, 5, 10)
    monkeypatch.setattr("arno.grids.display.monotonic", lambda: shown.began_at + 30)
    assert shown.left == "0:00:50", "1.5 cells took 30 s, 2.5 are left"


def test_less_is_better_for_a_loss(arno, here):
    arno("compare", *GRID, "seed=0..2", "metric=test_loss", "out=grid")
    table = numbers()
    assert table["final"].is_monotonic_increasing
    assert table["final"].iloc[0] < 3


def test_quadratics_are_compared_by_their_gap(arno, here):
    said = arno("compare", "problem=quadratic", "method=fedavg,scaffold", "local.lr=1e-3", "rounds=5", "out=grid")
    assert said.status == 0, said
    assert "F(w) − F(w*)" in said.out


def test_cells():
    assert [c.seed for c in cells(["seed=0..3"])] == ["0", "1", "2", "3"]
    assert [c.overrides for c in cells(["model.hidden=[8, 8],[16]"])] == [
        ("model.hidden=[8, 8]",),
        ("model.hidden=[16]",),
    ]
    assert len(cells(["local.lr=uniform(0.1, 0.2)"])) == 1
    grid = cells(["method=fedavg,fedprox", "fedprox.mu=0.1,1", "seed=0,1"])
    assert sorted({c.name for c in grid}) == ["fedavg", "fedprox mu=0.1", "fedprox mu=1"]
    assert len(grid) == 6
    assert len({c.folder for c in grid}) == 6
    assert len(cells(["seed=0,0"])) == 1
    both = cells(["method=fedavg,local", "local.lr=0.1"])  # a method and a section of settings have the same name
    assert [c.overrides for c in both] == [("method=fedavg", "local.lr=0.1"), ("method=local", "local.lr=0.1")]
    assert all("/" not in c.folder for c in cells(["data.root=/a/b,/c/d"]))
    long = cells([f"data.root={'x' * 300},{'x' * 299}y"])
    assert len({c.folder for c in long}) == 2
    assert max(len(c.folder) for c in long) <= 200


def test_a_runs_own_configuration_is_read_as_any_other(tmp_path):
    folder = RunFolder(tmp_path)
    settings = ["method=fedprox", "method.mu=1e-07", "local.lr=[1e-3, 2, 0.5]", "model.hidden=[8, 8]", "load='1e-3'"]
    config = configs.plain(configs.compose(settings))
    folder.write_config(config)
    assert folder.config() == config == configs.read(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("by_hand: 1e-3\nword: '1e-3'\n")
    assert folder.config() == {"by_hand": 0.001, "word": "1e-3"}
    (tmp_path / "config.yaml").write_text("a: [\n")
    with pytest.raises(package.ArnoError, match="is no valid YAML"):
        folder.config()


def test_how_many_cells_have_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    room: Callable[..., int] = lambda **engine: Processes(Path("log")).room({"engine": engine})  # noqa: E731
    assert (room(kind="auto", cores=1), room(kind="auto", cores=3), room(kind="serial", threads=1)) == (8, 2, 8)
    assert (room(kind="processes", workers=0), room(kind="mine")) == (1, 8)
