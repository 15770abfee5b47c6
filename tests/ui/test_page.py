"""The page of `arno ui` in a real browser: what it shows, on which screens, with which keys, and while runs change.

ARNO_SCREENSHOTS=docs/pictures pytest tests/ui/test_page.py -k screens     writes the pictures of the documentation
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import EVIL, Served, command, recorded, start, wait_for

import arno
from arno.analysis.run_entry import write_tags
from arno.config import settings as configs
from arno.grids import tune
from arno.grids.this_process import ThisProcess
from arno.records.folder import RunFolder
from arno.records.lock import holder
from arno.runs.progress import Quiet
from arno.runs.run import execute

pytest.importorskip("starlette", reason="needs arno[ui]")
pytest.importorskip("uvicorn", reason="needs arno[ui]")
pytest.importorskip("optuna", reason="needs arno[tune]")

DATA = ("clients=12", "model=softmax", "engine=serial", "data.limit=600", "partition=dirichlet", "partition.alpha=0.2")
NAME = EVIL.replace("/", "\u2215")
#: Milliseconds within which the page must show a change; benchmarks/ui.py prints how long it takes.
SOON = 30_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page") / "runs"
    for method in ("fedavg", "scaffold", "lorenzo"):
        words = [*DATA, "eval.clients=true", "rounds=30", f"method={method}", f"out={folder / method}"]
        execute(configs.plain(configs.compose(words)), Quiet(), pictures=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "workers_for", lambda words, out: (ThisProcess(), ["engine=serial", *words]))
        arno.tune(*DATA, "method=fedavg,scaffold", "rounds=6", "seed=0..1", out=folder / "tuned", trials=4)
    bad = shutil.copytree(folder / "fedavg", folder / NAME)
    RunFolder(bad).update_manifest(status="failed", reason=EVIL)
    (bad / "log.txt").write_text(EVIL)
    write_tags(bad, [EVIL.replace(" ", "")])
    (bad / "report.html").write_text("<script>document.title = 'run from the folder'</script>")
    made = Served(folder)
    yield made
    made.close()


class Visit:
    """The page in a browser, with all that it said and asked for."""

    def __init__(self, browser: Any, served: Served, width: int = 1280, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.served, self.width = served, width
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, locale="en-GB")
        self.page.set_default_timeout(60_000)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(served.address)
        self.page.locator("#runs tbody tr").first.wait_for()

    def open(self, *names: str) -> Any:
        """Open runs by the address."""
        self.page.evaluate(
            "names => { location.hash = names.map((n) => 'run=' + encodeURIComponent(n)).join('&') }", names
        )
        self.page.locator("#curves svg").wait_for()
        return self.page

    def names(self) -> list[str]:
        return self.page.locator("#runs tbody th a").all_inner_texts()

    def curves(self) -> list[str]:
        found = self.page.locator("#curves path.line")
        return [found.nth(i).get_attribute("data-name") for i in range(found.count())]

    def tab_to(self, selector: str, key: str = "Tab") -> Any:
        """Press a key until the focus is on an element; it must be seen there."""
        for _ in range(80):
            self.page.keyboard.press(key)
            if self.page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return self.page.locator(selector)
        return pytest.fail(f"{key} does not reach {selector}")

    def until(self, condition: str, *values: str) -> None:
        """Wait for a condition in JavaScript; the policy of the page forbids Playwright's own way."""
        wait_for(lambda: self.page.evaluate(f"values => {condition}", values), SOON / 1000)

    def shows(self, text: str, where: str = "#facts .status") -> None:
        self.page.locator(where, has_text=text).first.wait_for(timeout=SOON)

    def close(self) -> None:
        """Nothing was said on the console, and nobody else was asked."""
        self.page.close()
        assert self.said == []
        assert {url.split("/")[2] for url in self.asked if not url.startswith("data:")} == {
            f"127.0.0.1:{self.served.port}"
        }


@pytest.fixture
def visit(chromium: Any, served: Served) -> Iterator[Visit]:
    made = Visit(chromium, served)
    yield made
    made.close()


