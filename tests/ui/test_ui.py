"""`arno ui`: who is answered, what is answered, stop and resume; a real process, asked over a real socket."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from safetensors.torch import load_file

from arno.config import settings as configs
from arno.records import checksummed
from arno.records.folder import RunFolder
from arno.runs.progress import Quiet
from arno.runs.run import execute

pytest.importorskip("starlette", reason="needs arno[ui]")
pytest.importorskip("uvicorn", reason="needs arno[ui]")

SMALL = ("clients=5", "model=softmax", "engine=serial", "data.limit=200", "checkpoint.every=1", "eval.clients=true")
EVIL = "</script><img src=x onerror=alert(1)>"


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    return pytest.fail("it did not happen")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Served:
    """A folder of runs, the process that serves it, and requests to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "arno", "ui", str(folder), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", self.address)
        assert found, self.address
        self.port, self.token = int(found[1]), found[2]

    def ask(self, path: str, method: str = "GET", host: str = "", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        with closing(connection), connection.getresponse() as answer:
            endless = answer.getheader("content-type", "").startswith("text/event-stream")
            return Answer(answer.status, dict(answer.getheaders()), b"" if endless else answer.read())

    def own(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """A request with the cookie, from the page itself."""
        mine = {"Cookie": f"arno-{self.port}={self.token}", "Origin": f"http://127.0.0.1:{self.port}"}
        return self.ask(path, method, **(mine | headers))

    def json(self, path: str, method: str = "GET") -> Any:
        return json.loads(self.own(path, method).body)

    def status(self, name: str) -> str:
        return next((one["status"] for one in self.json("/api/list")["entries"] if one["name"] == name), "")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ui") / "runs"
    for method in ("fedavg", "scaffold"):
        words = [*SMALL, "rounds=3", f"method={method}", f"out={folder / method}"]
        execute(configs.plain(configs.compose(words)), Quiet(), pictures=False)
    shutil.copytree(folder / "fedavg", folder / EVIL.replace("/", "\u2215"))
    bad = shutil.copytree(folder / "fedavg", folder / "failed")
    RunFolder(bad).update_manifest(status="failed", reason=EVIL)
    (bad / "log.txt").write_text(EVIL)
    (folder.parent / "secret.txt").write_text("secret")
    made = Served(folder)
    yield made
    made.close()


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/charts.js", "/report.css", "/api/list", "/api/view?run=fedavg", "/events", "/report"]
)
def test_nothing_is_served_to_strangers(served: Served, path: str) -> None:
    assert served.ask(path).status == 403  # no token
    assert served.ask(path, Cookie=f"arno-{served.port}=wrong").status == 403
    if path != "/":
        assert served.ask(f"{path}{'&' if '?' in path else '?'}token={served.token}").status == 403  # only the page
    cookie = f"arno-{served.port}={served.token}"
    assert served.ask(path, host=f"evil.example:{served.port}", Cookie=cookie).status == 403
    assert served.ask(path, host="127.0.0.1", Cookie=cookie).status == 403
    assert served.own(path, Origin="http://evil.example").status == 403
    assert served.own(path, Origin="null").status == 403
    assert served.own(path, Sec_Fetch_Site="cross-site").status == 403
    assert served.own(path).status in (200, 422)


@pytest.mark.parametrize("action", ["stop", "resume"])
def test_actions_need_the_page_itself(served: Served, action: str) -> None:
    path = f"/api/{action}?run=failed"
    assert served.ask(path, "POST", Cookie=f"arno-{served.port}={served.token}").status == 403  # no Origin
    assert served.own(path, "POST", Origin="http://evil.example").status == 403
    assert served.own(path).status == 405
    assert served.status("failed") == "failed"


def test_the_token_is_exchanged_for_a_cookie(served: Served) -> None:
    first = served.ask(f"/?token={served.token}")
    assert (first.status, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert served.own("/").headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["..", "../secret.txt", "/etc", "fedavg/..", "fedavg/checkpoints", "", "gone", "linked"]
)
def test_nothing_outside_of_the_folder_is_named(served: Served, name: str) -> None:
    link = served.folder / "linked"
    link.unlink(missing_ok=True)
    link.symlink_to(served.folder.parent)
    for path in ("/api/view", "/report"):
        answer = served.own(f"{path}?run={quote(name, safe='')}")
        assert answer.status == 422
        assert "secret" not in answer.body.decode().replace("secret.txt", "")
    assert served.own(f"/{quote(name or 'x')}").status == 404


def test_a_link_in_a_run_shows_nothing(served: Served) -> None:
    run = shutil.copytree(served.folder / "fedavg", served.folder / "leaky")
    for name in ("log.txt", "panels.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(served.folder.parent / "secret.txt")
    text = served.own("/api/view?run=leaky").body.decode()
    assert '"error"' in text
    assert '"secret"' not in text
    shutil.rmtree(run)


def test_list_and_view(served: Served) -> None:
    found = served.json("/api/list?words=method%3Dscaffold")
    assert [one["name"] for one in found["entries"]] == ["scaffold"]
    assert "unknown key" in served.json("/api/list?words=metod%3Dx")["error"]
    view = served.json("/api/view?run=fedavg&run=scaffold")
    assert view["names"] == ["fedavg", "scaffold"]
    assert len(view["places"][0]["curves"]["lines"]) == 2
    one = served.json("/api/view?run=scaffold")
    assert "done after round 3" in one["log"][-1]
    assert one["sheets"][0]["title"].startswith("Clients")
    assert len(one["sheets"][0]["places"][""]) == 5
    report = served.own("/report?run=scaffold")
    assert "sandbox" in report.headers["content-security-policy"]
    assert b"<title>" in report.body


LONG = (*SMALL, "rounds=1500", "eval.clients=false", "eval.every=50", "checkpoint.every=20")


def start(folder: Path, out: str) -> subprocess.Popen[bytes]:
    words = [*LONG, f"out={folder / out}", "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "arno", "run", *words], **quiet)


def recorded(path: Path) -> int:
    """How many rounds are recorded so far."""
    file = path / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def test_killed_stopped_and_resumed_with_the_bits_of_the_command_line(served: Served) -> None:
    path = served.folder / "long"
    run = start(served.folder, "long")
    try:
        wait_for(lambda: served.status("long") == "running")
        wait_for(lambda: list((path / "checkpoints").glob("*.safetensors")))
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: served.status("long") == "stopped")
    before = recorded(path)
    assert "Started: arno resume" in served.json("/api/resume?run=long", "POST")["said"]
    wait_for(lambda: recorded(path) > before)
    assert "works on it" in served.json("/api/resume?run=long", "POST")["error"]
    assert "saved" in served.json("/api/stop?run=long", "POST")["said"]
    wait_for(lambda: served.status("long") == "stopped")
    assert "no process" in served.json("/api/stop?run=long", "POST")["error"]
    assert recorded(path) < 1500
    assert "Started" in served.json("/api/resume?run=long", "POST")["said"]
    wait_for(lambda: served.status("long") == "done")
    straight = served.folder.parent / "straight"
    execute(configs.plain(configs.compose([*LONG, f"out={straight}"])), Quiet(), pictures=False)
    timed = {"seconds", "train_seconds", "eval_seconds"}
    mine, theirs = (
        [{k: v for k, v in r.items() if k not in timed} for r in RunFolder(p).rows()] for p in (path, straight)
    )
    assert mine == theirs
    assert load_file(path / "final.safetensors")["w"].equal(load_file(straight / "final.safetensors")["w"])


def test_code_of_a_foreign_folder_is_not_run(served: Served) -> None:
    out = served.folder / "theirs"
    out.mkdir()
    for command in (
        f"arno compare method=custom method.target=evil.py:f out={out}",
        "arno compare method=fedavg",
        "sh -c x",
    ):
        (out / "compare.json").write_text(checksummed.text({"command": command, "cells": []}))
        assert "error" in served.json("/api/resume?run=theirs", "POST")
    shutil.rmtree(out)


def test_it_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arno", "ui", str(tmp_path / "gone"), "--no-browser"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "cannot be listed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_watch_says_how_a_run_ends(tmp_path: Path) -> None:
    run = start(tmp_path, "it")
    wait_for(lambda: (tmp_path / "it" / "metrics.jsonl").exists())
    command = [sys.executable, "-m", "arno", "watch", str(tmp_path / "it")]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    assert watch.stdout.readline().startswith("running")
    os.kill(run.pid, signal.SIGTERM)
    text, _ = watch.communicate(timeout=60)
    run.wait()
    assert text.splitlines()[-1].startswith("stopped")
    assert watch.returncode == 1
