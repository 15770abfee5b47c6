"""docs/sources.md: every feature of the documents has a command, and every command works as it is written."""

from __future__ import annotations

import io
import re
import shlex
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from arno.cli import main as arno_main
from arno.cli.fedrcl import main as federated_train
from arno.cli.fedrcl import translate
from arno.cli.quadratic_sim import main as quadratic_sim
from arno.cli.quadratic_sim import translate as quadratic_words
from arno.config.settings import compose, differences, plain, read
from arno.quadratic import Study
from arno.runs.quadratic import studies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text()
SCRIPTS: dict[str, Callable[[Sequence[str]], NoReturn]] = {
    "federated_train.py": federated_train,
    "quadratic_sim.py": quadratic_sim,
}
COMMANDS = {
    label: line.strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line, label in re.findall(r"^(.*?)  # ([A-Z]\d+)$", block, re.M)
}
#: Commands that take hours: run with few rounds.
LONG = [label for label in COMMANDS if label.startswith("P")]
#: Notebooks: another test executes them.
NOTEBOOKS = {
    label: command.split()[-1] for label, command in COMMANDS.items() if command.startswith("jupyter execute ")
}


def rows() -> list[list[str]]:
    """The numbered rows: number, feature, place, commands."""
    found = [line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in row] for row in found]


def status(call: Callable[[], object]) -> int:
    with pytest.raises(SystemExit) as ended:
        call()
    return int(ended.value.code or 0)


def perform(command: str) -> int:
    """The exit status of a command line, in this process."""
    words = shlex.split(command)
    if words[0] == "arno":
        return status(lambda: arno_main(words[1:]))
    if words[1] == "-c":
        exec(words[2], {})
        return 0
    return status(lambda: SCRIPTS[words[1]](words[2:]))


def archive(path: Path, folder: str, members: dict[str, int], labels: int, classes: int) -> None:
    """An archive in CIFAR's format: members with so many images of noise, each after its label bytes."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        for name, count in members.items():
            images = rng.integers(0, 256, (count, labels + 3072), dtype=np.uint8)
            images[:, labels - 1] = rng.integers(0, classes, count)
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = images.size
            file.addfile(info, io.BytesIO(images.tobytes()))


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """A folder with archives in the format of CIFAR-10 and CIFAR-100, with 2,500 training images of noise each."""
    ten = {f"data_batch_{i}.bin": 500 for i in range(1, 6)} | {"test_batch.bin": 500}
    archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", ten, 1, 10)
    archive(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", {"train.bin": 2500, "test.bin": 500}, 2, 100)
    return tmp_path


def test_every_feature_has_a_number_a_place_and_a_command() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, 88))
    for number, feature, place, labels in rows():
        assert feature, number
        assert place, number
        assert labels, number
        for label in labels.split(", "):
            assert label in COMMANDS, f"row {number} names {label}"


def test_every_line_of_a_block_is_a_command_with_a_label_of_its_own() -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines() if line]
    assert len(lines) == len(COMMANDS)
    cited = {label for row in rows() for label in row[3].split(", ")} | {"L4", "P1", "P2"}  # these are in the text
    assert set(COMMANDS) == cited


def test_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`((?:src|examples|benchmarks|docs|requirements)/[^`\s]*|[\w.]+\.(?:yaml|cff))`", PAGE))
    own = {"model_e200.pth", "config.yaml"}
    for name in named - own:
        assert (ROOT / name).exists(), name
    assert len(named) > 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what MLflow warns of while its store is made
def test_every_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed (the extra `mlflow`)")
    monkeypatch.setattr(sys, "argv", ["arno"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("arno.runs.quadratic.draw_one", lambda *drawn: None)
    said = {}
    for label, command in COMMANDS.items():
        if label not in LONG and label not in NOTEBOOKS:
            assert perform(command) == 0, f"{label}: {capsys.readouterr()}"
            said[label] = capsys.readouterr().out
    printed = said["L1"].splitlines()
    order = ["--- Bootstrap Round 0 ---", "Global Model 0.5", "--- Global Iteration 1 ---", "End of Iteration 1"]
    order += ["--- Global Iteration 2 ---", "End of Iteration 2", "--- Final Test Results ---"]
    order += ["Evaluating best model", "Best Model: ", "Global Model: ", "Client 0: "]
    places = [next(i for i, line in enumerate(printed) if line.startswith(start)) for start in order]
    assert places == sorted(places)
    assert "Early stopping triggered." in said["L3"]
    assert "End of Iteration 3" in said["L6"]
    assert "qrmix_seconds" in next(Path("checkpoints").glob("*QRFC*/metrics.jsonl")).read_text()
    assert "raise beta" in said["D9"]


def short(command: str, root: Path) -> str:
    """A long command with few rounds; a later setting replaces an earlier one."""
    if command.startswith("arno"):
        return command if "quadratic" in command else f"{command} clients=10 local.epochs=1 data.root={root}"
    rounds = 4 if "load_model_path" in command else 2
    more = f"model=lenet5 trainer.global_rounds={rounds} trainer.num_clients=10 trainer.participation_rate=0.1"
    return f"{command.replace('model_e200', 'model_e2')} {more} trainer.local_epochs=1 data.root={root}"


@pytest.mark.slow
def test_every_long_command_runs_with_few_rounds(
    tmp_path: Path, cifar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, on noise; the configurations are copies with fewer rounds and a smaller network."""
    monkeypatch.setattr(sys, "argv", ["arno"])
    (tmp_path / "examples" / "configs").mkdir(parents=True)
    fewer = {"rounds: 200": "rounds: 2", "rounds: 300": "rounds: 4", "rounds: 100": "rounds: 1"}
    for file in (ROOT / "examples" / "configs").glob("*.yaml"):
        text = file.read_text()
        for long, few in (fewer | {"rounds: 15000": "rounds: 9", "model: resnet18": "model: lenet5"}).items():
            text = text.replace(long, few)
        (tmp_path / "examples" / "configs" / file.name).write_text(text)
    for label in LONG:
        assert perform(short(COMMANDS[label], cifar)) == 0, f"{label}: {capsys.readouterr()}"
    assert len(list(tmp_path.glob("checkpoints/*/final.safetensors"))) == 3
    assert all((tmp_path / "both" / stage / "final.safetensors").exists() for stage in ("stage1", "stage2"))


