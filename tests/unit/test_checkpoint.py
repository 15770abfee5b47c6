"""Checkpoints: whole or not at all, and never believed when a single byte is wrong."""

from __future__ import annotations

import errno
import json
import os

import pytest
import torch
from safetensors.torch import save_file

from arno.core.table import ClientTable
from arno.errors import ArnoError
from arno.records import checkpoint
from arno.records.checkpoint import Checkpoint, load, save


@pytest.fixture
def sample() -> Checkpoint:
    table = ClientTable(100, torch.zeros(5))
    table[torch.tensor([3, 70])] = torch.arange(10.0).view(2, 5)
    federation = {"w": torch.randn(5), "t": 7, "0.Part.c": torch.randn(5, dtype=torch.float64), "0.Part.ck": table}
    federation |= {"0.Part.factor": 0.1, "0.Part.note": "Σ", "0.Part.none": None, "0.Part.empty": torch.zeros(0)}
    return Checkpoint(7, federation, {"best_score": 0.5, "best": torch.ones(5)}, {"seed": 3, "method": {"kind": "x"}})


def test_what_goes_in_comes_out(sample, tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, sample)
    back = load(path)
    assert (back.round, back.config, back.run["best_score"]) == (7, sample.config, 0.5)
    assert back.federation.keys() == sample.federation.keys()
    for name, value in sample.federation.items():
        mine = back.federation[name]
        if isinstance(value, ClientTable):
            again = ClientTable(100, torch.zeros(5))
            again.restore(mine)
            assert torch.equal(again[torch.arange(100)], value[torch.arange(100)])
            assert torch.equal(again.mean(), value.mean())
        elif isinstance(value, torch.Tensor):
            assert torch.equal(mine, value)
            assert mine.dtype == value.dtype
        else:
            assert mine == value
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_the_same_state_gives_the_same_file(sample, tmp_path):
    save(tmp_path / "a", sample)
    save(tmp_path / "b", sample)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_any_wrong_byte_is_noticed(sample, tmp_path):
    path = tmp_path / "a"
    save(path, sample)
    good = path.read_bytes()
    for at in range(len(good)):
        for flip in (0x01, 0x80):
            path.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            with pytest.raises(ArnoError):
                load(path)


def test_any_missing_end_is_noticed(sample, tmp_path):
    path = tmp_path / "a"
    save(path, sample)
    good = path.read_bytes()
    for length in range(0, len(good), 7):
        path.write_bytes(good[:length])
        with pytest.raises(ArnoError, match="give another checkpoint"):
            load(path)
    path.write_bytes(good + b"more")
    with pytest.raises(ArnoError):
        load(path)


def test_another_version_of_the_format(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", "arno-checkpoint-9")
    save(tmp_path / "a", sample)
    monkeypatch.undo()
    with pytest.raises(ArnoError, match="has format arno-checkpoint-9"):
        load(tmp_path / "a")


def test_foreign_files(tmp_path):
    save_file({"w": torch.zeros(3)}, tmp_path / "model")
    with pytest.raises(ArnoError, match="is no checkpoint of Arno"):
        load(tmp_path / "model")
    (tmp_path / "text").write_text(json.dumps({"w": [1, 2]}))
    with pytest.raises(ArnoError, match="cannot be read"):
        load(tmp_path / "text")
    with pytest.raises(ArnoError, match="cannot be read"):
        load(tmp_path / "nowhere")


def test_a_pickle_is_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    torch.save({"w": Trap()}, tmp_path / "a")
    with pytest.raises(ArnoError):
        load(tmp_path / "a")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("when", ["save_file", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(sample, tmp_path, monkeypatch, when):
    path = tmp_path / "a"
    save(path, sample)
    good = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner = {"save_file": checkpoint, "fsync": checkpoint.os, "replace": checkpoint.Path}[when]
    monkeypatch.setattr(owner, when, full)
    other = Checkpoint(8, sample.federation, sample.run, sample.config)
    with pytest.raises(ArnoError, match="No space left on device; free some space"):
        save(path, other)
    monkeypatch.undo()
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
