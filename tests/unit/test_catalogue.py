"""The list of runs: what it reads, what it does with damage, its index, its conditions, and what it deletes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import pytest

from arno.analysis import run_index as catalogues
from arno.analysis.delete_runs import remove
from arno.analysis.run_entry import Entry, settings
from arno.analysis.run_filters import ordered, parse, select
from arno.analysis.run_index import INDEX, Catalogue
from arno.config import settings as configs
from arno.errors import ArnoError
from arno.records import checksummed, metrics_file
from arno.records.folder import RunFolder
from arno.records.lock import holder, writing
from arno.runs.progress import Quiet
from arno.runs.run import execute

SMALL = ("clients=5", "rounds=3", "model=softmax", "engine=serial", "data.limit=200", "checkpoint.every=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; copies of them are what the tests change."""
    folder = tmp_path_factory.mktemp("made")
    for name, method in (("a", "fedavg"), ("b", "scaffold")):
        words = [*SMALL, f"method={method}", f"out={folder / name}"]
        execute(configs.plain(configs.compose(words)), Quiet(), pictures=False)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the folder that it is told."""
    program = """
import sys, time
from pathlib import Path
from arno.records.lock import writing
with writing(Path(sys.stdin.readline().strip()), "a run"):
    print("held", flush=True)
    time.sleep(60)
