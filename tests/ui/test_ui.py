"""`arno ui`: who is answered, what is answered, stop and resume; a real process, asked over a real socket."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from safetensors.torch import load_file
from serving import EVIL, LONG, SMALL, Served, recorded, start, wait_for

from arno.config import settings as configs
from arno.core.metric import Metric
from arno.errors import ArnoError
from arno.records import checksummed
from arno.records.folder import RunFolder
from arno.runs.progress import Quiet
from arno.runs.run import execute
from arno.ui import views
from arno.ui.control import same_command

pytest.importorskip("starlette", reason="needs arno[ui]")
pytest.importorskip("uvicorn", reason="needs arno[ui]")


#: Names of no run in the served folder.
ODD = ("..", "../secret.txt", "/etc", "fedavg/..", "fedavg/checkpoints", "", "gone", "linked", "./fedavg", "fedavg/")
ODD += ("fedavg\0", "~", "file:///etc/passwd", "fedavg\r\nX: y", "a" * 3000)


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


def test_the_token_counts_in_one_place_and_the_name_must_be_exact(served: Served) -> None:
    port, token = served.port, served.token
    cookie = f"arno-{port}={token}"
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Cookie": f"arno={token}"},
        {"Cookie": f"arno-{port}={token[:-1]}"},
        {"Cookie": f"arno-{port}="},
        {"Cookie": f"{cookie}; arno-{port}=x"},
    ):
        assert served.ask("/api/list", **headers).status == 403
    for host in (
        f"localhost.:{port}",
        f"127.1:{port}",
        f"0.0.0.0:{port}",
        f"127.0.0.1:{port}.evil.example",
        "127.0.0.1:1",
    ):
        forwarded = {"X_Forwarded_Host": f"127.0.0.1:{port}", "Forwarded": f"host=127.0.0.1:{port}"}
        assert served.ask("/api/list", host=host, Cookie=cookie, **forwarded).status == 403
    for origin in (
        "",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}.evil.example",
        f"http://localhost:{port}",
    ):
        assert served.own("/api/list", Origin=origin).status == 403
    assert served.own("/api/list", Sec_Fetch_Site="Cross-Site").status == 403
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get"):
        assert served.own("/api/list", method).status == 405
        assert served.own("/api/stop?run=failed", method).status == 405
    assert served.ask(f"/?token={token}", "POST", Origin=f"http://127.0.0.1:{port}").status == 403
    assert served.ask(f"/?token=x&token={token}").status == 403


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
    ("line", "headers", "status"),
    [
        ("GET /api/list HTTP/1.1", ("{cookie}",), 400),  # no Host
        ("GET /api/list HTTP/1.0", ("{cookie}",), 403),
        ("GET /api/list HTTP/1.1", ("Host: {host}", "Host: evil.example", "{cookie}"), 400),
        ("GET http://evil.example/api/list HTTP/1.1", ("Host: {host}", "{cookie}"), 404),
        ("GET /../secret.txt HTTP/1.1", ("Host: {host}", "{cookie}"), 404),
        ("GET /%2e%2e/secret.txt HTTP/1.1", ("Host: {host}", "{cookie}"), 404),
        ("GET /%252e%252e%252fsecret.txt HTTP/1.1", ("Host: {host}", "{cookie}"), 404),
        ("GET //etc/passwd HTTP/1.1", ("Host: {host}", "{cookie}"), 404),
        ("GET /fedavg/log.txt HTTP/1.1", ("Host: {host}", "{cookie}"), 404),
        ("GET /report?run=%252e%252e%252fsecret.txt HTTP/1.1", ("Host: {host}", "{cookie}"), 422),
        ("OPTIONS /api/stop HTTP/1.1", ("Host: {host}", "Origin: http://evil.example"), 403),
        (f"GET /{'a' * 1_000_000} HTTP/1.1", ("Host: {host}",), 400),
        ("GET / HTTP/1.1", ("Host: {host}", f"X: {'a' * 1_000_000}"), 400),
        ("POST /api/stop?run=failed HTTP/1.1", ("Host: {host}", "Content-Length: 999999999"), 403),  # not waited for
    ],
)
def test_requests_that_no_browser_sends(served: Served, line: str, headers: tuple[str, ...], status: int) -> None:
    own = {"host": f"127.0.0.1:{served.port}", "cookie": f"Cookie: arno-{served.port}={served.token}"}
    sent = "\r\n".join([line, *(header.format(**own) for header in headers), "Connection: close", "", ""])
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):  # a request that is too long is not read to its end
            connection.sendall(sent.encode())
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(100_000)
    assert answer.startswith(f"HTTP/1.1 {status}".encode()) or (not answer and status == 400)
    assert b"secret" not in answer.replace(b"secret.txt", b"")


def test_a_request_that_does_not_arrive_is_not_waited_for(served: Served) -> None:
    begun = b"GET / HTTP/1.1\r\nX: "
    with contextlib.ExitStack() as stack:
        slow, late, events = (
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=30)) for _ in range(3)
        )
        slow.sendall(begun)
        late.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + begun)  # a whole request, then a part of one
        cookie = f"Cookie: arno-{served.port}={served.token}"
        events.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n{cookie}\r\n\r\n".encode())
        assert slow.recv(100) == b""
        while late.recv(10_000):
            pass
        assert b"200 OK" in events.recv(10_000)
        ready, _, _ = select.select([events], [], [], 0)
        assert not ready or events.recv(10_000)  # an answer without an end is not cut off


@pytest.mark.skipif(sys.platform != "linux", reason="another way to start a browser")
def test_the_browser_gets_a_token_that_works_once(served: Served, tmp_path: Path) -> None:
    """All users of the machine can read the command line of the browser."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    made = Served(served.folder, browser=f"{browser} %s")
    try:
        wait_for(opened.exists)
        path = f"/{opened.read_text().strip().split('/', 3)[3]}"
        assert made.token not in path
        assert made.token in made.ask(path).headers["set-cookie"]
        assert made.ask(path).status == 403
        assert made.ask(f"/?token={made.token}").status == 303  # the printed address can be opened again
    finally:
        made.close()


