"""The one-minute form of `make fuzz`, and a check that every reader accepts a valid input of its kind."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def test_hostile_inputs_are_accepted_or_refused_with_one_line(tmp_path):
    words = [sys.executable, HERE / "fuzz.py", "--inputs", "800", "--seed", "17"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried, *_, traceback, hang, memory, code = map(
        int, re.findall(r"^all +(\d.*)$", done.stdout, re.MULTILINE)[0].split()
    )
    assert tried >= 750
    assert (traceback, hang, memory, code) == (0, 0, 0, 0)


@pytest.fixture
def readers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARNO_DATA", str(tmp_path / "store"))
    import readers

    return readers


def test_valid_inputs_are_accepted(readers):
    """Else the table of `make fuzz` would count refusals of everything."""
    import inputs

    valid = {
        "overrides": ["method=fedprox", "clients=${seed}", "seed=3"],
        "runs": ["seed=3"],
        "configuration files": b"rounds: 3\nmethod: {kind: fedprox, mu: 0.5}\n",
        "targets": "torch.nn:Linear",
        "cohort lists": b"[[0, 1], [2]]",
        "cohort lists, changed": b"[[0, 1], [2]]",
        "partition files": b"[[0, 1], [2], [3]]",
        "partition files, changed": b"[[0, 1], [2], [3]]",
        "npz": inputs.zipped(readers.arrays()),
        "IDX": {f"{name}.gz": gzip.compress(content) for name, content in readers.idx_files().items()},
        "images": {f"{c}/{i}.png": inputs.image(inputs.Random(i)) for c in "ab" for i in range(3)},
        "Parquet": {"train-0.parquet": readers.parquet_file()},
        "tar": {"cifar-10-binary.tar.gz": gzip.compress(inputs.tarred(readers.cifar_members()))},
        "zip": {"tiny-imagenet-200.zip": inputs.zipped(readers.tiny_members())},
        "tables": b"a,b,label\n" + b"".join(b"%d,%d,%d\n" % (i, i * i, i % 3) for i in range(20)),
        "tables, binary": ("parquet", readers.binary_table("parquet")),
        "all sources": ("npz", {"data.npz": inputs.zipped(readers.arrays())}),
        "conformance cases": inputs.zipped({f"{k}.npy": inputs.npy(v) for k, v in readers.cases()[0].items()}),
        "checkpoints": readers.checkpoint_file(),
        "run folders": ("tags.json", readers.checksummed.text({"tags": ["good"]}).encode()),
    }
    assert valid.keys() == readers.KINDS.keys()
    for kind, value in valid.items():
        readers.KINDS[kind][1](value)