def test_list_conditions_and_compare_by_ticking(visit: Visit) -> None:
    page = visit.page
    assert set(visit.names()) == {"fedavg", "scaffold", "lorenzo", "tuned", NAME}
    assert page.locator("#count").inner_text().startswith("5 shown; ")  # the runs of the search are said, not counted
    page.locator("#words").fill("name=scaffold status=done")
    page.locator("#words").press("Enter")
    page.locator("#count", has_text="1 of").wait_for()
    assert visit.names() == ["scaffold"]
    page.locator("#words").fill("colour=red")
    page.locator("#words").press("Enter")
    page.locator("#live", has_text="unknown key").wait_for()
    page.locator("#words").fill("")
    page.locator("#sort").select_option("name")
    visit.until("document.querySelectorAll('#runs tbody tr').length === 5")
    assert [name for name in visit.names() if name.isalpha()] == ["fedavg", "lorenzo", "scaffold", "tuned"]
    assert page.locator("#compare").is_disabled()
    for name in ("fedavg", "scaffold"):
        page.get_by_label(f"compare {name}", exact=True).check()
    assert page.get_by_label("compare tuned", exact=True).is_disabled()  # a comparison is opened by itself
    page.locator("#compare").click()
    page.locator("#curves svg").wait_for()
    assert visit.curves() == ["fedavg", "scaffold"]
    assert page.locator("#tables table").count() >= 2
    assert "fedavg" in page.locator("#facts").inner_text()
    page.get_by_text("All runs").click()
    page.locator("#list").wait_for()


def test_many_runs_are_a_number_in_the_title(visit: Visit) -> None:
    page = visit.open("fedavg", "scaffold", "lorenzo")
    assert page.locator("h1").inner_text() == "fedavg · scaffold · lorenzo"
    page = visit.open("fedavg", "scaffold", "lorenzo", NAME)
    visit.until("document.querySelector('h1').textContent === '4 runs'")
    page.locator("#facts dt", has_text="lorenzo").wait_for()


def test_one_run_its_clients_ranks_and_messages(visit: Visit) -> None:
    page = visit.open("lorenzo")
    table = page.locator("#tables table")
    assert table.locator("tbody tr").count() == 12
    heads = table.locator("th[scope=col]").all_inner_texts()
    assert {"samples", "largest classes", "drift ‖Δ‖", "agreement", "rounds"} <= set(heads)
    assert page.locator("#methods h3", has_text="Ranks").count() == 1
    assert "done after round" in page.locator("#log").inner_text()
    assert "partition.alpha" in page.locator("#about dt").all_inner_texts()
    assert page.locator("[data-act=stop], [data-act=resume]").count() == 0  # it is done
    before = page.locator("#curves path.line").get_attribute("d")
    page.locator("input[name=part][value='0.5']").check(force=True)
    assert page.locator("#curves path.line").get_attribute("d") != before


def test_the_search_of_a_tuning(visit: Visit) -> None:
    page = visit.open("tuned")
    rows = page.locator("#search table tbody th").all_inner_texts()
    assert rows == ["fedavg", "scaffold"]
    figures = page.locator("#search figure")
    assert figures.count() >= 2
    assert figures.first.locator("circle").count() == 4  # the trials
    assert figures.first.locator("text.tick.middle").all_text_contents() == ["0.001", "0.01", "0.1", "1.0"]
    figures.first.locator("summary").click()
    figures.first.locator("table").wait_for()
    rates = [float(text) for text in figures.first.locator("tbody th").all_inner_texts()]
    assert rates == sorted(rates)
    assert 0.001 <= rates[0] <= rates[-1] <= 1.0
    assert visit.curves() == ["fedavg", "scaffold"]


def test_nothing_of_a_folder_is_run(visit: Visit) -> None:
    page = visit.open(NAME)
    assert page.locator("h1").inner_text() == NAME
    assert EVIL in page.locator("#facts").inner_text()
    assert page.locator("#log").inner_text() == EVIL
    assert page.locator("img, script:not([src])").count() == 0
    with page.expect_popup() as opened:
        page.locator("[data-act=report]").click()
    report = opened.value
    report.locator("#curves-figure path.line").first.wait_for()
    assert "folder" not in report.title()
    assert report.evaluate("origin") == "null"  # it cannot ask this server for anything
    assert report.evaluate("fetch('/api/list').then(() => 'answered', () => 'refused')") == "refused"
    assert report.locator("img").count() == 0


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit.page
    visit.tab_to("#words")
    page.keyboard.type("name!=tuned")
    page.keyboard.press("Enter")
    visit.until("document.querySelectorAll('#runs tbody tr').length === 4")
    for name in ("lorenzo", "scaffold"):
        visit.tab_to(f"input[aria-label='compare {name}']")
        page.keyboard.press("Space")
    visit.tab_to("#compare", "Shift+Tab")
    page.keyboard.press("Enter")
    page.locator("#curves svg").wait_for()
    visit.tab_to("input[name=axis]")
    page.keyboard.press("ArrowRight")
    page.locator("#curves text.label.x", has_text="local steps").wait_for()
    visit.tab_to("#curves .legend button[data-name=scaffold]")
    visit.until("getComputedStyle(document.activeElement).outlineStyle === 'solid'")  # where the focus is can be seen
    page.keyboard.press("Enter")
    assert visit.curves() == ["lorenzo"]
    page.keyboard.press("Enter")
    visit.tab_to("[data-act=back]", "Shift+Tab")
    page.keyboard.press("Enter")
    visit.until("document.activeElement.id === 'list'")
    visit.tab_to("#runs th a")
    page.keyboard.press("Enter")
    page.locator("#curves svg").wait_for()
    visit.until("document.activeElement.id === 'one'")
    visit.tab_to(".skip", "Shift+Tab")
    address = page.url
    page.keyboard.press("Enter")
    visit.until("document.activeElement.id === 'one'")
    assert page.url == address  # the run stays open


