"""`arno runs`: list, show, tag, compare and remove."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from arno.records.folder import RunFolder


@pytest.fixture
def two(arno, small) -> list[Path]:
    return [arno("run", *small, f"method={m}", f"out=runs/{m}", "--quiet").folder for m in ("fedavg", "scaffold")]


def test_list_and_find(arno, two):
    lines = arno("runs").out.splitlines()
    assert lines[0].split() == ["name", "method", "data", "status", "round", "score", "started", "time"]
    assert {line.split()[0] for line in lines[1:]} == {"runs/fedavg", "runs/scaffold"}
    assert all("4/4" in line and "test F1" in line for line in lines[1:])
    found = json.loads(arno("runs", "runs", "method=scaffold", "score>0", "--json").out)
    assert [one["path"] for one in found] == ["runs/scaffold"]
    assert found[0]["status"] == "done"
    assert found[0]["better"] == "more"
    best = json.loads(arno("runs", "--sort", "score", "--limit", 1, "--json").out)
    worst = json.loads(arno("runs", "--sort", "score", "--reverse", "--limit", 1, "--json").out)
    assert best[0]["score"] > worst[0]["score"]
    assert "1 more" in arno("runs", "--limit", 1).out
    assert arno("runs", "status=failed").out == "no run fulfils the conditions\n"


def test_a_failed_run_says_why(arno, small, monkeypatch):
    def fail(*arguments):
        raise MemoryError("none left")

    monkeypatch.setattr("arno.runs.loop.Loop.save", fail)
    assert arno("run", *small, "out=it").status == 2
    found = arno("runs", "status=failed").out
    assert "failed: it: MemoryError: none left" in found
    assert "MemoryError" in (Path("it") / "log.txt").read_text()


def test_nothing_and_mistakes(arno, two):
    Path("empty").mkdir()
    assert arno("runs", "empty").out == "no runs in empty\n"
    assert "cannot be listed" in arno("runs", "gone").error
    assert "cannot be listed (embedded null byte)" in arno("runs", "show", "\0").error
    assert "one folder" in arno("runs", "empty", "runs").error
    assert "did you mean 'method'" in arno("runs", "metod=x").error
    assert "is no run" in arno("runs", "show", "empty").error
    assert "two runs" in arno("runs", "diff", two[0]).error
    assert "--limit" in arno("runs", "--limit", -1).error
    assert "one word" in arno("runs", "tag", "two words", two[0]).error


def test_show_diff_and_tag(arno, two):
    shown = arno("runs", "show", two[1]).out
    assert "method=scaffold" in shown
    assert "done after round 4" in shown
    assert json.loads(arno("runs", "show", two[1], "--json").out)["settings"]["method"] == "scaffold"
    rows = {line.split()[0]: line.split()[1:] for line in arno("runs", "diff", *two).out.splitlines()[1:]}
    assert rows["method.kind"] == ["fedavg", "scaffold"]
    assert "clients" not in rows
    arno("runs", "tag", "good,new", *two)
    arno("runs", "tag", "good", two[0], "--remove")
    assert "scaffold" in arno("runs", "tag=good").out
    assert "fedavg" not in arno("runs", "tag=good").out
    assert "#new" in arno("runs", "tag=new", "method=fedavg").out


def test_rm_asks_and_keeps_what_is_not_its_own(arno, two, monkeypatch):
    assert "add --yes" in arno("runs", "rm", two[0]).error
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: "n")
    assert arno("runs", "rm", two[0]).status == 1
    assert two[0].exists()
    monkeypatch.setattr("builtins.input", lambda text: "y")
    assert arno("runs", "rm", two[0]).status == 0
    assert not two[0].exists()
    Path("mine").mkdir()
    assert "is no run" in arno("runs", "rm", "mine", "--yes").error
    assert "is no run" in arno("runs", "rm", ".", "--yes").error
    shutil.copytree(two[1], "copy")
    RunFolder(Path("copy")).update_manifest(status="failed")
    assert "removed copy" in arno("runs", "rm", "status=failed", "--yes").out
    assert two[1].exists()


def test_texts_of_a_folder_cannot_move_the_cursor(arno, two):
    RunFolder(two[0]).update_manifest(status="failed", reason="\x1b[2Jgone")
    assert "\x1b" not in arno("runs").out
