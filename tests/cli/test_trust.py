"""Reading a run folder runs no code; continuing one imports only files that this user used for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import arno
from arno import ArnoError, cli
from arno.records import checksummed
from arno.records.checkpoint import load, save
from arno.records.folder import RunFolder
from arno.runs.result import RunResult

METHOD = """
from pathlib import Path
from arno import Part
Path(__file__).with_name("imported").touch()
def factory() -> list[Part]:
    return []
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run with a method of one's own, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("mine.py").write_text(METHOD)
    words = ("method=custom", "method.target=mine.py:factory", "engine=serial", "clients=4", "data.limit=200")
    arno.run(*words, rounds=2, out="run")
    Path("imported").unlink()
    return tmp_path / "run"


def forget() -> None:
    """Import the file again the next time."""
    import sys

    for name in [name for name in sys.modules if name.startswith("arno_target_mine")]:
        del sys.modules[name]


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    return int(ended.value.code or 0)


def test_the_user_who_started_a_run_continues_it(mine: Path) -> None:
    forget()
    assert arno.resume(mine, "rounds=3").rows[-1]["round"] == 3
    assert Path("imported").exists()


def test_a_file_that_changed_is_not_imported(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    with Path("mine.py").open("a") as file:
        file.write("# changed\n")
    assert status("resume", str(mine), "rounds=3") == 2
    assert "--trust" in capsys.readouterr().err
    assert not Path("imported").exists()
    assert status("resume", str(mine), "rounds=3", "--trust", "--quiet") == 0
    assert Path("imported").exists()


def test_attack_a_run_folder_with_an_evil_target_is_not_executed_by_resume(mine: Path) -> None:
    forget()
    copy = shutil.copytree(mine, mine.with_name("copy"))
    with pytest.raises(ArnoError, match="which you have not used for this run"):
        arno.resume(copy, "rounds=3")
    with pytest.raises(ArnoError, match="which you have not used for this run"):
        _ = RunResult(copy).problem
    assert not Path("imported").exists()
    assert arno.resume(copy, "rounds=3", "method.target=mine.py:factory").rows[-1]["round"] == 3


def test_a_checkpoint_that_names_another_file_is_not_trusted(mine: Path) -> None:
    forget()
    Path("evil.py").write_text(METHOD.replace('"imported"', '"evil"'))
    path = RunResult(mine).folder.saved()[-1]
    saved = load(path)
    saved.config["method"]["target"] = "evil.py:factory"
    save(path, saved)
    with pytest.raises(ArnoError, match=r"evil\.py"):
        arno.resume(mine, "rounds=3")
    assert not Path("evil").exists()


def test_attack_a_run_folder_with_an_evil_target_is_not_executed_by_report(mine: Path) -> None:
    forget()
    Path("mine.py").write_text(METHOD.replace('"imported"', '"evil"'))
    assert status("report", str(mine)) == 0
    assert status("track", str(mine), "--to", "tensorboard") == 0
    assert status("report", str(mine), "--png") == 0
    assert not Path("evil").exists()
    assert status("resume", str(mine), "rounds=3") == 2
    assert not Path("evil").exists()


def test_a_note_inside_the_folder_proves_nothing(mine: Path) -> None:
    forget()
    copy = shutil.copytree(mine, mine.with_name("copy"))
    notes = list((mine.parent / "state" / "arno" / "runs").glob("*.json"))
    assert len(notes) == 1
    shutil.copy(notes[0], copy / notes[0].name)
    assert json.loads(notes[0].read_text())["folder"] == str(mine.resolve())
    with pytest.raises(ArnoError, match="which you have not used"):
        arno.resume(copy, "rounds=3")


TRACKER = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def factory(uri=""):
    raise ValueError
"""


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run without anything of the user, beside files of an attacker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("mine.py").write_text(METHOD)
    Path("sender.py").write_text(TRACKER)
    arno.run("engine=serial", "clients=4", "data.limit=200", "model=softmax", rounds=2, out="run")
    return tmp_path / "run"


def change(run: Path, **settings: object) -> None:
    """Change the configuration of a run as an attacker does, who knows the checksums."""
    RunFolder(run).write_config(RunFolder(run).config() | settings)


CHANGES: dict[str, dict[str, object]] = {
    "tracker": {"track": "tensorboard, sender.py:factory"},
    "trackers": {"track": ["sender.py:factory"]},
    "elsewhere": {"track": "tensorboard@elsewhere"},
    "dotted": {"method": "custom", "method.target": "mine.py:factory"},
    "half dotted": {"method": {"kind": "custom"}, "method.target": "mine.py:factory"},
    "module": {"method": {"kind": "custom", "target": "mine:factory"}},
    "reference": {"track": "${out}", "out": "sender.py:factory"},
    "list of references": {"track": ["${out}"], "out": "sender.py:factory"},
    "cluster": {"engine": {"kind": "ray", "address": "127.0.0.1:9"}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_attack_whatever_in_a_folder_names_code_is_not_used(
    name: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tracker, a key with a dot, a module, a cluster: each can run code, and each is refused before it does."""
    forget()
    change(stored, **CHANGES[name])
    assert status("resume", str(stored), "rounds=3") == 2
    error = capsys.readouterr().err
    assert "which you have not used for this run on this machine" in error
    assert error.count("\n") == 1
    assert status("repair", str(stored)) == 0
    assert status("report", str(stored)) in (0, 2)
    assert not Path("imported").exists()
    assert not Path("elsewhere").exists()


@pytest.mark.parametrize("key", ["track[0]", "track.0", "track[-1]"])
def test_attack_a_key_into_a_list_is_not_used(key: str, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trust in a tracker is decided by the key `track`; nothing may change it by another name."""
    forget()
    change(stored, **{"track": ["tensorboard"], key: "sender.py:factory"})
    assert status("resume", str(stored), "rounds=3") == 2
    assert f"unknown key {key!r}" in capsys.readouterr().err
    assert not Path("imported").exists()


@pytest.mark.parametrize("problem", ["quadratic", [1], None])
def test_a_problem_that_is_no_section_is_one_line(
    problem: object, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {key: value for key, value in RunFolder(stored).config().items() if key != "engine"}
    RunFolder(stored).write_config(config | {"problem": problem})
    assert status("resume", str(stored), "rounds=3") == 2
    error = capsys.readouterr().err
    assert "--debug" not in error
    assert error.count("\n") == 1


def test_a_setting_that_is_given_again_replaces_the_one_of_the_folder(stored: Path) -> None:
    forget()
    change(stored, track="sender.py:factory")
    assert status("resume", str(stored), "rounds=3", "track=null", "--quiet") == 0
    assert not Path("imported").exists()
    change(stored, track="sender.py:factory")
    assert status("resume", str(stored), "rounds=3", "--quiet") == 2, "the run before has not used it"


def test_attack_repair_imports_nothing(stored: Path) -> None:
    """Neither what the configuration names, nor the command in the manifest."""
    forget()
    change(stored, method={"kind": "custom", "target": "mine.py:factory"})
    assert status("repair", str(stored)) == 0
    for name in ("config.yaml", "manifest.json.previous"):
        (stored / name).unlink()
    shutil.rmtree(stored / "checkpoints")
    manifest = RunFolder(stored).manifest() | {"command": "arno run method=custom +method.target=mine.py:factory"}
    (stored / "manifest.json").write_text(checksummed.text(manifest))
    assert status("repair", str(stored)) == 2
    assert not Path("imported").exists()


def test_a_module_that_changed_is_not_imported(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is found without importing it."""
    import sys

    monkeypatch.syspath_prepend(str(stored.parent))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    arno.run(
        "method=custom",
        "method.target=mine:factory",
        "engine=serial",
        "clients=4",
        "data.limit=200",
        rounds=2,
        out="two",
    )
    assert arno.resume("two", "rounds=3").rows[-1]["round"] == 3
    Path("mine.py").write_text(METHOD + "# changed")
    with pytest.raises(ArnoError, match=r"run code from .*mine\.py, which you have not used"):
        arno.resume("two", "rounds=4")
