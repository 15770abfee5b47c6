"""Attacks on the folder of a run that `make torture` found to matter, each with the smallest case that shows it."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pytest
import torch
from outcome import Outcome, Said

import arno
from arno import ArnoError
from arno.analysis.comparison import Comparison
from arno.cli import main
from arno.records import checkpoint, clients, metrics_file
from arno.records.damage import Damaged
from arno.records.folder import COUNTS, RunFolder
from arno.records.lock import writing
from arno.records.repair import repair
from arno.runs import trust
from arno.runs.result import RunResult
from arno.runs.run import resume
from arno.tracking.destination import single

SETTINGS = ("clients=5", "model=softmax", "participation=0.6", "checkpoint.every=2", "engine=serial")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with another seed."""
    settings = (*SETTINGS, "checkpoint.keep=3", "seed=1")
    return arno.run(*settings, rounds=6, out=str(tmp_path_factory.mktemp("other") / "run")).path


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "metrics.jsonl"])
def test_a_whole_file_of_another_run_is_refused(name, finished, other, copy, eight, said: Said):
    run = copy(finished)
    shutil.copy(other / name, run / name)
    with pytest.raises(Damaged, match=rf"{name}: belongs to another run; arno repair"):
        _ = RunResult(run).rows
    if name == "manifest.json":  # the one before it serves
        assert Outcome(resume(run, "rounds=8", progress=said, pictures=False).path) == eight
        assert any("manifest.json belongs to another run; the previous manifest is used" in line for line in said.lines)
        return
    with pytest.raises(Damaged, match=rf"{name}.*belongs to another run; arno repair"):
        resume(run, "rounds=8")
    assert repair(run)
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight


def test_a_checkpoint_of_another_run_is_refused_and_set_aside(finished, other, copy, eight):
    run = copy(finished)
    shutil.copy(other / "checkpoints" / "00000006.safetensors", run / "checkpoints")
    with pytest.raises(ArnoError, match="the configuration differs from that of the checkpoint in seed"):
        resume(run, "rounds=8")
    assert any("00000006.safetensors belongs to another run" in line for line in repair(run))
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight


def test_rows_of_clients_that_are_missing_are_refused(killed, copy):
    run = copy(killed)
    sorted((run / "checkpoints").glob("clients-*"))[-1].unlink()
    with pytest.raises(Damaged, match=r"clients-.*hold 0 rows of round 3"):
        _ = RunResult(run).clients


def test_two_files_of_two_runs_are_not_mixed(finished, other, copy):
    """Where nothing says which of two files is the right one, nothing is trained."""
    run = copy(finished)
    RunFolder(run).rewind(-1)
    for name in ("metrics.jsonl", "manifest.json.previous"):
        (run / name).unlink()
    shutil.copy(other / "config.yaml", run)
    for attempt in (lambda: resume(run), lambda: repair(run), lambda: RunFolder(run).rows()):
        with pytest.raises(ArnoError, match=r"config\.yaml and manifest\.json belong to different runs; put the right"):
            attempt()


def test_a_mark_survives_more_rounds_and_a_rebuilt_configuration(finished, copy):
    run = copy(finished)
    mark = RunFolder(run).mark
    assert len(mark) == 8
    resume(run, "rounds=8", pictures=False)
    (run / "config.yaml").unlink()
    repair(run)
    assert set(RunFolder(run).marks().values()) == {mark}
    assert "run" not in RunResult(run).rows[0]


@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "clients-", "log.txt", "checkpoint", "config.yaml"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_pipe_or_a_folder_in_the_place_of_a_file(kind, name, killed, copy, six):
    """It is not waited for, and it is no traceback."""
    run = copy(killed)
    folder = RunFolder(run)
    file = {"checkpoint": folder.saved()[-1], "clients-": sorted(folder.checkpoints.glob("clients-*"))[-1]}.get(
        name, run / name
    )
    file.unlink()
    os.mkfifo(file) if kind == "pipe" else file.mkdir()
    with suppress(ArnoError):
        _ = RunResult(run).rows, RunResult(run).clients
    try:
        found = resume(run, pictures=False).path
    except ArnoError:
        assert repair(run)
        found = resume(run, pictures=False).path
    assert Outcome(found) == six


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_damaged_counts_of_an_unfinished_run(how, tmp_path):
    class Stop(Exception):
        pass

    class Once(Said):
        def round(self, row):
            raise Stop

    with pytest.raises(Stop):
        arno.run(*SETTINGS, rounds=4, out=str(tmp_path / "run"), progress=Once())
    path = tmp_path / "run" / COUNTS
    path.write_bytes(path.read_bytes()[:-1] + b"\1") if how == "damaged" else path.unlink()
    with pytest.raises(Damaged, match=r"counts\.npy"):
        _ = RunResult(tmp_path / "run").counts


