"""Attacks by words of a command, and by files and folders that somebody else has made, each once found to matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arno.records import checksummed, metrics_file
from arno.records.folder import RunFolder

LONG = "x" * 300
WORDS = [
    # the words; what the one line says
    ("run 'local.lr=uniform(0.1, inf)'", "the bounds of uniform must be finite; change the bounds"),
    ("run 'local.lr=uniform(-1e308, 1e308)'", "the bounds of uniform must be finite"),
    (f"run local.lr={'each_round(' * 300}1{')' * 300}", "each_round must be the outermost distribution"),
    ("run engine=serial engine.threads=100000000", "engine.threads = 100000000: it must be from 1 to 1024; try"),
    ("run track=nothing", "the known names are mlflow, tensorboard, wandb; choose one of them"),
    ("run method=compose method.parts=[nothing]", "unknown part 'nothing': .*; arno methods compose lists them"),
    ("run partition=nothing", "; choose one of them"),
    (
        f"compare seed=0,1 out={LONG}",
        "a name has at most 255 bytes and a path 3900, not 300 and .*; choose a shorter out=",
    ),
    (f"tune out={LONG}", "a name has at most 255 bytes"),
    (f"quadratic epochs=10 out={LONG}", "a name has at most 255 bytes"),
    ("quadratic epochs=10 seltype=rand,", "seltype = None: it must be of type str"),
    ("quadratic epochs=10 'out=[1]'", r"out = \[1\]: it must be one name"),
    ("quadratic epochs=10 alpha=1e-300", "alpha = 1e-300: it is so small that all shares are 0; try alpha=3"),
    ("quadratic epochs=10,20", "epochs = 10, 20: all simulations of a sweep have the same number of rounds"),
    ("quadratic epochs=10 seed=0,1 out=/dev/null", "out = /dev/null: cannot be written"),
    ("quadratic --quiet epochs=10 lr=1e300", "the model diverged in round 1; lower lr"),
    ("reproduce nothing", "unknown figure 'nothing': .*; arno reproduce lists them"),
    ("ui --host ''", "an empty address is every address of this machine; try --host 127.0.0.1"),
    ("run out=loop", "out = loop: is a link that leads to itself; choose another out="),
    ("compare seed=0,1 out=loop", "out = loop: is a link that leads to itself"),
    ("track loop --to tensorboard", "loop: Too many levels of symbolic links; give another path"),
    ("run data=table data.path=loop.csv data.label=y", "loop.csv: cannot be read .Too many levels of symbolic links"),
]


@pytest.mark.parametrize(("words", "said"), WORDS, ids=[f"{words[:40]} {i}" for i, (words, _) in enumerate(WORDS)])
def test_attack_words_of_a_command_are_refused_with_value_rule_and_remedy(words, said, arno):
    import re
    import shlex

    for name in ("loop", "loop.csv"):
        Path(name).symlink_to(name)
    error = arno(*shlex.split(words)).error
    assert re.search(said, error), error
    assert "--debug" not in error
    assert len(error) < 1500


def test_attack_a_long_condition_chooses_no_run(arno):
    """It is no name of a folder, and a file system refuses even to look for it."""
    assert arno("runs", f"name={'*' * 5000}").out == "no runs in .\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_attack_a_file_of_the_system_that_never_ends(arno):
    """It says that it is empty."""
    error = arno("run", "partition=file", "partition.path=/proc/self/pagemap").error
    assert "/proc/self/pagemap" in error


def test_attack_a_sweep_does_not_take_other_settings_for_seeds(arno):
    """Their mean was printed as one simulation with two seeds."""
    out = arno("quadratic", "epochs=20", "lr=1e-3,1e-4", "seed=0..1", "out=sweep").out
    assert "rand lr=0.001 " in out
    assert "rand lr=0.0001 " in out
    with np.load("sweep/sweep.npz") as arrays:
        assert [arrays[f"rand lr={lr} gap"].shape for lr in ("0.001", "0.0001")] == [(2, 20), (2, 20)]


# --- folders of somebody else ---


@pytest.fixture
def run(arno, small) -> Path:
    """A finished run."""
    return arno("run", *small, "engine=serial", "out=run").folder


def change(run: Path, **values: object) -> None:
    """Change the manifest as an attacker does, who knows the checksum."""
    manifest = RunFolder(run).manifest() | values
    (run / "manifest.json").write_text(checksummed.text(manifest))


@pytest.mark.parametrize(
    ("name", "value"),
    [("engine", 3), ("engine", {"equality": "none"}), ("checksums", [1]), ("sizes", "many"), ("rounds", "two")],
)
def test_attack_a_manifest_with_odd_values_is_one_line(name, value, run, arno):
    change(run, **{name: value})
    for command in ("report", "track"):
        assert f"manifest.json: its {'engine has no name' if isinstance(value, dict) else f'value of {name}'}" in (
            arno(command, run, *(("--to", "tensorboard") if command == "track" else ())).error
        )
    assert "the previous manifest is used" in arno("resume", run, "rounds=5").out


@pytest.mark.parametrize("started", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_attack_a_run_of_a_year_that_no_calendar_has(started, run, arno):
    change(run, started=started)
    assert arno("runs", ".").status == 0
    assert arno("runs", "show", run).status == 0


@pytest.mark.parametrize("digits", [10**9, -400, 18])
def test_attack_a_score_with_a_billion_digits(digits, run, arno):
    """It took gigabytes to print one."""
    declared = RunFolder(run).manifest()["metrics"]
    change(run, metrics=[one | {"digits": digits} for one in declared])
    assert "damaged: run: manifest.json its metrics cannot be read (digits = " in arno("runs", ".").out
    assert "its metrics cannot be read" in arno("report", run).error


def test_attack_a_command_of_a_million_words_is_not_taken_apart(run, arno):
    """To take 60 MB apart took minutes."""
    change(run, command=f"arno run {'seed=1 ' * 200_000}")
    assert "rounds" in arno("runs", "show", run).out


def test_attack_checksums_of_other_files_are_not_repaired(run, arno):
    Path("mine.txt").write_text("precious")
    change(run, checksums={"../mine.txt": "00000000", str(Path("mine.txt").resolve()): "00000000"}, sizes={})
    assert arno("repair", run).out == "nothing is damaged\n"
    assert Path("mine.txt").read_text() == "precious"
    assert sorted(path.name for path in Path().iterdir() if path.name[0] != ".") == ["mine.txt", "run"]


def test_attack_repair_reads_no_environment(run, arno, monkeypatch):
    monkeypatch.setenv("SECRET", "word")
    change(run, command="arno run 'load=${oc.env:SECRET}'")
    (run / "manifest.json.previous").unlink()
    (run / "config.yaml").unlink()
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    assert "neither a checkpoint nor the manifest holds the configuration" in arno("repair", run).error
    assert not [path for path in run.iterdir() if path.is_file() and b"word" in path.read_bytes()]


@pytest.mark.parametrize("seconds", [-1.0, 1e300, float("nan"), float("inf")])
def test_attack_a_round_of_impossible_length(seconds, run, arno):
    rows = [row | {"seconds": seconds} for row in RunFolder(run).rows()]
    (run / metrics_file.NAME).write_text("".join(metrics_file.line(row, RunFolder(run).mark) for row in rows))
    assert "is no record of a round" in arno("report", run).error


def test_attack_panels_that_are_nested_deeply_do_not_prevent_a_removal(run, arno):
    (run / "panels.json").write_text("[" * 100_000)
    assert arno("runs", "rm", run, "--yes").out == "removed run\n"
    assert not run.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="a name of any bytes")
@pytest.mark.parametrize("command", ["resume", "repair", "report"])
def test_attack_a_folder_whose_name_is_no_text_is_not_taken_for_damage(command, run, arno):
    """The readers of tensors open no such path; `arno repair` set all checkpoints aside."""
    other = Path(os.fsdecode(b"r\xff"))
    run.rename(other)
    before = sorted(path.name for path in other.rglob("*"))
    assert "its path has bytes that are no text; rename the folder" in arno(command, other).error
    assert sorted(path.name for path in other.rglob("*")) == before


# --- what the system refuses ---

#: Runs a command as a user who may not pass by permissions, not even as root.
WITHOUT_RIGHTS = """
import ctypes, os, sys
if os.geteuid() == 0:
    libc, head, data = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, data) == 0
    for i in range(3):
        data[i] &= ~0b1110
    assert libc.capset(head, data) == 0