def test_a_link_on_another_page_opens_it(served: Served) -> None:
    """From a notebook in the browser, say: a redirection that began elsewhere would lose the cookie."""
    linked = served.ask(f"/?token={served.token}", Sec_Fetch_Site="cross-site")
    assert linked.status == 200
    assert b"http-equiv='refresh' content='0;url=/'" in linked.body
    assert "SameSite=strict" in linked.headers["set-cookie"]
    assert served.ask("/?token=wrong", Sec_Fetch_Site="cross-site").status == 403
    assert served.ask(f"/?token={served.token}", Origin="http://evil.example").status == 403
    assert served.ask(f"/?token={served.token}", host="evil.example").status == 403


@pytest.mark.parametrize("name", ODD)
def test_nothing_outside_of_the_folder_is_named(served: Served, name: str) -> None:
    link = served.folder / "linked"
    link.unlink(missing_ok=True)
    link.symlink_to(served.folder.parent)
    for path, status in (("/api/view", 200), ("/report", 422)):
        answer = served.own(f"{path}?run={quote(name, safe='')}")
        assert answer.status == status
        assert "there is no such run in this folder" in answer.body.decode()
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


def test_a_link_in_a_cell_and_a_cell_elsewhere_show_nothing(served: Served) -> None:
    out, elsewhere = served.folder / "pair", served.folder.parent / "elsewhere"
    shutil.copytree(served.folder / "fedavg", out / "cell")
    shutil.copytree(served.folder / "fedavg", elsewhere)
    for cell, link in (("cell", "panels.json"), ("../../elsewhere", None)):
        cells = [{"folder": cell, "name": "fedavg", "setting": "", "seed": 0}]
        (out / "compare.json").write_text(checksummed.text({"command": "arno compare", "cells": cells}))
        if link:
            (out / "cell" / link).unlink(missing_ok=True)
            (out / "cell" / link).symlink_to(served.folder.parent / "secret.txt")
        assert "link that leaves" in served.json("/api/view?run=pair")["error"]
        assert served.own("/report?run=pair").status == 422
    shutil.rmtree(out)
    shutil.rmtree(elsewhere)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_no_text(served: Served) -> None:
    run = os.path.join(os.fsencode(served.folder), b"caf\xe9")
    shutil.copytree(os.fsencode(served.folder / "fedavg"), run)
    assert "caf\\udce9" in [one["name"] for one in served.json("/api/list")["entries"]]
    assert "rename the folder" in served.json("/api/view?run=caf%5Cudce9")["error"]  # Parquet's reader refuses it
    assert served.own("/report?run=caf%5Cudce9").status == 422
    shutil.rmtree(run)