def test_records_shorter_than_the_last_checkpoint_are_damage(killed, copy):
    run = copy(killed)
    lines = (run / metrics_file.NAME).read_text().splitlines(keepends=True)
    (run / metrics_file.NAME).write_text("".join(lines[:3]))
    with pytest.raises(Damaged, match=r"last complete line is of round 3, but 00000004\.safetensors was saved"):
        _ = RunResult(run).rows


def test_a_resume_killed_while_it_goes_back_can_go_on(killed, copy, six, monkeypatch):
    """Checkpoints after the one that is used are removed before the records of their rounds are."""
    run = copy(killed)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_bytes", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            RunFolder(run).rewind(2)
    assert Outcome(resume(run, pictures=False).path) == six


def test_a_run_killed_after_its_configuration_was_written_is_trusted(tmp_path, monkeypatch):
    """The note that this user started the run is there before the folder can be resumed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text("def factory():\n    return []\n")
    words = (*SETTINGS, "method=custom", f"method.target={tmp_path / 'mine.py'}:factory", "rounds=2")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "update_manifest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            arno.run(*words, out=str(tmp_path / "run"))
    folder = RunFolder.open(tmp_path / "run")
    trust.check(folder.path, folder.config())
    resume(folder.path, pictures=False)


def test_a_stopped_simulation_is_repeated_to_the_bit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def arno_(*words: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(list(words))
        return int(left.value.code or 0)

    words = ("quadratic", "epochs=30", "num_users=8", "seltype=powd", "rho=true", "samples=5", "--quiet")
    assert arno_(*words, "out=whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr("arno.runs.quadratic.write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert arno_(*words, "out=run") == 130
    assert arno_("resume", "run", "--quiet") == 0
    for name in ("final.safetensors", "metrics.jsonl", "clients.parquet"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()
    capsys.readouterr()
    assert arno_("resume", "run", "rounds=40") == 2
    assert "a simulation has no checkpoints to continue from; try arno quadratic" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("arno.runs.quadratic.simulate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert arno_(*words, "out=again") == 130
    assert arno_(*words, "out=again") == 0, "nothing is lost by the same command"


@pytest.mark.parametrize("content", ["{", "[1]", '{"sent": "many"}', "changed"])
def test_a_tracker_whose_state_is_damaged_begins_again(content, finished, copy):
    run = copy(finished)
    destination = single("tensorboard")
    destination.file(run).parent.mkdir()
    destination.write_state(run, {"sent": 4, "described": True})
    assert destination.state(run)["sent"] == 4
    text = destination.file(run).read_text().replace("4", "5") if content == "changed" else content
    destination.file(run).write_text(text)
    state = destination.state(run)
    assert state == ({"sent": "many"} if "many" in content else {})


def test_a_damaged_compare_json_is_one_line_and_written_again(tmp_path):
    grid = tmp_path / "grid"
    words = (*SETTINGS, "rounds=2", "seed=0..1")
    arno.compare(*words, out=grid)
    good = (grid / "compare.json").read_text()
    for text in (good.replace('"seed": 1', '"seed": 7'), good[:-30], "", "[]"):
        (grid / "compare.json").write_text(text)
        with pytest.raises(ArnoError, match=r"compare\.json: .*; give the arno compare command again"):
            Comparison.open(grid)
    arno.compare(*words, out=grid)
    assert Comparison.open(grid).seeds == [0, 1]


def test_a_damaged_failure_json_is_one_line(finished, copy):
    run = copy(finished)
    RunFolder(run).update_manifest(status="failed")
    (run / "failure.json").write_text('{"reason": 3')
    with pytest.raises(ArnoError, match=r"failure\.json: cannot be read .*; remove it"):
        Comparison.of([run])


@pytest.mark.parametrize("name", ["clients.parquet", "panels.json"])
def test_results_that_are_missing_are_refused(name, tmp_path, monkeypatch):
    """Those of a simulation are nowhere else."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["quadratic", "epochs=5", "out=run", "--quiet"])
    Path("run", name).unlink()
    with pytest.raises(Damaged, match=f"{name}: cannot be read"):
        _ = RunFolder(Path("run")).panels() if name == "panels.json" else RunResult("run").clients