from arno.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities")
@pytest.mark.parametrize("command", ["run", "compare", "quadratic", "resume", "repair", "report", "runs"])
def test_attack_a_read_only_folder_is_one_line(command, run):
    """attacks.md: read-only."""
    words = {
        "run": ("run", "rounds=1", "out=run/new"),
        "compare": ("compare", "seed=0,1", "out=run/new"),
        "quadratic": ("quadratic", "epochs=10", "out=run/new"),
        "resume": ("resume", "run", "rounds=9"),
        "runs": ("runs", "run"),
    }.get(command, (command, "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    places = [run, *(path for path in run.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_RIGHTS, *words], capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        for place in places:
            place.chmod(0o755)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    if command == "runs":
        assert (done.returncode, done.stderr) == (0, ""), "the list needs no index"
        return
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Permission denied" in line


# --- data and code of the user ---


def test_attack_a_class_whose_name_is_no_text(arno):
    from PIL import Image

    for name in (b"data/a", b"data/\xff"):
        os.makedirs(name)
        for i in range(9):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(os.fsdecode(name + b"/%d.png" % i))
    error = arno("run", "data=folder", "data.root=data", "clients=2").error
    assert "a name has bytes that are no text; rename it" in error


def test_attack_samples_without_values(arno):
    np.savez("data.npz", x=np.zeros((40, 0)), y=np.arange(40) % 2)
    assert "samples of shape (0,): they hold no values" in arno("run", "data=npz", "data.path=data.npz").error


@pytest.mark.parametrize("path", ["tables", "tables/*.csv"])
def test_attack_a_link_out_of_a_folder_of_tables_is_not_followed(path, arno):
    Path("tables").mkdir()
    Path("tables/a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    Path("secret.csv").write_text("x,y\n1,0\n2,1\n")
    words = ("run", "data=table", f"data.path={path}", "data.label=y", "clients=2", "rounds=1", "partition=iid")
    assert arno(*words, "out=before").status == 0
    Path("tables/b.csv").symlink_to(Path("secret.csv").resolve())
    assert "tables/b.csv: is a link that leaves tables; copy what it points to into the folder" in arno(*words).error


CODE = [
    # the file; what the one line says
    ("def factory(:\n", "importing it failed: SyntaxError: .*own.py, line 1.; correct the code"),
    ("import nothing_here\n", "importing it failed: ModuleNotFoundError: .* line 1: import nothing_here.; correct"),
    ("raise SystemExit(0)\n", "importing it failed: SystemExit: 0 .* line 1"),
    ("def factory():\n    raise ValueError('mine')\n", "calling it failed: ValueError: mine .* line 2"),
    ("def factory():\n    raise SystemExit(0)\n", "calling it failed: SystemExit: 0 .* line 2"),
    ("def factory(*, a=object()):\n    return []\n", "its setting 'a' is no plain value; settings are numbers, texts"),
    ("def factory(*, kind='x'):\n    return []\n", "its setting 'kind' has a name that Arno uses"),
    (
        "def factory(*, a: 'nothing' = 3):\n    return []\n",
        "its signature cannot be read .name 'nothing' is not defined",
    ),
    ("from functools import partial\nfactory = partial(int)\n", "its signature cannot be read .no signature found"),
]


@pytest.mark.parametrize(("code", "said"), CODE, ids=[str(i) for i in range(len(CODE))])
def test_attack_code_that_fails_before_the_first_round_is_one_line(code, said, arno):
    import re

    Path("own.py").write_text(code)
    error = arno("run", "method=custom", "method.target=own.py:factory", "out=run").error
    assert re.search(said, error), error
    assert "own.py:factory" in error
    assert not Path("run").exists()


def test_attack_a_partition_that_lists_a_trillion_samples(arno):
    Path("own.py").write_text("def factory(strata, clients, seed):\n    return [range(10**12), [1], [2]]\n")
    words = ("run", "partition=custom", "partition.target=own.py:factory", "clients=3")
    assert "client 0 in partition=custom: its samples must be whole numbers from 0 to " in arno(*words).error


def test_a_lazy_layer_is_named(arno):
    Path("own.py").write_text("from torch import nn\ndef factory(shape, outputs):\n    return nn.LazyLinear(outputs)\n")
    error = arno("run", "model=custom", "model.target=own.py:factory").error
    assert "a lazy layer has no size before its first batch; write nn.Linear(64, 10)" in error


CHANGES = """
import os
from arno import Part


class Wanders(Part):
    def {moment}(self, *arguments):
        os.chdir("/")


def factory():
    return [Wanders()]
"""


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize("moment", ["start", "send", "best_model"])
def test_attack_own_code_that_changes_the_current_folder_is_one_line(moment, engine, arno, tmp_path, monkeypatch):
    """The rest of the run went to another place, in silence."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CHANGES.format(moment=moment))
    words = ("method=custom", "method.target=mine.py:factory", "rounds=2", "clients=3", "data.limit=60", "out=it")
    said = arno("run", *words, f"engine={engine}", "--quiet")
    assert said.status == 2
    rule = "the run writes to it, which is relative to the current folder; use absolute paths in your own code"
    assert f"os.chdir('/'): {rule}" in said.err
    assert Path.cwd() == tmp_path
    monkeypatch.chdir(tmp_path.parent)  # afterwards it may be changed again
