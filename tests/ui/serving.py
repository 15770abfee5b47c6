"""A served folder of runs for tests: the process, requests to it, and runs that last."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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

    def __init__(self, folder: Path, *options: str, cwd: Path | None = None, browser: str = "") -> None:
        self.folder = folder
        command = [sys.executable, "-P", "-m", "arno", "ui", str(folder), *options]
        command += [] if browser else ["--no-browser"]
        env = os.environ | {"BROWSER": browser}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd, env=env)
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


LONG = (*SMALL, "rounds=1500", "eval.clients=false", "eval.every=50", "checkpoint.every=20")


def start(path: Path, *words: str) -> subprocess.Popen[bytes]:
    """A run in a process of its own, as a user starts one in a terminal."""
    return command("run", *LONG, f"out={path}", "--quiet", *words)


def command(*words: str) -> subprocess.Popen[bytes]:
    """An `arno` of its own, whose output nobody reads."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "arno", *words], **quiet)


def recorded(path: Path) -> int:
    """How many rounds are recorded so far."""
    file = path / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0
