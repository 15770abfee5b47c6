"""The report in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from arno.analysis.comparison import Comparison, Group
from arno.records.folder import RunFolder
from arno.records.metrics_file import read as recorded
from arno.report.html import write_report
from arno.runs.run import RunResult

CURVES = "#curves-figure path.line"


class Visit:
    """A page that is open, with what it said and what it asked for."""

    def __init__(self, browser: Any, report: Path, width: int = 1280, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page.set_default_timeout(60_000)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(report.as_uri())

    def curves(self) -> dict[str, str]:
        return {p.get_attribute("data-name"): p.get_attribute("d") for p in self.page.query_selector_all(CURVES)}

    def label(self, axis: str) -> str:
        return self.page.locator(f"#curves-figure text.label.{axis}").inner_html()

    def choose(self, value: str) -> None:
        self.page.locator(f"input[value='{value}']").check(force=True)


@pytest.fixture
def report(runs: list[Path], tmp_path: Path) -> Path:
    write_report(Comparison.of(runs), tmp_path / "report.html")
    return tmp_path / "report.html"


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def test_curves_are_drawn_without_errors_or_requests(chromium, report):
    visit = Visit(chromium, report)
    curves = visit.curves()
    assert curves.keys() == {"fedavg", "scaffold"}
    for path in curves.values():
        x, y = zip(*points(path), strict=True)
        assert len(x) == 4
        assert list(x) == sorted(set(x))
        assert len(set(y)) > 1
    assert visit.page.locator("#curves-figure path.band").count() == 2
    assert visit.page.locator("figure.card").count() >= 6
    for svg in visit.page.query_selector_all("figure svg"):
        assert svg.get_attribute("role") == "img"
        assert len(svg.get_attribute("aria-label")) > 20
    visit.page.mouse.wheel(0, 5000)
    assert visit.said == []
    assert [url for url in visit.asked if not url.startswith("data:")] == [report.as_uri()]


def test_the_switches_change_axis_and_curves(chromium, report, runs):
    visit = Visit(chromium, report)
    seen = [(visit.label("x"), visit.label("y"), visit.curves())]
    for value in ("uploaded_bytes", "parallel_seconds", "test_loss", "local_steps"):
        visit.choose(value)
        seen.append((visit.label("x"), visit.label("y"), visit.curves()))
    assert [(x, y) for x, y, _ in seen] == [
        ("round", "test F1"),
        ("uploaded bytes", "test F1"),
        ("idealised parallel seconds", "test F1"),
        ("idealised parallel seconds", "test loss, lower is better"),
        ("local steps", "test loss, lower is better"),
    ]
    assert seen[1][2] != seen[2][2] != seen[3][2]  # other times, then other scores
    visit.page.locator("#curves-figure summary").click()
    losses = [RunResult(run).history["test_loss"].iloc[-1] for run in runs[:2]]
    shown = visit.page.locator("#curves-figure tbody tr").last.locator("td").first.inner_text()
    assert float(shown.split(" ± ")[0]) == pytest.approx(sum(losses) / 2, rel=1e-3)
    assert visit.said == []


@pytest.mark.parametrize(("high", "log"), [(1, False), (None, False), (None, True)])
def test_the_y_axis_is_the_declared_one(chromium, runs, tmp_path, high, log):
    for seed, final in enumerate((0.5, 1.0)):  # the band reaches from 0.4 to 1.1
        run = shutil.copytree(runs[seed], tmp_path / str(seed))
        folder = RunFolder(run)
        first, *others = folder.manifest()["metrics"]
        folder.update_manifest(metrics=[first | {"high": high, "log": log}, *others])
        rows = [row | {first["name"]: final} for row in recorded(run)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report(Comparison.of([tmp_path / "0", tmp_path / "1"]), tmp_path / "report.html")
    visit = Visit(chromium, tmp_path / "report.html")
    ticks = [float(text) for text in visit.page.locator("#curves-figure text.tick.end").all_text_contents()]
    if not log:
        assert (max(ticks) > 1) == (high is None)
    assert visit.label("y") == ("test F1 (log scale)" if log else "test F1")
    assert visit.said == []


def test_legend_hover_numbers_and_the_keyboard(chromium, report):
    visit = Visit(chromium, report)
    visit.page.locator("#curves-figure .legend button", has_text="scaffold").click()
    assert visit.curves().keys() == {"fedavg"}
    assert visit.page.locator("#drift-figures .legend button[aria-pressed=false]").count() == 2  # in every figure
    visit.page.locator("#curves-figure .legend button", has_text="scaffold").press("Enter")
    assert len(visit.curves()) == 2

    box = visit.page.locator("#curves-figure svg").bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 100)
    tip = visit.page.locator("#curves-figure .tip")
    assert tip.is_visible()
    assert tip.locator("strong").inner_text() == "round: 4"
    assert set(tip.locator("span").all_inner_texts()) == {"fedavg", "scaffold"}

    visit.page.locator("#curves-figure summary").click()
    table = visit.page.locator("#curves-figure table")
    table.wait_for()
    assert table.locator("th[scope=col]").all_inner_texts() == ["round", "fedavg", "scaffold"]
    assert table.locator("tbody tr").count() == 4

    visit.page.locator("input[value=test_f1]").focus()
    visit.page.keyboard.press("ArrowRight")
    assert visit.label("y") == "test accuracy"
    assert visit.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_the_screen_wide_or_narrow(chromium, report, width, scheme):
    visit = Visit(chromium, report, width, scheme)
    hint, box = visit.page.locator("#summary .hint").first, visit.page.locator("#summary .scroll").first
    assert hint.is_visible() == box.evaluate(
        "node => node.scrollWidth > node.clientWidth + 1"
    )  # it says that it scrolls
    assert hint.is_visible() == (width < 1280)
    assert visit.page.evaluate("document.documentElement.scrollWidth") == width
    for card in visit.page.query_selector_all("figure svg"):
        box = card.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    if width == 1280:
        before = visit.curves()["fedavg"]
        visit.page.set_viewport_size({"width": 700, "height": 800})
        drawn_again = "before => document.querySelector('#curves-figure path.line').getAttribute('d') !== before"
        visit.page.wait_for_function(drawn_again, arg=before)  # not shrunk
        assert max(x for x, _ in points(visit.curves()["fedavg"])) < 700


def test_places_and_hostile_labels(chromium, runs, tmp_path):
    evil = "</script><b id=out>x</b><img src=x onerror=alert(1)>"
    one, two = RunResult(runs[0]), RunResult(runs[2])
    members = [Group(evil, "here", {0: one}), Group("b", "here", {0: two}), Group("b", "there", {0: two})]
    write_report(Comparison(members), tmp_path / "report.html")
    visit = Visit(chromium, tmp_path / "report.html")
    assert visit.curves().keys() == {evil, "b"}
    assert visit.page.locator("#out").count() == 0
    visit.page.locator("input[name=place][value='1']").check(force=True)
    assert visit.curves().keys() == {"b"}
    assert visit.page.locator("#drift-figures").first.locator("path.line").count() == 2  # one in each picture
    assert visit.said == []
    assert len(visit.asked) <= 2


def test_curves_that_cover_each_other_can_be_told_apart(chromium, runs, tmp_path):
    one = RunResult(runs[0])
    members = [Group(name, "", {0: one}) for name in ("a", "b", "c")]
    write_report(Comparison(members), tmp_path / "report.html")
    visit = Visit(chromium, tmp_path / "report.html")
    gaps = [p.evaluate("node => node.style.strokeDasharray") for p in visit.page.query_selector_all(CURVES)]
    assert gaps == ["none", "8, 8", "8, 16"]
    widths = [p.evaluate("node => node.style.strokeWidth") for p in visit.page.query_selector_all(CURVES)]
    assert widths == ["8", "5", "2"]  # what is covered is broader than what covers it
    assert "b and c have the same curve as a." in visit.page.locator("#curves-figure .note").inner_text()


def test_the_last_rounds_can_be_enlarged(chromium, report):
    visit = Visit(chromium, report)

    def ticks(axis: str) -> list[float]:
        return [float(text) for text in visit.page.locator(f"#curves-figure text.tick.{axis}").all_text_contents()]

    rounds, scores = ticks("middle"), ticks("end")
    visit.choose("0.5")
    assert min(rounds) < 2 <= min(ticks("middle"))
    assert min(ticks("end")) > min(scores)  # the scores of the first rounds no longer fix the axis


def test_numbers_of_any_size_are_short(chromium, report):
    visit = Visit(chromium, report)
    for value, text in ((0.0, "0"), (1234.5, "1235"), (5e9, "5G"), (5e12, "5T"), (1e30, "1.0e+30"), (2e-9, "2.0e-9")):
        assert visit.page.evaluate("value => written(value)", value) == text
    assert visit.page.evaluate("written(3980000, true)") == "3.98 MB"


@pytest.mark.parametrize(
    ("low", "high", "whole"),
    [(1, 19_950, True), (50, 19_950, True), (0.49, 0.61, False), (3, 3.01, False), (1, 2, True), (0, 1e9, False)],
)
def test_an_axis_has_several_ticks(chromium, report, low, high, whole):
    found = Visit(chromium, report).page.evaluate(
        "([low, high, whole]) => ticks(low, high, 3.6, whole)", [low, high, whole]
    )
    assert 2 <= len(found) <= 8
    assert all(low <= at <= high * (1 + 1e-9) for at in found)
    assert not whole or all(at == int(at) for at in found)


def test_paired_differences_share_an_axis_with_zero(chromium, report):
    visit = Visit(chromium, report)
    row = visit.page.locator("#summary tr", has_text="scaffold − fedavg")
    zero = row.locator("line.zero").bounding_box()["x"]
    labels = visit.page.locator("#summary tr.axis text")
    assert "0" in labels.all_text_contents()
    at = labels.nth(labels.all_text_contents().index("0")).bounding_box()
    assert at["x"] - 3 <= zero <= at["x"] + at["width"] + 3
    boxes = sorted((b["x"], b["x"] + b["width"]) for b in (labels.nth(i).bounding_box() for i in range(labels.count())))
    assert all(left[1] <= right[0] for left, right in pairwise(boxes))  # no label covers another


def test_a_single_run_speaks_of_a_single_run(chromium, runs, tmp_path):
    write_report(Comparison.of(runs[:1]), tmp_path / "report.html")
    visit = Visit(chromium, tmp_path / "report.html")
    text = visit.page.locator("body").inner_text()
    assert not re.search("★|band|interval|seeds|Not only|runs", text)
    assert visit.page.locator("#summary svg").count() == 0
    assert visit.said == []


@pytest.mark.parametrize("width", [1280, 400])
def test_ranks_are_seen_after_many_rounds(chromium, train, tmp_path, width):
    run = train("method=lorenzo", "rounds=70", "method.patience=null")
    write_report(Comparison.of([run]), tmp_path / "report.html")
    visit = Visit(chromium, tmp_path / "report.html", width)
    ranks = visit.page.locator("#methods-figures figure", has_text="Ranks")
    marks = ranks.locator("text.mark").all_text_contents()
    assert len(marks) > 20
    assert set(marks) <= {"1", "2", "3", "4", "5", "6"}
    ranks.locator("summary").click()
    ranks.locator("table").wait_for()
    assert re.fullmatch(r"[1-6] \([\d.]+\)", ranks.locator("td").last.inner_text())
    assert visit.page.locator("#drift-figures figure").count() == 1  # a single point is no picture
    assert "one after the other" in visit.page.locator("#drift-figures > .note").inner_text()


def test_the_verdict_says_what_else_differs(chromium, train, runs, tmp_path):
    every = train("method=scaffold", "participation=1")
    members = [Group(name, "", {0: RunResult(run)}) for name, run in (("fedavg", runs[0]), ("scaffold", every))]
    write_report(Comparison(members), tmp_path / "report.html")
    text = Visit(chromium, tmp_path / "report.html").page.locator(".verdict").first.inner_text()
    assert "Not only the method differs" in text
    assert "participation=1" in text
    assert "highest final test F1" in text  # of one seed there is no mean
    assert "Unequal budgets, per run:" in text
    assert "local steps scaffold" in text
