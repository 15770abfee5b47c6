"""Every method records rounds that pass the verification, from its first round on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from outcome import Outcome

import arno
from arno import ArnoError
from arno.methods import methods
from arno.records import metrics_file
from arno.records.checkpoint import load
from arno.records.folder import RunFolder
from arno.records.verify import verify
from arno.runs.run import resume

SMALL = ("clients=10", "model=mlp", "model.hidden=[8]", "checkpoint.every=1", "engine=serial", "rounds=2")


@pytest.mark.parametrize("name", sorted(set(methods.names()) - {"custom", "compose"}))
def test_the_history_of_every_method_is_whole(name, tmp_path):
    run = arno.run(*SMALL, f"method={name}", out=str(tmp_path / "run"))
    for path in run.folder.saved():
        verify(run.folder, load(path))
    lines = (run.path / metrics_file.NAME).read_text().splitlines(keepends=True)
    (run.path / metrics_file.NAME).write_text("".join(lines[1:]))
    with pytest.raises(ArnoError, match="line 1: holds round"):
        verify(run.folder, load(run.folder.saved()[-1]))


def test_a_run_that_counts_on_from_another_begins_with_its_own_round(tmp_path):
    first = arno.run(*SMALL, out=str(tmp_path / "a")).path
    second = arno.run(*SMALL, "rounds=4", f"load={first}", out=str(tmp_path / "b")).path
    want = Outcome(second)
    folder = RunFolder(second)
    assert [row["round"] for row in folder.rows()] == [3, 4]
    assert Outcome(resume(second, previous=True, pictures=False).path) == want
    text = (second / metrics_file.NAME).read_text().splitlines(keepends=True)
    (second / metrics_file.NAME).write_text(text[1])
    with pytest.raises(ArnoError, match="line 1: holds round 4, not round 3; arno repair"):
        resume(second)


def test_lines_of_release_0_1_have_no_checksum(finished: Path, copy, eight):
    run = copy(finished)
    rows = metrics_file.read(run)
    (run / metrics_file.NAME).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert metrics_file.read(run) == rows
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight
    lines = (run / metrics_file.NAME).read_text().splitlines()
    assert [line.startswith('{"crc"') for line in lines] == [False] * 6 + [True] * 2
