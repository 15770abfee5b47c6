"""The report: what is in the page is what the runs recorded, and nothing gets out of its place."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from arno.analysis.comparison import Comparison, Group, Lost
from arno.cli import main
from arno.methods.panels import Chart, HeatMap, Line
from arno.records.folder import RunFolder
from arno.records.metrics_file import read as recorded
from arno.report import comparison_panels
from arno.report.html import write_report
from arno.runs.run import RunResult


class Page(HTMLParser):
    """A page as a browser reads it: every tag, the text outside scripts, and the embedded data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._in, self.raw = "", "", path.read_text()
        self.feed(self.raw)
        self.data = json.loads(self.script)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in = dict(attrs).get("id", tag) if tag in ("script", "style") else ""

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "data":
            self.script = data
        elif not self._in:
            self.text += data

    def line(self, name: str) -> dict:
        return next(line for line in self.data["places"][0]["curves"]["lines"] if line["name"] == name)

    def panel(self, title: str) -> dict:
        return next(p for some in self.data["places"][0]["panels"].values() for p in some if p["title"] == title)


def page(comparison: Comparison, folder: Path) -> Page:
    write_report(comparison, folder / "report.html")
    return Page(folder / "report.html")


def copied(run: Path, to: Path) -> Path:
    """A copy of a run that a test may change."""
    return shutil.copytree(run, to)


def metrics(run: Path) -> list[dict]:
    return recorded(run)


def test_the_curves_are_the_means_of_the_recorded_metrics_with_their_spread(comparison, runs, tmp_path):
    found = page(comparison, tmp_path)
    assert found.data["names"] == ["fedavg", "scaffold"]
    for name, pair in (("fedavg", runs[:2]), ("scaffold", runs[2:])):
        line, rows = found.line(name), [metrics(run) for run in pair]
        for metric in ("test_accuracy", "test_f1", "test_loss", "train_loss", "client_accuracy_worst_decile"):
            values = np.array([[row[metric] for row in each] for each in rows])
            mean, std = values.mean(0), values.std(0, ddof=1)
            for part, expected in (("y", mean), ("low", mean - std), ("high", mean + std)):
                assert line["y"][metric][part] == pytest.approx(expected.tolist(), rel=1e-5)
        assert line["x"]["round"] == [1, 2, 3, 4]
        for axis in ("local_steps", "uploaded_bytes"):
            expected = np.mean([[row[axis] for row in each] for each in rows], axis=0)
            assert line["x"][axis] == pytest.approx(expected.tolist(), rel=1e-5)
        longest = [RunResult(run).clients.groupby("round")["seconds"].max().cumsum().tolist() for run in pair]
        assert line["x"]["parallel_seconds"] == pytest.approx(np.mean(longest, axis=0).tolist(), rel=1e-4)


def test_the_table_says_what_the_comparison_says(comparison, tmp_path):
    text = " ".join(page(comparison, tmp_path).text.split())
    for _, row in comparison.table().iterrows():
        assert f"{row['final']:.4f} ± {row['final_std']:.4f}" in text
        assert f"[{row['final_low']:.4f}, {row['final_high']:.4f}]" in text
    [gap] = [row for _, row in comparison.differences().iterrows()]
    assert "scaffold − fedavg" in text
    assert f"{gap['difference']:+.4f}" in text
    assert f"[{gap['low']:+.4f}, {gap['high']:+.4f}]" in text
    assert "has the highest mean of the final test F1" in text
    assert "no winner is marked" in text
    assert "With 2 seeds, an interval excludes 0 if" in text
    assert "positive is better" in text
    assert "★" not in text.replace("★ marks a winner", "")


def test_rounds_to_a_target_say_how_many_seeds_got_there(comparison, tmp_path):
    lines = [comparison.finals()["fedavg"][seed] for seed in (0, 1)]
    record = {"target": sum(lines) / 2}  # between the two seeds
    text = " ".join(page(Comparison(comparison.members[:1], record=record), tmp_path).text.split())
    assert f"rounds to {record['target']:g}" in text
    assert "1 of 2 seeds" in text
    assert "Runs that never reached the target are not in the means" in text