NAMELESS = """[...document.querySelectorAll('a, button, input, select, svg[role=img], [role=region]')]
    .filter((node) => node.checkVisibility() && !(node.ariaLabel || node.textContent.trim() || node.labels?.length))
    .map((node) => node.outerHTML)"""
PICTURES = """[...document.querySelectorAll('figure svg')].map((svg) => svg.getBoundingClientRect())
    .map((box) => [box.left, box.right])"""
#: Texts whose contrast to what is behind them is below 4.5 (WCAG AA); a button that is switched off may be faint.
FAINT = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const weights = [0.2126, 0.7152, 0.0722];
  const light = (rgb) => weights.reduce((sum, weight, i) => sum + weight * linear(parts(rgb)[i] / 255), 0);
  const written = (node) => [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
  const found = [];
  for (const node of document.querySelectorAll('body *')) {
    if (!node.checkVisibility() || node.matches(':disabled, svg *, option') || !written(node)) continue;
    let behind = node;
    while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const colours = [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor].map(light);
    const contrast = (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
    if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${node.outerHTML.slice(0, 120)}`);
  }
  return found;
}"""
LINES = """[...document.querySelectorAll('#runs tbody :is(.name a, .status, .score)')]
    .map((node) => node.getBoundingClientRect()).map((box) => [box.left, box.right])"""
OVERFLOW = "[document.documentElement.scrollWidth, document.body.scrollWidth]"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_screens(chromium: Any, served: Served, width: int, scheme: str) -> None:
    kinds = {1280: "desktop", 768: "tablet", 390: "phone"}
    visit, kind = Visit(chromium, served, width, scheme), kinds[width]
    page = visit.page
    picture(visit, f"list-{kind}-{scheme}")
    for names in ((), ("lorenzo",), ("fedavg", "scaffold", "lorenzo"), ("tuned",), (NAME,)):
        if names:
            visit.open(*names)
            picture(visit, f"{'-'.join(names)}-{kind}-{scheme}" if NAME not in names else "")
        assert page.evaluate(OVERFLOW) == [width, width]
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate(FAINT) == []
        if not names:  # name, state and score of a run are seen without scrolling to the side
            assert all(0 <= left < right <= width for left, right in page.evaluate(LINES))
        for left, right in page.evaluate(PICTURES):
            assert 0 <= left < right <= width
        hints = page.locator(".scroll.more > .hint")
        assert all(hints.nth(i).is_visible() for i in range(hints.count()))
        if width < 600 and names == ("lorenzo",):
            assert hints.count() == 1  # the table of clients is wider than the phone
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert (brightness(ink) > brightness(paper)) == (scheme == "dark")
    visit.close()


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")[:3])


def picture(visit: Visit, name: str) -> None:
    """A picture for the documentation, if it is asked for; without the path of the test."""
    wanted = {"list-desktop-light": "list", "fedavg-scaffold-lorenzo-desktop-light": "compare"}
    wanted |= {"lorenzo-phone-dark": "phone", "tuned-desktop-dark": "search"}
    if (folder := os.environ.get("ARNO_SCREENSHOTS")) and name in wanted:
        visit.page.locator("#folder").evaluate("node => { node.textContent = '/home/me/runs' }")
        if name.startswith("list"):
            visit.page.evaluate("name => [...list.lines.entries()].find(([n]) => n === name)[1].remove()", NAME)
            visit.page.locator("#count").evaluate("node => { node.textContent = node.textContent.replace('5', '4') }")
        for view, part in (("tuned", "#search"), ("fedavg", "#facts")):
            if name.startswith(view):
                visit.page.locator(part).evaluate("node => node.scrollIntoView()")
        Path(folder).mkdir(parents=True, exist_ok=True)
        visit.page.screenshot(path=Path(folder, f"ui-{wanted[name]}.png"))


def test_a_run_that_is_killed_resumed_elsewhere_and_stopped_while_it_is_watched(
    visit: Visit, chromium: Any, served: Served
) -> None:
    path = served.folder / "long"
    run = start(path, "rounds=200000")
    other = Visit(chromium, served)
    try:
        wait_for(lambda: holder(path))
        other.shows("running", "#runs .status")  # the list finds new runs by itself
        page = visit.open("long")  # at once: its first files are being written
        wait_for(lambda: list((path / "checkpoints").glob("*.safetensors")))
        visit.shows("running")
        before = page.locator("#curves path.line").get_attribute("d")
        visit.until("document.querySelector('#curves path.line').getAttribute('d') !== values[0]", before)
        run.kill()
        run.wait()
        visit.shows("stopped: killed")
        visit.shows("stopped: killed", "#live")
        other.shows("stopped: killed", "#runs .status")
        run = command("resume", str(path), "--quiet")
        wait_for(lambda: holder(path))
        visit.shows("running", "#live")
        visit.shows("running")
        before = recorded(path)
        wait_for(lambda: recorded(path) > before)
        page.locator("input[name=axis][value=local_steps]").focus()
        page.locator("[data-act=stop]").dispatch_event("click")
        visit.shows("stopped")
        visit.until("document.activeElement.value === 'local_steps'")  # the page was drawn anew; the focus stays
        assert run.wait(timeout=60) == 130  # as after Ctrl-C
        page.locator("[data-act=resume]").click()
        wait_for(lambda: holder(path))
        visit.shows("running")
        before = recorded(path)
        wait_for(lambda: recorded(path) > before)
        page.locator("[data-act=stop]").click()
        visit.shows("stopped")
        shutil.rmtree(path)
        page.get_by_text("All runs").click()
        visit.until("!document.querySelector('#runs').innerText.includes('long')")
    finally:
        run.kill()
        run.wait()
        other.close()


FAILS = """
import time
from pathlib import Path
from arno import Part

class Fails(Part):
    def finish(self, t, v):
        while t > 2 and not Path({flag!r}).exists():
            time.sleep(0.01)
        if t > 2:
            raise ValueError("<b>the disk is on fire</b>")
        return v

def factory():
    return [Fails()]
"""


def test_a_run_that_fails_while_it_is_watched(visit: Visit, served: Served, tmp_path: Path) -> None:
    flag, path = tmp_path / "flag", served.folder / "failing"
    (tmp_path / "fails.py").write_text(FAILS.format(flag=str(flag)))
    run = start(path, "method=custom", f"method.target={tmp_path / 'fails.py'}:factory")
    try:
        wait_for(lambda: recorded(path) == 3)
        visit.open("failing")
        visit.shows("running")
        flag.touch()
        visit.shows("failed")
        visit.shows("<b>the disk is on fire</b>", "#live")
    finally:
        run.kill()
        run.wait()
        shutil.rmtree(path)


def test_without_the_token_and_without_the_server(chromium: Any, served: Served) -> None:
    page = chromium.new_page()
    answer = page.goto(f"http://127.0.0.1:{served.port}/")
    assert answer.status == 403
    assert "token" in page.inner_text("body")
    page.close()
    own = Served(served.folder)
    page = chromium.new_page()
    page.goto(own.address)
    page.locator("#runs tbody tr").first.wait_for()
    assert "token" not in page.url
    own.process.send_signal(signal.SIGINT)
    assert own.process.wait(timeout=20) == 0
    page.locator("#live.bad", has_text="does not answer").wait_for(timeout=SOON)
    again = Served(served.folder, "--port", str(own.port))  # with another token
    page.locator("#live.bad", has_text="open the address that it has printed").wait_for(timeout=SOON)
    page.close()
    for process in (own, again):
        process.close()


def test_an_empty_folder_and_a_link_on_another_page(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    made, page = Served(tmp_path / "runs"), chromium.new_page()
    link = tmp_path / "link.html"
    link.write_text(f"<a href='{made.address}'>open</a>")
    page.goto(link.as_uri())
    page.get_by_text("open").click()
    page.locator("#count", has_text="There are no runs in this folder yet").wait_for(timeout=SOON)
    assert "token" not in page.url
    assert not page.locator("#runs").is_visible()
    page.close()
    made.close()
