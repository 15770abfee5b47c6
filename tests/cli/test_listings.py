"""`arno methods`, `arno data`, `arno conform`, `arno completion`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from arno.cli.completion import SCRIPTS, words
from arno.config.names import registered
from arno.config.settings import GROUPS, registry
from arno.conform import PACKAGED
from arno.methods import methods

CASE = PACKAGED / "fedavg_softmax_samples.npz"


def test_the_table_of_methods_says_all_of_each_and_fits_80_columns(arno):
    said = arno("methods")
    assert said.status == 0
    assert max(map(cell_len, said.out.splitlines())) <= 80
    flat = " ".join("".join(c for c in said.out if c not in "│┃").split())
    for name in methods.names():
        assert f" {name} " in flat
        assert " ".join(methods.info(name)["paper"].split()[:2]) in flat
        for setting in methods.settings(name):
            assert f"{setting}=" in flat


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_one_method_in_full(arno, name):
    said = arno("methods", name).out
    assert "arXiv" in said
    assert ("mu=0.01" in said) == (name == "fedprox")
    assert ">>>" not in said


def test_an_unknown_method(arno):
    assert "did you mean 'fedprox'?" in arno("methods", "fedprx").error


def test_the_data_sets_and_partitions(arno):
    said = arno("data").out
    assert max(map(cell_len, said.splitlines())) <= 80
    for group in ("data", "partition"):
        for name in registry(group).names():
            assert f"│ {name} " in said


def test_a_partition_is_described_and_drawn(arno):
    said = arno("data", "show", "partition=classes", "partition.classes=3", "clients=12", "--out", "it.png")
    assert said.status == 0
    rows = dict(
        [cell.strip() for cell in line.strip("│").split("│")] for line in said.out.splitlines() if line[0] == "│"
    )
    assert rows["clients"] == "12"
    assert rows["classes min"] == rows["classes max"] == "3"
    assert 0 < float(rows["heterogeneity"]) < 1
    assert said.out.splitlines()[-1] == "it.png"
    assert Path("it.png").read_bytes()[:4] == b"\x89PNG"
    assert "did you mean 'show'?" in arno("data", "shw").error


def test_conform_replays_the_packaged_cases(arno):
    said = arno("conform")
    assert said.status == 0, said
    lines = said.out.splitlines()
    assert all(line.endswith("ok") for line in lines)
    assert {"fedavg_softmax_samples", "fedprox_mlp_samples", "balance_even"} <= {line.split()[0] for line in lines}


def test_conform_as_json(arno):
    (row,) = json.loads(arno("conform", "--json", CASE).out)
    assert row["name"] == "fedavg_softmax_samples"
    assert row["ok"] is True
    assert 0 <= row["error"] <= row["tolerance"]


def changed(path: Path, **changes: np.ndarray) -> Path:
    with np.load(CASE, allow_pickle=False) as file:
        np.savez(path, **(dict(file) | changes))
    return path


def test_conform_fails_with_status_1(arno):
    with np.load(CASE, allow_pickle=False) as file:
        w = file["w"].copy()
    w[-1, 0] += 1e-3
    said = arno("conform", CASE, changed(Path("wrong.npz"), w=w))
    assert said.status == 1
    assert [line.split()[-1] for line in said.out.splitlines()] == ["ok", "FAIL"]
    assert arno("conform", "--json", "wrong.npz").status == 1
    shape = arno("conform", "--json", changed(Path("shape.npz"), w=w[:, :-1]))
    assert shape.status == 1
    assert json.loads(shape.out)[0] == json.loads(shape.out)[0] | {"error": None, "ok": False}
    assert arno("conform", changed(Path("nan.npz"), w=w * np.nan)).status == 1


def test_conform_refuses_what_is_no_case_with_status_2(arno):
    assert "is no conformance case" in arno("conform", "nowhere.npz").error
    np.savez("bare.npz", x=np.zeros(3))
    assert "is no conformance case" in arno("conform", "bare.npz").error
    assert "has version 2" in arno("conform", changed(Path("new.npz"), spec=_spec(version=2))).error
    assert "kind of case" in arno("conform", changed(Path("odd.npz"), spec=_spec(kind="magic"))).error
    np.savez("pickled.npz", spec=np.array([{"a": 1}], dtype=object))
    assert "is no conformance case" in arno("conform", "pickled.npz").error
    assert "did you mean 'serial'?" in arno("conform", CASE, "--backend", "seral").error


def _spec(**changes: object) -> np.ndarray:
    with np.load(CASE, allow_pickle=False) as file:
        return np.array(json.dumps(json.loads(str(file["spec"])) | changes))


@pytest.mark.parametrize("group", GROUPS)
def test_completion_knows_what_the_registries_know(group):
    """It reads the sources instead of importing them; the two must agree."""
    known = registry(group)
    found = registered(group)
    assert list(found) == known.names()
    for name, settings in found.items():
        assert set(settings) <= known.settings(name).keys()


def test_what_completion_offers():
    assert words(["arno", "comp"]) == ["compare", "completion"]
    assert words(["arno run data=fashion"]) == ["data=fashion_mnist"]
    assert words(["arno run partition."]) == [f"partition.{n}=" for n in ("alpha", "equal", "min_size", "tries")]
    assert words(["arno run partition=shards partition."]) == ["partition.shards="]
    assert words(["arno run rounds=1"]) == []
    assert words(["arno resume ru"]) == []
    assert "rounds=" in words(["arno resume runs/x r"])


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_completion_scripts_are_valid(arno, shell):
    script = arno("completion", shell).out
    assert "arno completion --words" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_completion_in_a_real_bash(arno):
    if not shutil.which("bash"):
        pytest.skip("no bash here")
    script = arno("completion", "bash").out
    stub = "arno() { printf 'method=fedavg\\nmethod=fedprox\\n'; }\n"
    probe = "COMP_LINE='arno run method=fed' COMP_POINT=19 COMP_WORDS=(arno run method = fed) COMP_CWORD=4; _arno\n"
    show = 'printf "%s " "${COMPREPLY[@]}"'
    done = subprocess.run(["bash"], input=stub + script + probe + show, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["fedavg", "fedprox"]


def test_an_unknown_shell(arno):
    assert "tcsh" in arno("completion", "tcsh").error
