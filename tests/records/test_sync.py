"""What is on the disk at a power cut, what that costs, and how fast records are read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from time import perf_counter

import pytest

import arno
from arno.records import metrics_file
from arno.records.folder import RunFolder
from arno.runs.loop import Loop

SETTINGS = ("clients=5", "model=softmax", "checkpoint.every=2", "engine=serial", "rounds=4")


def test_attack_records_and_folders_are_synced_at_checkpoints(tmp_path, monkeypatch):
    """attacks.md: records and folders are never fsynced."""
    synced: list[str] = []
    plain, round_, save = os.fsync, Loop.round, Loop.save

    def fsync(file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        synced.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else path.name.split("-")[0].split(".")[0])
        plain(file)

    counts: list[tuple[str, list[str]]] = []

    def counted(kind, call):
        def inner(self):
            synced.clear()
            out = call(self)
            counts.append((kind, list(synced)))
            return out

        return inner

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Loop, "round", counted("round", round_))
    monkeypatch.setattr(Loop, "save", counted("checkpoint", save))
    arno.run(*SETTINGS, out=str(tmp_path / "run"))
    assert [found for kind, found in counts if kind == "round"] == [[], [], [], []]
    first, second = [found for kind, found in counts if kind == "checkpoint"]
    assert first == ["metrics", "folder", "clients", "00000002", "folder"], "the checkpoint's name comes last"
    assert second == ["metrics", "clients", "00000004", "folder"]


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_attack_configuration_and_manifest_are_synced_when_written(name, tmp_path, monkeypatch):
    """attacks.md: records and folders are never fsynced."""
    plain, synced = os.fsync, []

    def fsync(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        plain(file)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = RunFolder(tmp_path)
    if name == "config.yaml":
        folder.write_config({"seed": 0})
    else:
        folder.update_manifest(status="running")
    assert synced == [f"{name}.part", tmp_path.name]


def test_ten_thousand_lines_are_read_in_well_under_a_second(tmp_path):
    row = {"seconds": 0.5, "clients": 10, "train_loss": 0.1, **{f"score_{i}": i / 7 for i in range(10)}}
    (tmp_path / metrics_file.NAME).write_text("".join(metrics_file.line({"round": t, **row}) for t in range(1, 10_001)))
    best = min(_timed(tmp_path) for _ in range(3))
    assert best < 0.7, f"{best:.2f} s"


def _timed(path: Path) -> float:
    began = perf_counter()
    assert len(metrics_file.read(path)) == 10_000
    return perf_counter() - began


def test_the_checksum_is_not_seen_by_users(finished):
    result = arno.RunResult(finished)
    assert "crc" not in result.history.columns
    assert "crc" not in result.folder.manifest()
    assert "crc" not in result.config
    assert (finished / metrics_file.NAME).read_text().startswith('{"crc": "')