def test_a_strange_command_hides_nothing_else(served: Served) -> None:
    run = shutil.copytree(served.folder / "fedavg", served.folder / "quoted")
    RunFolder(run).update_manifest(command="arno run 'unfinished")
    assert served.json("/api/view?run=quoted")["names"] == ["fedavg"]
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


def test_ticked_runs_with_other_settings_are_drawn_together(served: Served) -> None:
    out = served.folder / "other"
    words = ["clients=4", *SMALL[1:], "rounds=2", "local.lr=0.02", "local.epochs=2", "partition.alpha=0.3"]
    execute(configs.plain(configs.compose([*words, f"out={out}"])), Quiet(), pictures=False)
    view = served.json("/api/view?run=fedavg&run=scaffold&run=other")
    assert view["names"] == ["fedavg (fedavg)", "scaffold (scaffold)", "other (fedavg)"]  # five settings are no name
    assert [len(place["curves"]["lines"]) for place in view["places"]] == [3]
    assert any("other (fedavg) runs with" in line and "clients=4" in line for line in view["apart"])
    assert view["budgets"][0].startswith("Unequal budgets, per run: ")
    shutil.rmtree(out)


def test_runs_without_a_common_score_are_not_said_to_have_failed(served: Served) -> None:
    out = served.folder / "numbers"
    words = ["data=sklearn", "data.name=diabetes", "clients=4", "model=softmax", "engine=serial", "rounds=2"]
    execute(configs.plain(configs.compose([*words, f"out={out}"])), Quiet(), pictures=False)
    view = served.json("/api/view?run=fedavg&run=numbers")
    assert view["problems"] == ["numbers (fedavg), seed 0: not in the means: it recorded no test F1"]
    assert "failed" not in " ".join(note for sheet in view["sheets"] for note in sheet["notes"])
    report = served.own("/report?run=fedavg&run=numbers").body
    assert b"1 failed" not in report
    [sheet] = served.json("/api/view?run=numbers")["sheets"]
    assert "data.client_test" in " ".join(sheet["notes"])
    shutil.rmtree(out)


def test_a_problem_without_samples_has_no_test_samples(served: Served) -> None:
    out = served.folder / "plain"
    execute(configs.plain(configs.compose(["problem=quadratic", "rounds=2", f"out={out}"])), Quiet(), pictures=False)
    [sheet] = served.json("/api/view?run=plain")["sheets"]
    assert "data.client_test" not in " ".join(sheet["notes"])
    shutil.rmtree(out)


def test_a_trial_that_diverged_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [("0.001", 2.0, False, False), ("0.01", 1.0, False, True), ("0.1", 1.5, False, False)]
    group: Any = SimpleNamespace(label="fedavg", space={"local.lr": "log(0.001, 1.0)"}, best={"local.lr": 0.01})
    tuning: Any = SimpleNamespace(metric=Metric("val_rmse", "RMSE", "less", low=0), groups=[group])
    for more, beyond in (([], False), ([("1.0", 1e22, True, False)], True)):
        monkeypatch.setattr(views.search, "tried", lambda group, key, more=more: tried + more)
        [panel] = views.trials(tuning)
        assert panel["low"] is None
        assert (panel["high"] is not None and panel["high"] < 100) == beyond
        assert ("drawn at its end" in panel["text"]) == beyond