"""
    made = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield made
    made.kill()
    made.communicate()


def hold(process: subprocess.Popen[str], folder: Path) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{folder}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "held\n"


def set_manifest(run: Path, **values: object) -> None:
    RunFolder(run).update_manifest(**values)


def test_a_run_is_what_its_records_say(folder: Path) -> None:
    found = Catalogue(folder).read()
    assert found.keys() == {"a", "b"}
    one, rows = found["b"], metrics_file.read(folder / "b")
    assert (one.kind, one.method, one.data, one.status, one.round, one.rounds) == (
        "run",
        "scaffold",
        "digits",
        "done",
        3,
        3,
    )
    first = RunFolder(folder / "b").metrics()[0]
    assert (one.metric, one.label, one.better, one.score) == (
        first.name,
        first.label,
        first.better,
        rows[-1][first.name],
    )
    assert one.seconds == RunFolder(folder / "b").manifest()["seconds"]
    assert abs(time.time() - one.started) < 3600


def test_settings_are_read_as_the_yaml_parser_reads_them(folder: Path) -> None:
    odd = ["data.limit=100", "local.lr=1e-05", "local.epochs='choice(1, 5)'", "out=it", "partition.alpha=.5"]
    words = (
        [*SMALL, "method=compose", "method.parts=[control_variates,server_adaptive]"],
        [*SMALL, *odd],
        [*SMALL, "local.lr=[.1,.1,.1,.1,.1]"],
    )
    for chosen in words:
        config = configs.plain(configs.compose(chosen))
        RunFolder(folder / "a").write_config(config)
        assert settings(folder / "a") == dict(configs.flat(RunFolder(folder / "a").config()))


def test_running_is_what_a_process_holds(folder: Path, other: subprocess.Popen[str]) -> None:
    set_manifest(folder / "a", status="running")
    assert Catalogue(folder).read()["a"].why == "killed"  # no process holds the lock
    assert Catalogue(folder).read()["a"].status == "stopped"
    (folder / "a" / ".lock").write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "what": "a run"}))
    assert Catalogue(folder).read()["a"].status == "stopped"  # a lock file alone says nothing
    hold(other, folder / "a")
    shown = Catalogue(folder)
    one = shown.read()["a"]
    assert (one.status, one.why) == ("running", f"process {other.pid}")
    held = holder(folder / "a")
    assert held is not None
    assert held.here
    other.kill()
    other.wait()
    assert shown.again(["a"])["a"].status == "stopped"
    assert holder(folder / "a") is None


def test_a_lock_that_lies_about_its_process_is_not_here(folder: Path, other: subprocess.Popen[str]) -> None:
    hold(other, folder / "a")
    (folder / "a" / ".lock").write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "what": "a run"}))
    held = holder(folder / "a")
    assert held is not None
    assert not held.here
    (folder / "b" / ".lock").symlink_to(folder / "a" / ".lock")
    assert holder(folder / "b") is None


def test_looking_at_a_lock_does_not_take_it_away(folder: Path) -> None:
    with writing(folder / "a", "a run"):
        assert Catalogue(folder).read()["a"].status == "done"
        program = "import sys, pathlib; from arno.records.lock import holder; print(holder(pathlib.Path(sys.argv[1])))"
        done = subprocess.run([sys.executable, "-c", program, folder / "a"], capture_output=True, text=True, check=True)
        assert f"pid={os.getpid()}, here=True" in done.stdout


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "metrics.jsonl"])
@pytest.mark.parametrize("how", ["cut", "garbage", "link", "pipe"])
def test_damage_is_named_and_hides_no_other_run(folder: Path, name: str, how: str) -> None:
    path = folder / "a" / name
    text = path.read_bytes()
    path.unlink()
    if how == "link":
        (folder / "elsewhere").write_bytes(text)
        path.symlink_to(folder / "elsewhere")
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(text[: len(text) // 2] + b"\n" if how == "cut" else b"\xff\x00{[" * 50)
    found = Catalogue(folder).read()
    assert found["b"].status == "done"
    assert found["a"].status == "damaged"
    assert name in found["a"].why


def test_other_programs_have_such_files_too(tmp_path: Path) -> None:
    for name in ("config.yaml", "manifest.json", "compare.json", "tags.json"):
        (tmp_path / name).write_text('{"status": "mine"}\n')
    assert Catalogue(tmp_path).read() == {}
    assert not (tmp_path / INDEX).exists()
    with pytest.raises(ArnoError, match="is no run"):
        remove(tmp_path)


def test_links_and_hidden_folders_are_not_entered(folder: Path, made: Path) -> None:
    (folder / "there").symlink_to(made)
    shutil.copytree(made / "a", folder / ".hidden" / "a")
    assert Catalogue(folder).read().keys() == {"a", "b"}


def test_the_index_is_used_and_noticed_to_be_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Catalogue(folder).read()
    read = catalogues.read_entry
    monkeypatch.setattr(catalogues, "read_entry", lambda *a: pytest.fail(f"{a[0]} was read again"))
    assert Catalogue(folder).read() == first
    names: list[str] = []
    monkeypatch.setattr(catalogues, "read_entry", lambda *a: names.append(a[0]) or read(*a))
    set_manifest(folder / "a", status="failed", reason="no memory")
    shutil.rmtree(folder / "b")
    found = Catalogue(folder).read()
    assert names == ["a"]
    assert found.keys() == {"a"}
    assert (found["a"].status, found["a"].why) == ("failed", "no memory")


@pytest.mark.parametrize("damage", [b"", b"{}", b"\x00" * 100, None])
def test_a_damaged_or_forged_index_is_rebuilt(folder: Path, damage: bytes | None) -> None:
    first = Catalogue(folder).read()
    text = (folder / INDEX).read_bytes()
    if damage is None:  # a right checksum over wrong types
        body = json.dumps({"a": [{}, {"name": ["x"]}]}).encode()
        damage = f"{catalogues.FORMAT} {catalogues.checksum(body)}\n".encode() + body
    (folder / INDEX).write_bytes(damage)
    assert Catalogue(folder).read() == first
    assert (folder / INDEX).read_bytes() == text


def test_every_byte_of_the_index_counts(folder: Path) -> None:
    first, text = Catalogue(folder).read(), (folder / INDEX).read_bytes()
    for i in range(0, len(text), 97):
        (folder / INDEX).write_bytes(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])
        assert Catalogue(folder).read() == first


def test_without_a_place_for_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(catalogues.disk, "write", refuse)
    assert len(Catalogue(folder).read()) == 2
    assert not (folder / INDEX).exists()
    (folder / INDEX).mkdir()
    monkeypatch.undo()
    assert len(Catalogue(folder).read()) == 2


def test_two_processes_list_at_once(folder: Path) -> None:
    for i in range(20):
        shutil.copytree(folder / "a", folder / f"c{i}")
    program = "import sys; from arno.analysis.run_index import Catalogue; print(len(Catalogue(sys.argv[1]).read()))"
    command = [sys.executable, "-c", program, str(folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [one.communicate()[0] for one in both] == ["22\n"] * 3
    assert catalogues.load(folder).keys() >= {"a", "b", "c0"}
    assert not list(folder.glob("*.part"))


def comparison(folder: Path, metric: str | None = None) -> Path:
    """The two runs as the cells of a comparison."""
    out = folder / "both"
    for name, method in (("a", "fedavg"), ("b", "scaffold")):
        shutil.copytree(folder / name, out / f"method={method}")
    cells = [{"folder": f"method={m}", "name": m, "setting": "", "seed": 0} for m in ("fedavg", "scaffold")]
    record = {
        "command": "arno compare method=fedavg,scaffold out=both",
        "metric": metric,
        "seconds": 2.0,
        "cells": cells,
    }
    (out / "compare.json").write_text(checksummed.text(record))
    return out


def test_a_comparison_is_its_cells(folder: Path) -> None:
    out = comparison(folder)
    found = Catalogue(folder).read()
    both = found["both"]
    assert (both.kind, both.status, both.method, both.round, both.rounds) == (
        "comparison",
        "done",
        "fedavg, scaffold",
        2,
        2,
    )
    assert both.score == max(found["a"].score, found["b"].score)
    assert found["both/method=fedavg"].part_of == "both"
    set_manifest(out / "method=fedavg", status="failed")
    both = Catalogue(folder).read()["both"]
    assert (both.status, both.why, both.round, both.best) == ("failed", "1 failed", 1, "scaffold")
    assert {entry.name for entry in select(Catalogue(folder).read(), [], folder)} == {"a", "b", "both"}
    assert len(select(Catalogue(folder).read(), [], folder, cells=True)) == 5
    assert len(select(Catalogue(out).read(), [], out)) == 3  # the comparison itself is listed with its cells


ENTRIES = {
    name: Entry(name, status=status, method=method, score=score, better=better, started=started, tags=[name])
    for name, status, method, score, better, started in (
        ("x", "done", "fedavg", 0.95, "more", time.time() - 3600),
        ("y", "failed", "scaffold", 0.5, "more", time.time() - 10 * 86400),
        ("z", "done", "scaffold", float("nan"), "more", float("nan")),
    )
}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("method=scaffold", "yz"),
        ("method=SCAFFOLD,fedavg", "xyz"),
        ("method=fed*", "x"),
        ("method!=fedavg", "yz"),
        ("status=failed", "y"),
        ("score>0.9", "x"),
        ("score<=0.5", "y"),
        ("score!=0.5", "xz"),
        ("since=7d", "x"),
        ("before=7d", "y"),
        ("tag=x status=done", "x"),
        ("method=scaffold score>0.9", ""),
    ],
)
def test_conditions(words: str, names: str) -> None:
    assert "".join(entry.name for entry in select(ENTRIES, parse(words.split()), Path())) == names


def test_a_killed_run_is_found_by_the_word_that_the_list_shows() -> None:
    entries = {why or "kept": Entry(why or "kept", status="stopped", why=why) for why in ("killed", "")}
    found = {
        word: [e.name for e in select(entries, parse([word]), Path())] for word in ("status=killed", "status=stopped")
    }
    assert found == {"status=killed": ["killed"], "status=stopped": ["killed", "kept"]}


def test_conditions_on_settings(folder: Path) -> None:
    found = Catalogue(folder).read()
    assert len(select(found, parse(["model=softmax", "data.limit<300"]), folder)) == 2
    assert select(found, parse(["partition.alpha=77"]), folder) == []
    comparison(folder)
    entries = Catalogue(folder).read()
    assert {e.name for e in select(entries, parse(["method.kind=scaffold"]), folder)} == {"b", "both"}


@pytest.mark.parametrize(
    "word", ["metod=x", "status=faild", "score>high", "since=yesterday", "since>7d", "score=", "kind=runs"]
)
def test_wrong_conditions_are_refused(folder: Path, word: str) -> None:
    with pytest.raises(ArnoError):
        select(Catalogue(folder).read(), parse([word]), folder)


def test_the_best_is_first_whatever_better_means() -> None:
    found = [Entry("low", score=0.1, better="less"), Entry("high", score=0.9, better="less"), Entry("none")]
    assert [entry.name for entry in ordered(found, "score")] == ["low", "high", "none"]
    assert [entry.name for entry in ordered(found, "score", reverse=True)] == ["high", "low", "none"]
    assert isnan(ordered(ENTRIES.values(), "started")[-1].started)
    with pytest.raises(ArnoError, match="unknown key"):
        ordered(found, "colour")


def test_removing_takes_what_arno_wrote_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data.npy").write_text("x")
    (folder / "a" / "notes.txt").write_text("mine")
    (folder / "a" / "linked").symlink_to(tmp_path / "precious")
    shutil.rmtree(folder / "a" / "checkpoints")
    (folder / "a" / "checkpoints").symlink_to(tmp_path / "precious")
    left = remove(folder / "a")
    assert sorted(Path(one).name for one in left) == ["linked", "notes.txt"]
    assert sorted(path.name for path in (folder / "a").iterdir()) == ["linked", "notes.txt"]
    assert (tmp_path / "precious" / "data.npy").exists()
    assert remove(folder / "b") == []
    assert not (folder / "b").exists()


@pytest.mark.parametrize(("metric", "better", "pick"), [("test_loss", "less", min), ("test_f1", "more", max)])
def test_a_comparison_has_the_direction_of_its_own_score(folder: Path, metric: str, better: str, pick) -> None:
    entries = Catalogue(comparison(folder, metric)).read()
    last = {entries[name].method: entries[name].scores[metric] for name in entries if name != "."}
    assert entries["."].better == better
    assert entries["."].best == pick(last, key=lambda name: last[name])
    assert entries["."].score == pick(last.values())


def test_a_comparison_is_removed_with_its_cells(folder: Path) -> None:
    out = comparison(folder)
    assert remove(out) == []
    assert not out.exists()
    assert Catalogue(folder).read().keys() == {"a", "b"}


def test_cells_outside_of_the_comparison_are_not_removed(folder: Path) -> None:
    out = comparison(folder)
    cells = [{"folder": f, "name": "x", "setting": "", "seed": 0} for f in ("../a", str(folder / "b"), "..", ".")]
    (out / "compare.json").write_text(checksummed.text({"command": "x", "cells": cells}))
    remove(out)
    assert {"a", "b"} <= Catalogue(folder).read().keys()


def test_what_runs_and_what_is_a_link_is_not_removed(folder: Path, other: subprocess.Popen[str]) -> None:
    (folder / "link").symlink_to(folder / "b")
    with pytest.raises(ArnoError, match="is a link"):
        remove(folder / "link")
    out = comparison(folder)
    hold(other, out / "method=fedavg")
    with pytest.raises(ArnoError, match="is being written"):
        remove(out)
    assert (out / "method=scaffold" / "config.yaml").exists()
