"""`arno ui`: who is answered, what is answered, stop and resume; a real process, asked over a real socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from safetensors.torch import load_file
from serving import EVIL, LONG, SMALL, Served, recorded, start, wait_for

from arno.config import settings as configs
from arno.records import checksummed
from arno.records.folder import RunFolder
from arno.runs.progress import Quiet
from arno.runs.run import execute

pytest.importorskip("starlette", reason="needs arno[ui]")
pytest.importorskip("uvicorn", reason="needs arno[ui]")


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


def test_a_link_on_another_page_opens_it(served: Served) -> None:
    """From a notebook in the browser, say: a redirection that began elsewhere would lose the cookie."""
    linked = served.ask(f"/?token={served.token}", Sec_Fetch_Site="cross-site")
    assert linked.status == 200
    assert b"http-equiv='refresh' content='0;url=/'" in linked.body
    assert "SameSite=strict" in linked.headers["set-cookie"]
    assert served.ask("/?token=wrong", Sec_Fetch_Site="cross-site").status == 403
    assert served.ask(f"/?token={served.token}", Origin="http://evil.example").status == 403
    assert served.ask(f"/?token={served.token}", host="evil.example").status == 403


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