def test_a_winner_is_marked_where_the_intervals_say_so(comparison, tmp_path, monkeypatch):
    gaps = comparison.differences().assign(difference=0.5, low=0.4, high=0.6)
    monkeypatch.setattr(Comparison, "winners", lambda self, metric=None: ["scaffold"])
    monkeypatch.setattr(Comparison, "differences", lambda self: gaps)
    found = page(comparison, tmp_path)
    [zero] = re.findall(r"class='zero' x1='([-\d.]+)'", found.raw)
    assert 0 <= float(zero) <= 10  # zero is on the scale, left of the interval
    assert "scaffold ★" in found.text
    assert "fedavg ★" not in found.text


def test_clients_drift_and_selection_are_those_of_the_records(comparison, runs, tmp_path):
    found, first = page(comparison, tmp_path), RunResult(runs[0])
    held = found.panel("Classes of the clients")
    assert held["cells"][::-1] == first.counts.T.tolist()
    served = next(line for line in found.panel("Accuracy of the clients")["lines"] if line["name"] == "fedavg")
    last = [metrics(run)[-1] for run in runs[:2]]
    expected = [np.mean([row[f"client_accuracy_p{q}"] for row in last]) for q in range(0, 101, 10)]
    assert served["y"] == pytest.approx(expected, rel=1e-5)
    for title, column in (("Norm of the updates", "delta_norm"), ("Agreement of the updates", "delta_cosine")):
        means = [RunResult(run).clients.groupby("round")[column].mean() for run in runs[:2]]
        assert found.panel(title)["lines"][0]["y"] == pytest.approx(np.mean(means, axis=0).tolist(), rel=1e-4)
    [line] = found.panel("Participation of the clients")["lines"]  # the same cohorts for both methods
    each = [sorted(RunResult(run).clients["client"].value_counts() / 4, reverse=True) for run in runs[:2]]
    assert line["name"] == "all groups"
    padded = np.mean([share + [0.0] * (6 - len(share)) for share in each], axis=0)
    assert line["y"] == pytest.approx(padded.tolist())


def test_attack_script_injection_into_the_report(runs, tmp_path):
    evil = "</script><b>x</b><img src=q onerror=alert(1)>&amp;'\""
    members = [
        Group(evil, "a<i>", {0: RunResult(runs[0])}, {1: Lost(evil, True)}),
        Group("other", "a<i>", {0: RunResult(runs[2])}),
    ]
    found = page(Comparison(members, record={"command": f"arno compare {evil}"}), tmp_path)
    assert found.data["names"][0] == evil
    assert not set("<>&") & set(found.script)
    names = {tag for tag, _ in found.tags}
    assert not names & {"b", "img", "i"}
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert found.text.count(evil) >= 4  # title, table, problem, command


def test_it_needs_nothing_from_elsewhere(comparison, tmp_path):
    found = page(comparison, tmp_path)
    assert "://" not in found.raw
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", found.raw)
    for tag, attributes in found.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
    assert len(found.raw) < 200_000


def test_a_single_run_has_no_interval_and_no_differences(runs, tmp_path):
    found = page(Comparison.of(runs[:1]), tmp_path)
    assert "one seed (0)" in found.text
    assert not re.search(r"± \d", found.text)
    assert "Paired differences" not in found.text
    assert found.line("fedavg")["y"]["test_f1"]["low"] == []
    assert RunResult(runs[0]).folder.manifest()["command"] in found.text


def test_quadratics_have_a_gap_and_no_accuracy(train, tmp_path):
    run = train("problem=quadratic", "local.lr=0.01", "eval.clients=false")
    found = page(Comparison.of([run]), tmp_path)
    curves = found.data["places"][0]["curves"]
    assert list(curves["metrics"]) == ["gap", "distance", "train_loss"]
    assert found.data["metric"] == "gap"
    assert curves["metrics"]["gap"] == {"label": "F(w) − F(w*)", "better": "less", "log": True, "low": 0, "high": None}
    assert [row["gap"] for row in metrics(run)] == pytest.approx(found.line("fedavg")["y"]["gap"]["y"], rel=1e-5)
    assert found.data["places"][0]["notes"]["clients"] == ["Every client took part in every round."]