# --- two writers ---


def _hold(folder: Path, held: object, end: object) -> None:
    with writing(folder, "a run"):
        held.set()  # type: ignore[attr-defined]
        end.wait(60)  # type: ignore[attr-defined]


@contextmanager
def _written_by_another_process(folder: Path):
    context = get_context("fork")
    held, end = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(folder, held, end))
    process.start()
    try:
        assert held.wait(60)
        yield process.pid
    finally:
        end.set()
        process.join()


def _status(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return int(left.value.code or 0)


@pytest.mark.parametrize("command", ["run", "resume", "repair", "compare"])
def test_attack_two_runs_with_one_out_and_resume_of_a_running_run(command, killed, copy, tmp_path, capsys):
    """attacks.md: two `run` with one `out=`; `resume` of a running run."""
    run = copy(killed)
    words = {
        "run": ("run", *SETTINGS, f"out={run}"),
        "compare": ("compare", *SETTINGS, "seed=0..1", f"out={run}"),
    }.get(command, (command, run))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with _written_by_another_process(run) as pid:
        assert _status(*words) == 2
        error = capsys.readouterr().err
        assert f"is being written by a run in process {pid} on " in error
        assert error.count("\n") == 1
        assert {path: path.read_bytes() for path in before} == before


def test_two_trackers_of_one_run(finished, copy, capsys):
    run = copy(finished)
    held, end = Event(), Event()
    thread = Thread(target=_hold_tracker, args=(run, held, end))
    thread.start()
    assert held.wait(60)
    assert _status("track", run, "--to", "tensorboard") == 2
    assert "is being written by" in capsys.readouterr().err
    end.set()
    thread.join()


def _hold_tracker(run: Path, held: Event, end: Event) -> None:
    with writing(run / "track", "the sender", "tensorboard.lock"):
        held.set()
        end.wait(60)


def test_attack_full_disk_is_one_line_wherever_it_is_met(tmp_path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/curves.png")

    monkeypatch.setattr("arno.pictures.curves.draw_curves", full)
    assert _status("run", *SETTINGS, "rounds=2", f"out={tmp_path / 'run'}", "--quiet") == 2
    error = capsys.readouterr().err
    assert (
        error
        == "error: cannot write run/curves.png: No space left on device; free some space, then repeat the command\n"
    )
    assert RunFolder(tmp_path / "run").manifest()["status"] == "failed"


FILES = ("config.yaml", "manifest.json", "metrics.jsonl", "00000004.safetensors", "clients-", "final.safetensors")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["report", "resume", "repair"])
def test_attack_a_file_without_permission_is_one_line(
    command, name, number, killed, finished, copy, monkeypatch, capsys
):
    """It is no damage: rounds that cannot be read now are not computed again, and nothing is renamed."""
    run = copy(finished if name == "final.safetensors" else killed)
    before, plain = list(run.rglob("*")), Path.open

    def refuse(path: Path, *arguments: object, **named: object) -> object:
        if path.name.startswith(name):
            raise OSError(number, os.strerror(number), str(path))
        return plain(path, *arguments, **named)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        status = _status(command, run)
    assert all(path.exists() for path in before)
    assert not list(run.rglob("*.damaged"))
    if status == 0:  # a command does not read every file
        assert (command, name) in [("report", "00000004.safetensors"), *((c, FILES[-1]) for c in ("report", "resume"))]
        return
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert os.strerror(number) in line
    assert "arno repair" not in line


# --- folders whose author knows the checksums ---


@pytest.mark.parametrize("value", ["high", None, [1], 10**400, -(2**63) - 1])
def test_attack_a_record_that_is_no_number(value, finished, copy, capsys):
    run = copy(finished)
    rows = RunFolder(run).rows()
    rows[-1]["test_f1"] = value
    (run / metrics_file.NAME).write_text("".join(metrics_file.line(row, RunFolder(run).mark) for row in rows))
    assert _status("report", run) == 2
    assert "is no record of a round" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("run", {"best_round": "three"}),
        ("run", {"best_score": None}),
        ("run", {"unknown": 1}),
        ("federation", {"t": 4}),
        ("federation", {"t": "six"}),
        ("federation", {"w": torch.zeros(3)}),
    ],
)
def test_attack_a_checkpoint_with_odd_values_is_one_line(section, changes, finished, copy):
    run = copy(finished)
    path = RunFolder(run).saved()[-1]
    saved = checkpoint.load(path)
    checkpoint.save(path, replace(saved, **{section: getattr(saved, section) | changes}))
    with pytest.raises(Damaged, match="does not hold the state of this run"):
        resume(run, "rounds=8")