def test_the_notebooks_of_the_page_are_executed_by_a_test() -> None:
    executed = (ROOT / "tests" / "examples" / "test_notebooks.py").read_text()
    assert len(NOTEBOOKS) == 2
    for name in NOTEBOOKS.values():
        assert (ROOT / name).exists()
        assert f'executed("{Path(name).name}"' in executed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("lorenzo", []),
        ("fedrcl_stage1", ["model.width=8"]),
        ("qrmix_stage2", ["model.width=8"]),
        ("quadratic", []),
    ],
)
def test_each_documents_own_setting_can_be_planned(
    file: str, words: list[str], cifar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The configuration as it is, on few images; the ResNets narrower, since `arno plan` times a few steps."""
    data = [] if file == "quadratic" else [f"data.root={cifar}"]
    arguments = ["plan", "--config", str(ROOT / "examples" / "configs" / f"{file}.yaml"), *data, *words]
    assert status(lambda: arno_main(arguments)) == 0, capsys.readouterr()
    assert "in all" in capsys.readouterr().out


def config(name: str) -> dict[str, Any]:
    return plain(compose([], read(ROOT / "examples" / "configs" / f"{name}.yaml")))


def test_the_configurations_of_two_stages_are_the_documents_command_lines(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints/some-run/checkpoints/00000200.safetensors"
    saved.parent.mkdir(parents=True)
    saved.touch()
    for label, name in (("P3", "fedrcl_stage1"), ("P4", "qrmix_stage2")):
        words = translate(shlex.split(COMMANDS[label])[2:])
        assert words.notes == []
        meant = plain(compose(words.overrides)) | {"load": None}
        assert differences(meant, config(name)) == []
    assert compose(translate(shlex.split(COMMANDS["P5"])[2:]).overrides).data.kind == "cifar100"


def test_the_configuration_of_the_quadratic_is_the_study() -> None:
    (study,), _ = studies(["seltype=powd", "powd=9"])
    assert differences(plain(compose([], study.config())), config("quadratic")) == []


def test_lorenzos_configuration_has_the_documents_values() -> None:
    made = config("lorenzo")
    assert made["model"]["kind"] == "simple5layercnn"
    method, local = made["method"], made["local"]
    assert (method["bootstrap_epochs"], method["patience"], method["delta"], method["min_batches"]) == (1, 10, 0.001, 2)
    assert (local["epochs"], local["lr"], local["momentum"], local["weight_decay"]) == (5, 0.01, 0, 1e-4)
    assert made["data"]["val"] == 0.2, "10,000 of 50,000 images"


def test_the_options_of_quadratic_sim_are_the_documents() -> None:
    names = ["num_users", "frac", "powd", "alpha", "lr", "le", "epochs", "seltype", "dim"]
    (study,), _ = studies(quadratic_words(shlex.split(COMMANDS["E1"])[2:]))
    assert all(f"--{name} " in COMMANDS["E1"] for name in names)
    assert study == Study(seltype="powd", powd=9, epochs=300)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seltyp rand", "unrecognized arguments: --seltyp"),
        ("--seltype best", "unknown seltype 'best'"),
        ("--lr", "expected one argument"),
        ("--lr nan", "lr = "),
        ("--epochs 0", "epochs = 0"),
        ("--powd x", "powd = 'x'"),
        ("seltype=rand", "unrecognized arguments: seltype=rand"),
        ("--out= --epochs 1.5", "epochs = 1.5"),
    ],
)
def test_a_mistake_in_quadratic_sim_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(lambda: quadratic_sim(words.split())) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert len(said.err.splitlines()) == 1
    assert message in said.err


def test_quadratic_sim_prints_and_runs_the_command_that_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(lambda: quadratic_sim(["--epochs=20", "--seltype", "rand", "--out", "it"])) == 0
    assert capsys.readouterr().out.splitlines()[0] == "arno quadratic epochs=20 seltype=rand out=it"
    assert len(Path("it/metrics.jsonl").read_text().splitlines()) == 20
    assert status(lambda: quadratic_sim(["--help"])) == 0
    assert "--num_users" in capsys.readouterr().out


def test_the_environment_file_names_what_is_there() -> None:
    made = read(ROOT / "environment.yaml")
    pip = next(one for one in made["dependencies"] if not isinstance(one, str))["pip"]
    assert (ROOT / pip[0].removeprefix("-c ")).exists()
    assert "python=3.12" in made["dependencies"]
    assert {"nbclient", "ipykernel"} <= set(pip), "jupyter execute"
    assert read(ROOT / "CITATION.cff").keys() >= {"cff-version", "message", "title", "authors"}