def test_what_was_not_recorded_is_said_with_how_to_record_it(train, tmp_path):
    run = train("eval.clients=false")
    (run / "counts.npy").unlink()
    RunFolder(run).update_manifest(checksums={})  # as a run with too large a table
    notes = page(Comparison.of([run]), tmp_path).data["places"][0]["notes"]["clients"]
    assert any("eval.clients=true" in note for note in notes)
    assert any("arno data show" in note for note in notes)
    assert "Every client took part in every round." in notes


def test_a_run_stopped_before_it_was_evaluated(train, runs, tmp_path):
    run = train("eval.every=10", "checkpoint.every=1")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:20])  # killed while it wrote
    (run / "clients.parquet").unlink()
    for late in RunFolder(run).after(2):
        late.unlink()
    RunFolder(run).update_manifest(status="interrupted", checksums={})
    found = page(Comparison.of([run]), tmp_path)
    assert "fedavg, seed 0: interrupted after round 2" in found.text
    assert found.data["metric"] == "train_loss"
    line = found.line("fedavg")
    assert list(line["y"]) == ["train_loss"]
    assert line["x"]["round"] == [1, 2]
    assert None not in line["x"]["parallel_seconds"]  # from what the checkpoints hold

    found = page(Comparison.of([*runs, run]), tmp_path)  # beside runs that were evaluated
    assert ", seed 0: not in the means: it recorded no test F1" in found.text
    assert "failed" not in found.text
    assert found.data["metric"] == "test_f1"


def test_lost_and_missing_runs_are_reported_and_not_drawn(runs, tmp_path):
    lost = Group("lost", "", {}, {0: Lost("client 3 diverged in round 2", True), 1: Lost("out of memory", False)})
    part = Group("part", "", {0: RunResult(runs[0])})
    found = page(Comparison([Group("whole", "", {s: RunResult(runs[s]) for s in (0, 1)}), lost, part]), tmp_path)
    assert "lost, seed 0: diverged, not in the means: client 3 diverged in round 2" in found.text
    assert "lost, seed 1: failed, not in the means: out of memory" in found.text
    assert "part: no finished run with seed 1" in found.text
    assert [line["name"] for line in found.data["places"][0]["curves"]["lines"]] == ["whole", "part"]


def test_the_table_counts_lost_runs_beside_a_single_one(runs, tmp_path):
    whole = Group("whole", "", {0: RunResult(runs[0])})
    assert "All settings of the run" in page(Comparison([whole]), tmp_path).text
    lost = Group("lost", "", {}, {0: Lost("client 3 diverged in round 2", True)})
    found = page(Comparison([whole, lost]), tmp_path).text
    assert "1 diverged" in found
    assert "What all runs share" in found


def test_only_lost_runs_and_none_at_all(tmp_path):
    assert "No run has a result" in page(Comparison([Group("nothing")]), tmp_path).text
    found = page(Comparison([Group("lost", "", {}, {0: Lost("no", True)})]), tmp_path)
    assert "No run has a result" in found.text
    assert found.data["places"][0]["curves"]["lines"] == []