@pytest.mark.parametrize("made", ["cut", "no model", "no configuration", "another kind"])
def test_attack_a_bad_load_file_gets_advice_for_that_file(made, finished, tmp_path, capsys):
    """attacks.md: a bad `load=` file advised `arno resume RUN --previous`."""
    path = tmp_path / "bad.safetensors"
    saved = checkpoint.load(RunFolder(finished).saved()[-1])
    if made == "no model":
        saved.federation["w"] = 3
    elif made == "no configuration":
        saved = replace(saved, config={})
    elif made == "another kind":
        saved.config["model"] = "softmax"
    checkpoint.save(path, saved)
    if made == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    assert _status("run", *SETTINGS, "rounds=9", f"load={path}", f"out={tmp_path / 'run'}") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: " if made == "cut" else f"error: load = {path}: ")
    assert error.endswith("; give another checkpoint\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["report.html", "figures", "figures/score-round.png"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_attack_a_report_is_not_written_through_a_link(kind, name, finished, copy, tmp_path, capsys):
    run, mine = copy(finished), tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("precious")
    (run / name).parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(mine if name == "figures" else mine / "file")
    assert _status("report", run, "--png") == 2
    assert f"is a {'link that leaves' if kind == 'link' else 'device, pipe'}" in capsys.readouterr().err
    assert [path.name for path in mine.iterdir()] == ["file"]
    assert (mine / "file").read_text() == "precious"


@pytest.mark.parametrize("name", ["track", "tensorboard", "track/tensorboard.json"])
def test_attack_a_tracker_does_not_write_through_a_link(name, finished, copy, tmp_path, capsys):
    run, mine = copy(finished), tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("precious")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(mine / "file" if name.endswith("json") else mine)
    assert _status("track", run, "--to", "tensorboard") == 2
    assert "is a link that leaves" in capsys.readouterr().err
    assert [path.name for path in mine.iterdir()] == ["file"]
    assert (mine / "file").read_text() == "precious"


def test_attack_a_checkpoint_with_deep_lists_in_its_header_is_damaged(finished, copy, eight):
    run = copy(finished)
    checkpoint.write_tensors(RunFolder(run).saved()[-1], {}, {"arno": "[" * 200_000})
    with pytest.raises(Damaged, match="its checksum does not match"):
        checkpoint.load(RunFolder(run).saved()[-1])
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight


@pytest.mark.parametrize("values", ["texts", "nothing", "lists"])
@pytest.mark.parametrize("column", ["round", "client", "seconds"])
def test_attack_a_table_of_clients_without_numbers_is_refused_before_training(column, values, finished, copy):
    """The checksum in its name holds. Without the check the run failed after all its rounds were computed."""
    run = copy(finished)
    piece = clients.pieces(run / "checkpoints")[-1]
    table = clients.load(piece)
    made = {
        "texts": pa.array(["x"] * len(table)),
        "nothing": pa.nulls(len(table)),
        "lists": pa.array([[1]] * len(table)),
    }
    odd = table.set_column(table.column_names.index(column), column, made[values])
    piece.unlink()
    clients.write_piece(odd, run / "checkpoints", 6)
    if (column, values) == ("seconds", "nothing"):  # a number may be missing
        resume(run, "rounds=8", pictures=False)
        return
    with pytest.raises(Damaged, match=f"its column {column} does not hold numbers; arno repair"):
        resume(run, "rounds=8")
    assert repair(run)
    resume(run, "rounds=8", pictures=False)


def test_attack_a_configuration_without_rounds_is_not_tracked(finished, copy, capsys):
    run = copy(finished)
    folder = RunFolder(run)
    folder.write_config({key: value for key, value in folder.config().items() if key != "rounds"})
    assert _status("track", run, "--to", "tensorboard") == 2
    assert "holds no number of rounds" in capsys.readouterr().err


def test_a_run_whose_clients_all_diverged_can_be_read(tmp_path):
    words = ("local.lr=1e30", "on_divergence=drop", "clients=4", "checkpoint.every=1", "data.limit=100")
    made = arno.run(*words, rounds=3, out=str(tmp_path / "run"))
    assert len(made.history) == 3
    assert made.clients.empty
    assert len(arno.resume(tmp_path / "run", "rounds=4").history) == 4
