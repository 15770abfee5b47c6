"""`arno methods`, `arno data`, `arno conform`, `arno completion`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from arno.cli.completion import SCRIPTS, words
from arno.cli.doctor import EXTRAS
from arno.config.names import registered
from arno.config.settings import GROUPS, compose, registry
from arno.conform import PACKAGED
from arno.grids.ranges import Range
from arno.methods import FAMILIES, methods
from arno.methods.descriptions import entries, entry, read

EXAMPLES = Path(__file__).parents[2] / "examples"
CASE = PACKAGED / "fedavg_softmax_samples.npz"


def flat(text: str) -> str:
    """Printed tables without their lines."""
    return " ".join("".join(c for c in text if c not in "│┃").split())


def test_the_list_of_methods_has_a_sentence_for_each_and_fits_80_columns(arno):
    said = arno("methods")
    assert said.status == 0
    assert max(map(cell_len, said.out.splitlines())) <= 80
    for one in entries():
        assert f"{one.name} {one.sentence}" in flat(said.out)
    for family in FAMILIES:
        assert f" {family} " in said.out


def test_the_methods_of_a_family(arno):
    said = flat(arno("methods", "--family", "personal").out)
    assert all(f" {name} " in said for name in ("fedper", "ditto", "local"))
    assert " scaffold " not in said
    assert "did you mean 'personal'?" in arno("methods", "--family", "persnal").error
    assert "leave one of them out" in arno("methods", "fedper", "--family", "personal").error


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "fedlc"])
def test_one_method_in_full(arno, name):
    said = arno("methods", name).out
    assert max(map(cell_len, said.splitlines())) <= 80
    told = flat(said)
    one = entry(name)
    for text in (one.sentence, one.helps, one.hurts, one.paper, one.command, "serial, processes and ray"):
        assert text in told
    assert ("│ method.mu │ 0.01" in said) == (name == "fedprox")
    assert ("log(0.001, 1)" in told) == (name == "fedprox")
    assert ("not multilabel, regression, tokens: its loss is defined for classes" in told) == (name == "fedlc")
    assert ("batched refuses it" in told) == (name in ("ditto", "fedlc"))
    assert ">>>" not in said


def test_methods_as_json(arno):
    rows = json.loads(arno("methods", "--json", "--family", "personal").out)
    assert {"fedper", "fedala"} <= {row["name"] for row in rows}
    assert all(row["family"] == "personal" for row in rows)
    (row,) = json.loads(arno("methods", "--json", "ditto").out)
    (lam, epochs) = row["settings"]
    assert (lam["name"], lam["default"], lam["range"]) == ("lam", 1.0, "log(0.01, 10)")
    assert epochs["range"] == ""
    assert row["defaults"] == {"weighting": "uniform"}


def test_what_methods_declare_is_complete_and_true():
    for one in entries():
        assert one.family in FAMILIES
        assert re.fullmatch(r"[A-Z].*[^.]\.", one.sentence), one.name
        assert one.helps.endswith(".")
        assert one.hurts.endswith(".")
        compose([f"method={one.name}", *(f"{key}={Range.of(text).high}" for key, text in one.ranges.items())])
        for setting in one.settings:
            assert setting.text, (one.name, setting.name)
            if setting.range:
                found = Range.of(setting.range)
                assert found is not None
                assert found.low <= setting.default <= found.high, (one.name, setting.name)
                for value in (found.low, found.high):  # a range is worth searching only if the method takes it
                    kind = type(setting.default)
                    methods.get(one.name)(**{setting.name: kind(value)})


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
    assert "is not a conformance case" in arno("conform", "nowhere.npz").error
    np.savez("bare.npz", x=np.zeros(3))
    assert "is not a conformance case" in arno("conform", "bare.npz").error
    assert "has version 2" in arno("conform", changed(Path("new.npz"), spec=_spec(version=2))).error
    assert "kind of case" in arno("conform", changed(Path("odd.npz"), spec=_spec(kind="magic"))).error
    np.savez("pickled.npz", spec=np.array([{"a": 1}], dtype=object))
    assert "is not a conformance case" in arno("conform", "pickled.npz").error
    assert "did you mean 'serial'?" in arno("conform", CASE, "--backend", "seral").error


def test_conform_replays_a_folder_and_goes_on_after_a_case_that_is_refused(arno):
    folder = Path("cases")
    folder.mkdir()
    assert "the folder holds no .npz file" in arno("conform", folder).error
    changed(folder / "a_odd.npz", spec=_spec(kind="asynchronous"))
    changed(folder / "b_good.npz", spec=_spec(name="good"))
    said = arno("conform", folder)
    assert said.status == 2
    assert [line.split()[0] for line in said.out.splitlines()] == ["good"]
    (line,) = said.err.splitlines()
    assert line.split()[:2] == ["a_odd", "refused:"]
    assert "unknown kind of case 'asynchronous'" in line
    (row,) = json.loads(arno("conform", "--json", folder).out)
    assert (row["name"], row["ok"]) == ("good", True)
    assert arno("conform", folder / "b_good.npz", CASE).status == 0


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
    settings = ("alpha", "equal", "turns", "min_size", "tries")
    assert words(["arno run partition."]) == [f"partition.{n}=" for n in settings]
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


def test_help_shows_the_settings_of_the_groups_that_are_named(arno):
    said = arno("run", "--help", "method=fedprox", "data=table").out
    assert "weight of the proximal term" in said
    assert "the column to predict" in said
    assert "weight of the proximal term" not in arno("run", "--help").out


def test_help_shows_the_settings_of_a_method_and_a_network_of_ones_own(arno):
    method = f"method.target={EXAMPLES / 'my_method.py'}:factory"
    net = f"model.target={EXAMPLES / 'my_net.py'}:Net"
    said = arno("run", "--help", "method=custom", method, "model=custom", net).out
    assert "strength: the largest norm of an update" in said
    assert re.search(r"method\.strength +1\.0", said)
    assert re.search(r"model\.drop +0\.2", said)
    assert "there is no file" in arno("run", "--help", "method=custom", "method.target=nowhere.py:factory").error
    assert arno("run", "--help", "method=custom").out


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "problem"])
def test_every_setting_of_a_group_is_explained(group):
    known = registry(group)
    for name in known.names():
        _, texts = read(known.get(name).__doc__ or "")
        assert {*known.settings(name)} - {"limit"} <= {*texts}, name


def test_doctor_names_what_is_missing_and_how_to_install_it(arno, monkeypatch):
    said = arno("doctor").out
    assert "cores" in said
    assert "torch" in said
    monkeypatch.setattr("arno.cli.doctor.installed", lambda package: "")
    assert "pip install 'arno[ray]'" in arno("doctor").out


def test_doctor_knows_every_extra_of_users():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(EXTRAS) == set(declared) - {"dev", "docs", "browser"}