def test_methods_show_panels_of_their_own(train, comparison, tmp_path):
    control = page(comparison, tmp_path).panel("scaffold: Control variate")
    runs = next(group.runs for group in comparison.members if group.name == "scaffold").values()
    expected = np.mean([run.history["control_norm"] for run in runs], axis=0)
    assert control["lines"][0]["y"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert len(control["lines"][0]["low"]) == 4

    lorenzo = train("method=lorenzo", "local.batch_size=8", "rounds=2")
    found, records = page(Comparison.of([lorenzo]), tmp_path), RunResult(lorenzo).clients
    ranks = found.panel("lorenzo: Ranks")
    assert ranks["columns"] == ["0", "1", "2"]
    for i, client in enumerate(ranks["rows"]):
        mine = records[records["client"] == int(client)].sort_values("round")
        assert [mark or "0" for mark in ranks["marks"][i]] == [str(int(rank)) for rank in mine["rank"]]
    seconds = records.groupby("round")["seconds"]
    expected = [seconds.max()[0], *seconds.sum()[[1, 2]]]  # all at once, then one after the other
    assert found.line("lorenzo")["x"]["parallel_seconds"] == pytest.approx(np.cumsum(expected).tolist(), rel=1e-4)

    qrmix = page(Comparison.of([train("method=qrmix", "method.rank_k=2", "rounds=2")]), tmp_path)
    values = qrmix.panel("qrmix: Eigenvalues")
    assert [line["name"] for line in values["lines"]] == ["λ1", "λ2"]
    assert values["log"]


def test_panels_come_from_the_folder_and_need_no_code_of_the_method(runs, tmp_path):
    result = RunResult(copied(runs[2], tmp_path / "run"))
    result.config["method"] = {"kind": "custom", "target": "gone.py:factory"}
    found = page(Comparison([Group("mine", "", {0: result})]), tmp_path)
    assert found.panel("mine: Control variate")["y"] == "norm"
    assert found.data["places"][0]["notes"]["methods"] == []


@pytest.mark.parametrize("text", [None, "[", '[{"kind": "Chart"}]'])
def test_panels_that_were_not_recorded_are_a_note(text, runs, tmp_path):
    """An earlier release, or a run that is not finished."""
    run = copied(runs[2], tmp_path / "run")
    RunFolder(run).update_manifest(checksums={})
    (run / "panels.json").unlink()
    if text is not None:
        (run / "panels.json").write_text(text)
    group = Group("mine", "", {0: RunResult(run), 1: RunResult(runs[3])})
    found = page(Comparison([group]), tmp_path)
    assert found.panel("mine: Control variate"), "that of the other run"
    [note] = found.data["places"][0]["notes"]["methods"]
    assert note.startswith("mine: the panels of 1 of 2 runs were not recorded")


def test_panels_of_seeds_are_merged_by_title(runs, tmp_path):
    charts = [Chart(title, "", [Line("y", [1], [x])]) for title, x in (("A", 1.0), ("B", 2.0), ("A", 3.0))]
    both = [copied(run, tmp_path / run.parent.name) for run in runs[:2]]
    for run, shown in zip(both, (charts[:2], charts[2:]), strict=True):
        RunFolder(run).write_panels(shown)
        RunFolder(run).update_manifest(**RunFolder(run).checksums())
    found = page(Comparison.of(both), tmp_path)
    assert found.panel("fedavg: A")["lines"][0]["y"] == [2.0]
    assert found.panel("fedavg: B")["lines"][0]["y"] == [2.0]


def test_attack_a_value_with_a_template_in_the_report(comparison, tmp_path):
    comparison.record["command"] = "arno compare out={{js}} {{data}} {{nothing}}"
    found = page(comparison, tmp_path)
    assert found.text.count("arno compare out={{js}} {{data}} {{nothing}}") == 1
    template = files("arno.report").joinpath("report.html").read_text()
    left = set(re.findall(r"\{\{\w+\}\}", found.raw)) & set(re.findall(r"\{\{\w+\}\}", template))
    assert left == {"{{js}}", "{{data}}"}, "every place of the template is filled"


def test_settings_that_differ_and_places(runs, tmp_path):
    members = [Group("a", "here", {0: RunResult(runs[0])}), Group("b", "there", {0: RunResult(runs[2])})]
    found = page(Comparison(members), tmp_path)
    assert [place["name"] for place in found.data["places"]] == ["here", "there"]
    assert [[line["name"] for line in place["curves"]["lines"]] for place in found.data["places"]] == [["a"], ["b"]]
    assert "method.kind" in found.text.split("What differs")[1].split("What all runs share")[0]
    assert "participation" in found.text.split("What all runs share")[1]


def test_long_runs_are_thinned_and_keep_their_end(runs):
    result = RunResult(runs[0])
    rows = result.history[["seconds", "local_steps", "uploaded_bytes", "train_loss"]].iloc[[0]].reset_index(drop=True)
    long = rows.loc[rows.index.repeat(4991)].reset_index(drop=True)
    long.index = np.arange(1, 4992)
    long.index.name = "round"
    long["test_f1"] = np.where((long.index % 10 == 0) | (long.index == 4991), long.index / 1e4, np.nan)
    result.history = long
    [line] = comparison_panels.curves([Group("long", "", {0: result})]).lines
    assert 200 < len(line["x"]["round"]) <= comparison_panels.MOST
    assert line["x"]["round"][-1] == 4991
    assert None not in line["y"]["test_f1"]["y"]  # rounds that were scored are kept before others


def test_the_command_writes_beside_the_runs_or_where_it_is_told(runs, tmp_path, monkeypatch, capsys):
    def arno(*arguments: object) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as stopped:
            main(["report", *map(str, arguments)])
        said = capsys.readouterr()
        return stopped.value.code, said.out.splitlines(), said.err

    monkeypatch.chdir(tmp_path)
    assert arno(runs[0]) == (0, [str(runs[0] / "report.html")], "")
    assert arno(*runs) == (0, ["report.html"], "")
    assert Page(Path("report.html")).data["names"] == ["fedavg", "scaffold"]
    Path("grid").mkdir()
    for i, run in enumerate(runs):
        (Path("grid") / f"cell{i}").symlink_to(run)
    assert arno("grid")[1] == ["grid/report.html"]
    assert arno("grid/cell0", "grid/cell2", "--out", "some/where.html")[1] == ["some/where.html"]
    assert arno("nothing")[0] == 2
    assert arno("grid", "--out", "report.html/x.html")[0] == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it: holds no runs; give the folder that arno run or arno compare printed last"),
        ({"config.yaml": "a: 1"}, "it: is no run: its config.yaml names no method; give the folder"),
        ({"sub/config.yaml": "a: 1"}, "it: holds no runs"),
        ({"sub/config.yaml": "a: 1", "sub/manifest.json": "{}"}, "sub: is no run"),
        ({"sub/manifest.json": "{}", "compare.json": "{}"}, "error: it"),
    ],
)
def test_a_folder_without_runs_is_refused(files, message, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("it").mkdir()
    for name, text in files.items():
        Path("it", name).parent.mkdir(exist_ok=True)
        Path("it", name).write_text(text)
    for words in (["it"], ["it", str(runs[0])]):
        with pytest.raises(SystemExit, match="2"):
            main(["report", *words])
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert message in error
    assert not list(tmp_path.rglob("*.html"))


def test_figures_for_a_paper(runs, tmp_path, monkeypatch):
    from arno.report import paper_files as figures

    shown = [Chart("a b", "", [Line("y", [1, 2], [1.0, 2.0], [0.5, 1.0], [2.0, 3.0])], log=True)]
    shown += [HeatMap("c", "", [[0, 1], [2, None]], ["p", "q"], ["r", "s"], marks=[["", "1"], ["2", ""]], root=True)]
    monkeypatch.setattr(comparison_panels, "sections", lambda groups: {"clients": comparison_panels.Section(shown)})
    folder = figures.write_figures(Comparison.of(runs[:1]), tmp_path / "figures", ["png", "pdf"])
    names = {path.stem for path in folder.glob("*.png")}
    assert names == {path.stem for path in folder.glob("*.pdf")}
    assert names >= {"test_accuracy-round", "test_f1-uploaded_bytes", "test_loss-parallel_seconds", "a-b", "c"}
    head = (folder / "a-b.png").read_bytes()[:24]
    assert int.from_bytes(head[16:20], "big") == 1050  # 3.5 inches at 300 dots
    assert (folder / "c.pdf").read_bytes()[:5] == b"%PDF-"
