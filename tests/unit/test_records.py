"""The folder of a run: whole files, the one reader of its rounds, what a resumed run forgets, the lock."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from arno import ArnoError
from arno.core.metric import Metric
from arno.records import metrics_file
from arno.records.folder import MOST, RunFolder
from arno.records.lock import writing


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    made.checkpoints.mkdir()
    made.update_manifest(status="running")
    return made


def write(folder: RunFolder, rounds: range) -> None:
    for t in rounds:
        folder.add({"round": t, "gap": 1 / t}, {"client": [0, 3], "loss": [0.5, t / 2]})


def test_rows_are_on_disk_at_once_and_clients_with_the_checkpoint(folder):
    write(folder, range(1, 4))
    assert [row["round"] for row in metrics_file.read(folder.path)] == [1, 2, 3]
    assert folder.client_records() == []
    folder.flush_clients(3)
    write(folder, range(4, 6))
    folder.flush_clients(5)
    folder.checkpoint_path(5).write_bytes(b"")
    assert [path.name[:17] for path in folder.client_records()] == ["clients-00000003-", "clients-00000005-"]
    folder.merge_clients()
    assert [path.name for path in folder.client_records()] == ["clients.parquet"]
    table = pq.read_table(folder.path / "clients.parquet").to_pydict()
    assert table["round"] == [t for t in range(1, 6) for _ in range(2)]
    assert table["client"] == [0, 3] * 5
    assert table["loss"] == [value for t in range(1, 6) for value in (0.5, t / 2)]
    folder.close()


def test_rows_of_the_clients_count_from_the_checkpoint_after_them(folder):
    """A run that was killed before its checkpoint computes these rounds again: with or without them, it is the same."""

    def shown() -> list[int]:
        return [int(path.name[8:16]) for path in folder.client_records()]

    write(folder, range(1, 3))
    folder.flush_clients(2)
    assert shown() == []
    folder.checkpoint_path(2).write_bytes(b"")
    write(folder, range(3, 5))
    folder.flush_clients(4)
    assert shown() == [2]
    write(folder, range(5, 7))
    folder.flush_clients(6)
    assert shown() == [2, 4], "the checkpoint of round 4 was there before the rows of round 6"
    folder.close()


def test_a_resumed_run_forgets_the_rounds_after_its_checkpoint(folder):
    for t in (2, 4):
        write(folder, range(t - 1, t + 1))
        folder.flush_clients(t)
        folder.checkpoint_path(t).write_bytes(b"")
    write(folder, range(5, 6))
    folder.close()
    for killed in (folder.path / "manifest.json.part", folder.checkpoints / "clients-00000004-1a2b3c4d.parquet.part"):
        killed.write_bytes(b"a file that a kill left unfinished")
    folder.rewind(2)
    assert not folder.unfinished()
    assert [row["round"] for row in metrics_file.read(folder.path)] == [1, 2]
    assert sorted(path.name[:16] for path in folder.checkpoints.iterdir()) == ["00000002.safeten", "clients-00000002"]


def test_a_reader_takes_complete_lines_only_and_each_once(tmp_path):
    path = tmp_path / metrics_file.NAME
    reader = metrics_file.Reader(path)
    assert list(reader.rows()) == [], "the file does not exist yet"
    path.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n{"round"')
    assert [row["round"] for row in reader.rows(2)] == [1, 2]
    assert next(reader.rows())["round"] == 3, "a caller may stop after any row"
    assert list(reader.rows()) == []
    with path.open("a") as file:
        file.write(": 4}\n")
    assert [row["round"] for row in reader.rows()] == [4]
    assert [row["round"] for row in metrics_file.read(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize("line", ["nothing", "[1]", '{"gap": 1}', '{"round": "3"}', "\0\0\0"])
def test_a_damaged_line_is_named_and_left_out_by_a_resume(folder, line):
    write(folder, range(1, 3))
    folder.close()
    path = folder.path / metrics_file.NAME
    with path.open("a") as file:
        file.write(f'{line}\n{{"round": 4}}\n')
    with pytest.raises(ArnoError, match=r"metrics\.jsonl, line 3: is no record of a round; arno repair"):
        metrics_file.read(folder.path)
    folder.rewind(10)
    assert [row["round"] for row in metrics_file.read(folder.path)] == [1, 2]


def test_a_manifest_that_cannot_be_read(folder):
    path = folder.path / "manifest.json"
    for text in ("{", "[1]", '"text"'):
        path.write_text(text)
        with pytest.raises(ArnoError, match=r"manifest\.json: cannot be read .*arno repair"):
            folder.manifest()
    for declared in ([1], [{}], {"a": 1}, 3):
        path.write_text(json.dumps({"status": "done", "metrics": declared}))
        with pytest.raises(ArnoError, match=r"manifest\.json: its metrics cannot be read"):
            folder.metrics()


def test_the_declarations_of_a_manifest_are_those_of_the_run(folder):
    declared = (Metric("rmse", "RMSE", "less", low=0).on("test"), Metric("mine", "mine"))
    folder.update_manifest(metrics=[metric.to_json() for metric in declared])
    assert folder.metrics() == declared
    assert folder.manifest()["status"] == "running", "other values stay"


def test_a_failed_write_leaves_the_old_file(folder, monkeypatch):
    folder.write_text("a.txt", "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ArnoError, match=r"cannot write .*a\.txt: No space left"):
        folder.write_text("a.txt", "new")
    monkeypatch.undo()
    assert (folder.path / "a.txt").read_text() == "old"
    assert not list(folder.path.glob("*.part"))


def test_counts_are_kept_unless_they_are_too_many(folder):
    folder.write_counts(torch.zeros(1, MOST + 1, dtype=torch.int8))
    assert not (folder.path / "counts.npy").exists()
    folder.write_counts(torch.tensor([[3, 0], [1, 2]]))
    assert np.load(folder.path / "counts.npy").tolist() == [[3, 0], [1, 2]]


def test_panels_that_cannot_be_read_are_none(folder):
    assert folder.panels() is None
    folder.write_panels([])
    assert folder.panels() == []
    (folder.path / "panels.json").write_text('[{"kind": "unheard of"}]')
    assert folder.panels() is None


def test_a_lock_is_held_once_and_released(tmp_path):
    with (
        writing(tmp_path, "a run"),
        pytest.raises(ArnoError, match="is being written by a run"),
        writing(tmp_path, "a run"),
    ):
        pytest.fail("two hold it")
    with writing(tmp_path, "a run"):
        pass


def test_two_writers_of_one_folder_in_two_processes(tmp_path):
    code = (
        "import sys; from pathlib import Path; from arno.records.lock import writing\n"
        "with writing(Path(sys.argv[1]), 'a run'):\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ArnoError, match=rf"a run in process {holder.pid} on "), writing(tmp_path, "a run"):
        pytest.fail("two hold it")
    holder.kill()
    holder.communicate()
    with writing(tmp_path, "a run"):  # the lock ends with its holder
        pass
