"""For all tests: threads that fail are noticed. For tests of pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(autouse=True)
def threads_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs in this process sets its own hook; after it, pytest would no longer see a failed thread."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install arno[browser]")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs a Chromium on the path: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