def test_the_clients_of_a_run(served: Served) -> None:
    [sheet] = served.json("/api/view?run=fedavg")["sheets"]
    assert sheet["title"] == "Clients, the largest drift first"
    drift = [row[1 + sheet["columns"].index("drift ‖Δ‖")] for row in sheet["places"][""]]
    assert [len(text) for text in drift] == [6] * 5  # the same digits
    assert sorted(map(float, drift), reverse=True) == [float(text) for text in drift]
    run = shutil.copytree(served.folder / "fedavg", served.folder / "silent")
    (run / "clients.parquet").unlink()
    shutil.rmtree(run / "checkpoints")
    RunFolder(run).update_manifest(status="failed", reason="before its first checkpoint", checksums=None)
    [sheet] = served.json("/api/view?run=silent")["sheets"]
    assert (sheet["title"], sheet["columns"]) == ("Clients", ["samples", "largest classes"])
    assert "data.client_test" in " ".join(sheet["notes"])
    shutil.rmtree(run)


def test_killed_stopped_and_resumed_with_the_bits_of_the_command_line(served: Served) -> None:
    path = served.folder / "long"
    run = start(path)
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


def test_modules_of_the_current_folder_are_not_run(tmp_path: Path) -> None:
    """As with the command `arno`; a foreign run may hold a file with the name of a library."""
    for name in ("yaml", "torch", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('was run', 'w')")
    run = start(tmp_path / "it", "rounds=200000")
    wait_for(lambda: list((tmp_path / "it" / "checkpoints").glob("*.safetensors")))
    run.kill()
    run.wait()
    made = Served(tmp_path, cwd=tmp_path)
    try:
        before = recorded(tmp_path / "it")
        assert "Started" in made.json("/api/resume?run=it", "POST")["said"]
        wait_for(lambda: recorded(tmp_path / "it") > before)
        made.json("/api/stop?run=it", "POST")
        wait_for(lambda: made.status("it") == "stopped")
    finally:
        made.close()
    assert not (tmp_path / "was run").exists()


def test_code_of_a_foreign_folder_is_not_run(served: Served) -> None:
    out = served.folder / "theirs"
    out.mkdir()
    for command in (
        f"arno compare method=custom method.target=evil.py:f out={out}",
        f"arno compare method=fedavg '+track=evil.py:f' out={out}",
        f"arno compare method=fedavg ' track=evil.py:f' out={out}",
        f"arno compare method=fedavg engine=ray engine.address=10.0.0.1:9 out={out}",
        "arno compare method=fedavg",
        "sh -c x",
    ):
        (out / "compare.json").write_text(checksummed.text({"command": command, "cells": []}))
        assert "error" in served.json("/api/resume?run=theirs", "POST")
    shutil.rmtree(out)


def test_options_of_a_search_are_no_code(served: Served) -> None:
    out = served.folder / "theirs"
    out.mkdir()
    for options, known in (("--trials 5 --jobs=1 --no-pruning", True), ("--config evil.yaml", False)):
        command = f"arno tune method=fedavg,scaffold {options} out={out}"
        (out / "compare.json").write_text(checksummed.text({"command": command, "cells": []}))
        if known:
            assert same_command(out) == command.split()[1:]
        else:
            with pytest.raises(ArnoError, match="may run code"):
                same_command(out)
    shutil.rmtree(out)


def test_it_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arno", "ui", str(tmp_path / "gone"), "--no-browser"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "cannot be listed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_watch_says_how_a_run_ends(tmp_path: Path) -> None:
    run = start(tmp_path / "it")
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
