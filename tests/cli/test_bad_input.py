"""Every kind of bad input: one line with the value, the rule and the remedy; exit status 2; nothing left behind."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CASES = [
    # settings                                     value, rule, remedy
    ("rounts=3", "'rounts'", "known", "did you mean 'rounds'?"),
    ("local.epoch=3", "'local.epoch'", "known", "did you mean 'local.epochs'?"),
    ("local.learning_rate=3", "'local.learning_rate'", "called local.lr", "try local.lr="),
    ("num_clients=3", "'num_clients'", "called clients", "try clients="),
    ("dataset=mnist", "'dataset'", "called data", "try data="),
    ("method.lr=3", "'method.lr'", "no such setting", "try local.lr="),
    ("partition.alfa=3", "'partition.alfa'", "the known names are", "did you mean 'partition.alpha'?"),
    ("method.mu=3", "'method.mu'", "method=fedavg has no such setting", "method.mu=..."),
    ("method=fedpox", "'fedpox'", "known", "did you mean 'fedprox'?"),
    ("data=digitz", "'digitz'", "known", "did you mean 'digits'?"),
    ("model=lenet", "'lenet'", "the choice is called lenet5", "try model=lenet5"),
    ("engine=seriel", "'seriel'", "the known names are", "did you mean 'serial'?"),
    ("rounds", "'rounds'", "key=value", "rounds=10"),
    ("rounds=many", "rounds = many", "whole number", "--help"),
    ("rounds=2.5", "rounds = 2.5", "whole number", "--help"),
    ("rounds=0", "rounds = 0", "at least 1", "try rounds="),
    ("seed=null", "seed = null", "cannot be left empty", "--help"),
    ("local.shuffle=perhaps", "local.shuffle = perhaps", "true or false", "--help"),
    ("dtype=float16", "dtype = float16", "one of float32, float64", "--help"),
    ("local=3", "local = 3", "section", "--help"),
    ("rounds=[3", "'rounds=[3'", "cannot be read", "quote it"),
    ("partition.alpha=0", "partition.alpha = 0", "positive", "try partition.alpha=0.5"),
    ("partition.alpha=-1", "partition.alpha = -1", "positive", "try partition.alpha=0.5"),
    ("participation=0", "participation = 0", "above 0 and at most 1", "try participation=0.1"),
    ("participation=1.5", "participation = 1.5", "above 0 and at most 1", "try participation=0.1"),
    ("participation=nan", "participation = nan", "above 0 and at most 1", "try participation=0.1"),
    ("clients=0", "clients = 0", "at least 1", "try clients=10"),
    ("clients=5000", "clients = 5000", "1293 training samples", "fewer clients"),
    ("local.batch_size=0", "local.batch_size = 0", "at least 1", "change local.batch_size"),
    ("local.batch_size=1e25", "local.batch_size = 1e+25", "at most 1e+15", "change local.batch_size"),
    ("local.epochs=1e25", "local.epochs = 1e+25", "at most 1e+09", "change local.epochs"),
    ("local.batch_size=1.5", "local.batch_size = 1.5", "whole number", "change local.batch_size"),
    ("local.lr=0", "local.lr = 0", "above 0", "change local.lr"),
    ("local.lr=fast", "local.lr = 'fast'", "a distribution", "uniform(a, b)"),
    ("local.lr=null", "local.lr = null", "a distribution", "try local.lr="),
    ("local.lr=[0.1, 0.2]", "2 values", "20 clients", "one value per client"),
    ("local.lr=[a, b]", 'local.lr = ["a", "b"]', "number", "try local.lr="),
    ("local.momentum=1", "local.momentum = 1", "below 1", "change local.momentum"),
    ("local.clip=0", "local.clip = 0", "positive", "local.clip=null"),
    ("server_lr=0", "server_lr = 0", "positive", "try server_lr=1"),
    ("device=abacus", "device = abacus", "torch cannot use it", "try device=cpu"),
    ("device=meta", "device = meta", "torch cannot use it", "try device=cpu"),
    ("data.val=2000", "val = 2000", "none would be left", "try data.val=0.1"),
    ("data=npz", "data=npz", "the file is not named", "data.path="),
    ("data=npz data.path=nowhere.npz", "data.path = nowhere.npz", "cannot be read", "np.savez"),
    ("data=mnist data.root=nowhere", "data.root = nowhere", "no such folder", "leave data.root out"),
    ("data=folder data.root=nowhere", "data.root = nowhere", "no such folder", "data.root"),
    ("method=custom", "method=custom", "names the file or module", "method.target="),
    ("method=custom method.target=nowhere.py:f", "'nowhere.py:f'", "no file", "relative to the working directory"),
    ("method=custom method.target=nowhere", "'nowhere'", "file or module", "write file.py:name"),
    ("model=lenet5", "model=lenet5", "too small", "try model=mlp"),
]


@pytest.mark.parametrize(("settings", "value", "rule", "remedy"), CASES, ids=[case[0] for case in CASES])
def test_one_line_that_says_value_rule_and_remedy(settings, value, rule, remedy, arno, tmp_path):
    words = [settings] if "[" in settings else settings.split()
    error = arno("run", *words).error
    assert error.index(value) < error.rindex(rule) < error.rindex(remedy), error
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith(".")], "nothing was left behind"


@pytest.mark.parametrize(
    "words",
    [
        ("seed=0..2",),
        ("method=fedavg,fedprox", "fedprox.mu=1"),
        ("rounds=2", "local.lr=0.1,0.01"),
        ("partition.alpha=0.1,1", "out=it"),
        ("model.hidden=[8, 8],[16]",),
    ],
)
def test_several_values_are_for_arno_compare(words, arno, tmp_path):
    error = arno("run", *words).error
    assert "a run takes one value of each setting" in error
    assert error.endswith(f"to run each value: {shlex.join(['arno', 'compare', *words])}")
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith(".")], "nothing was left behind"


def test_another_error_beside_a_comma_is_told_as_it_is(arno):
    assert "rounds = 0: it must be at least 1" in arno("run", "rounds=0", "out=a,b").error


def test_an_unwritable_output_folder(arno, small):
    Path("file").write_text("")
    error = arno("run", *small, "out=file/below").error
    assert "out = file/below: cannot be written (Not a directory); choose another out=" in error
    assert "out = file: cannot be written" in arno("run", *small, "out=file").error
    error = arno("compare", "seed=0..1", *small, "out=file/below").error
    assert "out = file/below: cannot be written" in error


def test_an_unwritable_picture(arno):
    assert "cannot be written" in arno("data", "show", "--out", "nowhere/it.png").error
    assert "cannot be written" in arno("data", "show", "--out", "it.foo").error


def test_an_empty_data_folder(arno):
    Path("empty").mkdir()
    for data in ("mnist", "cifar10", "folder", "hub"):
        error = arno("run", f"data={data}", "data.root=empty").error
        assert "data.root = empty: the folder is empty" in error
    Path("other").mkdir()
    Path("other/readme.txt").write_text("no data")
    assert "train-images-idx3-ubyte.gz is missing" in arno("run", "data=mnist", "data.root=other").error
    assert "no train-*.parquet" in arno("run", "data=hub", "data.root=other").error


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture
def mnist() -> Path:
    """A small MNIST, as published."""
    root = Path("mnist")
    root.mkdir()
    random = np.random.default_rng(0)
    for name, n in (("train", 200), ("t10k", 50)):
        images = random.integers(256, size=(n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        (root / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (root / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return root


def test_truncated_idx_files(mnist, arno, small):
    run = ("run", *small, "data=mnist", f"data.root={mnist}", "rounds=1", "partition=iid")
    assert arno(*run, "out=fine").status == 0
    images = mnist / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[: len(whole) // 2])
    assert str(images) in arno(*run).error
    images.write_bytes(gzip.compress(gzip.decompress(whole)[:-1000]))
    error = arno(*run).error
    assert "its header announces 156800 bytes and 155800 follow; delete it and download it again" in error
    images.write_bytes(b"")
    assert str(images) in arno(*run).error


def test_truncated_parquet_files(arno, small):
    root = Path("hub")
    root.mkdir()
    from io import BytesIO

    from PIL import Image

    def picture(shade: int) -> dict[str, bytes]:
        file = BytesIO()
        Image.new("RGB", (8, 8), (shade, shade, 0)).save(file, "PNG")
        return {"bytes": file.getvalue()}

    table = pa.table({"img": [picture(i) for i in range(60)], "label": [i % 3 for i in range(60)]})
    path = root / "train-00000.parquet"
    pq.write_table(table, path)
    run = ("run", *small, "data=hub", f"data.root={root}", "rounds=1", "partition=iid")
    assert arno(*run, "out=fine").status == 0
    path.write_bytes(path.read_bytes()[:-300])
    assert str(path) in arno(*run).error


def test_nan_in_the_data(arno):
    x, y = np.random.default_rng(0).normal(size=(100, 4)), np.arange(100) % 2
    x[17, 2] = np.nan
    np.savez("mine.npz", x=x, y=y, x_test=x[:10], y_test=y[:10])
    error = arno("run", "data=npz", "data.path=mine.npz").error
    assert "sample 17: it holds NaN or infinity; clean the data first" in error


def test_a_diverging_client_is_named(arno, small):
    error = arno("run", *small, "model=mlp", "local.lr=1e30", "out=run").error
    assert "diverged in round" in error
    assert "lower local.lr" in error
    assert '"status": "failed"' in (Path("run") / "manifest.json").read_text()


def test_a_config_file_that_is_none(arno):
    assert "cannot be read" in arno("run", "--config", "nowhere.yaml").error
    Path("list.yaml").write_text("- 1\n- 2\n")
    assert "settings by name" in arno("run", "--config", "list.yaml").error
    Path("broken.yaml").write_text("rounds: [1\n")
    assert "no valid YAML" in arno("run", "--config", "broken.yaml").error
    Path("typo.yaml").write_text("rouds: 3\n")
    assert "did you mean 'rounds'?" in arno("run", "--config", "typo.yaml").error


def test_an_option_that_does_not_exist(arno):
    assert "arno run --fast: there is no such option; a setting is written fast=…" in arno("run", "--fast").error
    for words in (("--rounds", "3"), ("--rounds=3",), ("seed=1", "--rounds", "3", "clients=5")):
        for command in ("run", "compare"):
            assert "there is no such option; a setting is written rounds=3; see" in arno(command, *words).error
    assert "a setting is written quick=…" in arno("run", "--quick", "rounds=3").error
    assert "--jobs" in arno("compare", "--jobs", "many").error
    assert "--jobs 0" in arno("compare", "seed=0..1", "--jobs", "0").error
    for words in (("seed=0..99999999999",), ("seed=0..9999", "local.lr=0.1,0.2", "rounds=1..9")):
        error = arno("compare", *words).error
        assert "at most 10" in error
        assert "\n" not in error.strip()
    assert arno("compare", f"seed=0..{'9' * 5000}").status == 2


def test_a_target_without_the_name(arno):
    Path("mine.py").write_text("def factory():\n    return []\nnumber = 3\n")
    assert "did you mean 'factory'?" in arno("run", "method=custom", "method.target=mine.py:factori").error
    assert "which cannot be called" in arno("run", "method=custom", "method.target=mine.py:number").error
    Path("wrong.py").write_text("def factory():\n    return 3\n")
    assert "a method is a list of parts" in arno("run", "method=custom", "method.target=wrong.py:factory").error
    Path("bare.py").write_text("def factory(*, strength):\n    return []\n")
    assert "'strength' has no default" in arno("run", "method=custom", "method.target=bare.py:factory").error
