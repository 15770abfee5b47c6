"""How long the page of `arno ui` takes with 1,000 runs, and how soon it says what happened to a run.

    python benchmarks/ui.py [--runs 1000] [--again 3]

The folder is the one of benchmarks/runs.py. Times of the page are measured in Chromium (arno[browser]), from the
request to the picture on the screen; each is the median of some repetitions.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from arno.records.lock import holder
from runs import make

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
#: Resolves after the browser has drawn what was changed.
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
LONG = ("clients=5", "model=softmax", "engine=serial", "data.limit=200", "rounds=1000000", "eval.every=100", "--quiet")
#: A method that fails as soon as a file exists.
FAILS = """
from pathlib import Path
from arno import Part

class Fails(Part):
    def finish(self, t, v):
        if Path({flag!r}).exists():
            raise ValueError("asked to fail")
        return v

def factory():
    return [Fails()]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--again", type=int, default=3, help="repetitions")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("benchmarks/ui.py needs Chromium: apt-get install chromium")
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        folder = Path(temporary, "runs")
        make(folder, options.runs)
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        print(f"arno ui with {options.runs:,} runs, in Chromium")
        began = time.perf_counter()
        with served(folder) as address:
            told("arno ui prints its address, the start of Python included", [time.perf_counter() - began])
            told("first visit: the list is drawn, without an index", [visit(browser, address)])
            told("next visit: the list is drawn", [visit(browser, address) for _ in range(options.again)])
            use(browser, address, options.again)
            with ExitStack() as processes:
                changes(browser, address, folder, processes)
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of an `arno ui` that ends with the block."""
    command = [sys.executable, "-m", "arno", "ui", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def told(what: str, seconds: list[float]) -> None:
    """Print a line."""
    print(f"{median(seconds):6.2f} s  {what}", flush=True)


def visit(browser: Any, address: str) -> float:
    """The seconds until the list of a new page is drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator("#runs tbody tr").first.wait_for()
    page.evaluate(PAINTED)
    seconds = time.perf_counter() - began
    page.close()
    return seconds


def use(browser: Any, address: str, again: int) -> None:
    """A condition, a run and a comparison of three runs, from the key or click to the picture."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.locator("#runs tbody tr").first.wait_for()
    found = []
    for i in range(again):
        page.locator("#words").fill(f"name=0000{i}")
        found.append(timed(page, lambda: page.keyboard.press("Enter"), "#count", "1 of"))
    told("a condition, from Enter to its lines", found)
    for what, names in (("one run is opened", ["00001"]), ("three runs are compared", ["00001", "00002", "00003"])):
        found = []
        for _ in range(again):
            found.append(timed(page, lambda names=names: follow(page, names), "#curves svg"))
            page.evaluate("() => { location.hash = '' }")
            page.locator("#list").wait_for()
        told(f"{what}: its curves are drawn", found)
    page.close()


def follow(page: Any, names: list[str]) -> None:
    """Open runs."""
    page.evaluate("names => { location.hash = names.map((name) => `run=${name}`).join('&') }", names)


def timed(page: Any, act: Callable[[], object], selector: str, text: str = "") -> float:
    """The seconds from an act to what it brings."""
    began = time.perf_counter()
    act()
    page.locator(selector, has_text=text).first.wait_for()
    page.evaluate(PAINTED)
    return time.perf_counter() - began


def started(processes: ExitStack, *words: str) -> subprocess.Popen[bytes]:
    """An `arno` that is killed when the stack ends."""
    process = subprocess.Popen([sys.executable, "-m", "arno", *words])
    processes.callback(process.wait)
    processes.callback(process.kill)
    return process


def changes(browser: Any, address: str, folder: Path, processes: ExitStack) -> None:
    """The seconds from what happens to a run until the page says so."""
    flag = folder.parent / "flag"
    (folder.parent / "fails.py").write_text(FAILS.format(flag=str(flag)))
    own = ["method=custom", f"method.target={folder.parent / 'fails.py'}:factory"]
    page = browser.new_page()
    page.goto(address)
    for name, words in (("killed", []), ("fails", own)):
        path = folder / name
        run = started(processes, "run", *LONG, f"out={path}", *words)
        page.locator("#runs tr", has_text=name).locator(".status.running").wait_for(timeout=60_000)
        follow(page, [name])
        status = "#facts .status"
        page.locator(status, has_text="running").wait_for()
        if name == "fails":
            told("a run fails", [timed(page, flag.touch, status, "failed")])
        else:
            told("a run is killed", [timed(page, run.kill, status, "killed")])
            run.wait()
            started(processes, "resume", str(path), "--quiet")
            while holder(path) is None:
                time.sleep(0.005)
            told("a run is resumed in a terminal", [timed(page, lambda: None, status, "running")])
        page.evaluate("() => { location.hash = '' }")
    page.close()


if __name__ == "__main__":
    main()
