"""The seed's command lines, the two stages, and what is said when a stage cannot start."""

from __future__ import annotations

import json
import pickle
import runpy
import shlex
import sys
from copy import deepcopy
from pathlib import Path

import pandas as pd
import pytest
import torch

from arno import cli
from arno.cli.fedrcl import find, main, translate
from arno.config import build
from arno.config.settings import compose, plain
from arno.errors import ArnoError
from arno.records.checkpoint import read_tensors
from arno.runs.run import resume, run

STAGE1 = [
    "client=fedrcl",
    "dataset=cifar10",
    "server.type=ServerM",
    "trainer.global_rounds=200",
    "trainer.num_clients=100",
    "trainer.participation_rate=0.05",
    "split.alpha=0.3",
    "qrmix.stage2=false",
]
STAGE2 = [
    "client=fedrcl",
    "dataset=cifar10",
    "server.type=ServerQRFC",
    "server.beta=0.01",
    "server.gamma=1.0",
    "trainer.global_rounds=300",
    "trainer.num_clients=100",
    "trainer.participation_rate=0.05",
    "split.alpha=0.3",
    "qrmix.stage2=true",
    "qrmix.rank_k=10",
    "qrmix.oversampling=10",
    "qrmix.power_iters=2",
    "load_model_path=./checkpoints/.../model_e200.pth",
]
#: The same with the embedded digits, so that it takes a second.
SMALL = [
    "dataset=digits",
    "model=mlp",
    "trainer.num_clients=4",
    "trainer.participation_rate=0.5",
    "trainer.local_epochs=1",
]
ONE = [*SMALL, "client=fedrcl", "server.type=ServerM", "trainer.global_rounds=2", "qrmix.stage2=false"]
TWO = [*SMALL, "client=fedrcl", "server.type=ServerQRFC", "trainer.global_rounds=4", "qrmix.stage2=true"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["federated_train.py"])
    return tmp_path


def train(*words: str, status: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status


def final(run: Path) -> torch.Tensor:
    return read_tensors(run / "final.safetensors")[0]["w"]


def rounds(run: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_seeds_command_lines_mean_what_they_say(tmp_path: Path) -> None:
    one = compose(translate(STAGE1).overrides)
    assert (one.data.kind, one.clients, one.participation, one.rounds) == ("cifar10", 100, 0.05, 200)
    assert (one.partition.kind, one.partition.alpha, one.model.kind) == ("dirichlet", 0.3, "resnet18")
    assert list(one.method.parts) == ["rcl", "server_momentum"]
    local = one.local
    assert (local.lr, local.lr_decay, local.weight_decay, local.batch_size) == (0.1, 0.998, 1e-3, 50)
    assert (local.epochs, local.clip, local.augment, one.data.val) == (5, 10, True, 0)
    assert translate(STAGE1).notes == []

    saved = tmp_path / "checkpoints/some-run/checkpoints/00000200.safetensors"
    saved.parent.mkdir(parents=True)
    saved.touch()
    two = compose(translate(STAGE2).overrides)
    assert list(two.method.parts) == ["rcl", "qrmix"]
    mixing = two.method.qrmix
    assert (mixing.beta, mixing.gamma, mixing.rank_k, mixing.oversampling, mixing.power_iters) == (0.01, 1.0, 10, 10, 2)
    assert mixing.rule == "seed"
    assert two.rounds == 300
    assert Path(two.load).resolve() == saved
    assert translate(STAGE2).notes == []


def test_every_documented_key_has_its_counterpart() -> None:
    words = """trainer.local_epochs=3 trainer.local_lr=0.2 trainer.local_lr_decay=0.9 trainer.global_lr=0.7
        split.mode=dirichlet split.alpha=0.6 batch_size=7 optimizer.momentum=0.4 optimizer.wd=0.01 server.momentum=0.3
        model=lenet5 seed=11 dataset=cifar100 server.type=ServerM trainer.global_rounds=9 data.root=there out=here"""
    config = compose(translate(words.split()).overrides)
    local = config.local
    assert (local.epochs, local.lr, local.lr_decay, local.batch_size) == (3, 0.2, 0.9, 7)
    assert (local.momentum, local.weight_decay, config.server_lr) == (0.4, 0.01, 0.7)
    assert (config.partition.alpha, config.model.kind, config.seed, config.rounds) == (0.6, "lenet5", 11, 9)
    assert config.method.server_momentum.momentum == 0.3
    assert (config.data.kind, config.data.root, config.out) == ("cifar100", "there", "here")


@pytest.mark.parametrize(
    ("words", "kind", "parts"),
    [
        ("client=base server.type=Server", "fedavg", None),
        ("client=fedrcl server.type=Server", "compose", ["rcl"]),
        ("client=base server.type=ServerAdam server.momentum=0.8", "compose", ["server_adaptive"]),
        ("client=moon server.type=ServerQRFC qrmix.stage2=true server.rule=lsq", "compose", ["moon", "qrmix"]),
        ("client=fedrcl server.type=ServerQRFC qrmix.stage2=false", "compose", ["rcl"]),
    ],
)
def test_clients_and_servers_are_parts(words: str, kind: str, parts: list[str] | None) -> None:
    config = compose(translate(words.split()).overrides)
    assert config.method.kind == kind
    assert parts is None or list(config.method.parts) == parts
    if parts == ["server_adaptive"]:
        assert (config.method.server_adaptive.beta1, config.server_lr) == (0.8, 0.01)
    if "lsq" in words:
        assert config.method.qrmix.rule == "lsq"


def test_what_has_no_effect_is_said() -> None:
    notes = " ".join(
        translate(["server.type=ServerM", "server.beta=1", "qrmix.stage2=true", "qrmix.rank_k=3"]).notes
        + translate(["server.type=ServerQRFC"]).notes
        + translate(["split.mode=iid", "split.alpha=3"]).notes
    )
    for word in ("server.beta", "qrmix.stage2=true has no effect", "qrmix.rank_k", "plain mean", "split.alpha"):
        assert word in notes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trainer.gobal_rounds=3", "trainer.global_rounds"),
        ("server.type=ServerX", "ServerM"),
        ("client=fedrcll", "fedrcl"),
        ("method=fedavg", "unknown key"),
        ("qrmix.stage2=perhaps", "true or false"),
        ("dataset", "key=value"),
        ("load_model_path=checkpoints/.../model_e7.pth", "round 7"),
        ("load_model_path=nowhere.safetensors dataset=digits model=mlp", "no such file"),
    ],
)
def test_mistakes_are_named(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(*words.split(), status=2)
    assert message in capsys.readouterr().err


def test_the_second_stage_goes_on_where_the_first_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(*ONE)
    first = Path(capsys.readouterr().out.splitlines()[-1])
    train(*TWO, "load_model_path=./checkpoints/.../model_e2.pth")
    printed = capsys.readouterr().out.splitlines()
    second = Path(printed[-1])
    assert first.parent == second.parent == Path("checkpoints")
    assert (rounds(first), rounds(second)) == ([1, 2], [3, 4])
    for panel in ("eigenvalues", "curvature-kept", "step"):
        assert (second / f"{panel}.png").exists()
    rate = pd.concat([pd.read_parquet(path / "clients.parquet") for path in (first, second)])
    assert rate.groupby("round")["lr"].first().tolist() == pytest.approx([0.1 * 0.998**t for t in range(4)])

    # the printed line is the same run
    line = next(line for line in printed if line.startswith("arno run "))
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(line)[1:], "out=again", "--quiet"])
    assert ended.value.code == 0
    assert torch.equal(final(Path("again")), final(second))

    # and so is one that was stopped and resumed, or that names the run instead of the file
    words = translate([*TWO, f"load_model_path={first}/model_e2.pth"]).overrides
    run(*words, "rounds=3", "out=stopped")
    resume("stopped", "rounds=4")
    assert torch.equal(final(Path("stopped")), final(second))
    run(*[w for w in words if not w.startswith("load=")], f"load={first}", "out=folder")
    assert torch.equal(final(Path("folder")), final(second))


def test_the_second_stage_starts_from_the_first_ones_model() -> None:
    run(*translate([*ONE, "out=first"]).overrides)
    # nothing moves: no learning rate to speak of
    words = translate([*TWO, "load_model_path=first", "trainer.local_lr=1e-30", "out=second"]).overrides
    run(*words, "rounds=3")
    assert torch.equal(final(Path("second")), final(Path("first")))


def test_a_stage_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    run(*translate([*ONE, "out=first"]).overrides)
    other = translate([*TWO, "load_model_path=first", "client=base", "model=softmax", "out=no"]).overrides
    with pytest.raises(ArnoError, match=r"holds mlp .*this run trains softmax .*set model=mlp"):
        run(*other)
    wide = translate([*TWO, "load_model_path=first", "model.hidden=[64]", "out=no"]).overrides
    with pytest.raises(ArnoError, match="this run trains mlp"):
        run(*wide)
    with pytest.raises(ArnoError, match="counts all stages"):
        run(*translate([*TWO, "load_model_path=first", "out=no"]).overrides, "rounds=2")
    with pytest.raises(ArnoError, match="no checkpoint"):
        run(*translate([*TWO, f"load_model_path={tmp_path}", "out=no"]).overrides)
    for content in (b"PK\x03\x04" + bytes(100), pickle.dumps({"w": [1.0] * 100})):
        Path("model_e2.pth").write_bytes(content)
        with pytest.raises(ArnoError, match=r"no zip archive of torch\.save"):
            run(*translate([*TWO, "load_model_path=model_e2.pth", "out=no"]).overrides)
    Path("torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    with pytest.raises(ArnoError, match="cannot be read"):
        run(*translate([*TWO, "load_model_path=torn.safetensors", "out=no"]).overrides)
    assert not Path("no").exists()


def test_three_dots_mean_the_newest_run_that_has_the_round(tmp_path: Path) -> None:
    import os

    for age, name in ((30, "a/old"), (20, "b/new"), (10, "c/other")):
        path = tmp_path / "checkpoints" / name / "checkpoints" / f"{7 if 'other' not in name else 8:08d}.safetensors"
        path.parent.mkdir(parents=True)
        path.touch()
        now = path.stat().st_mtime
        os.utime(path, (now - age, now - age))
    assert "new" in find("./checkpoints/.../model_e7.pth")
    assert "other" in find("checkpoints/.../model_e8.pth")
    assert "old" in find("checkpoints/.../old/model_e7.pth")
    assert "old" in find("checkpoints/a/old/model_e7.pth")


def test_three_dots_find_a_real_pth_too(tmp_path: Path) -> None:
    for name in ("model_e7.pth", "res18.pth"):
        path = tmp_path / "checkpoints" / "CIFAR10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert find(f"./checkpoints/.../{name}") == f"checkpoints/CIFAR10/{name}"
    for name in ("model_e8.pth", "other[1].pth"):
        with pytest.raises(ArnoError, match=r"^load_model_path=\S+: (there is no such file|no folder there holds)"):
            find(f"./checkpoints/.../{name}")


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    train("--help")
    said = capsys.readouterr().out
    for key in ("server.beta", "server.gamma", "server.momentum", "qrmix.rank_k", "split.alpha", "load_model_path"):
        assert f" {key}," in said


def stages(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--stages", "one.yaml,two.yaml", *words])
    return int(ended.value.code or 0)


ONE_YAML = "{method: fedrcl, clients: 4, participation: 0.5, local: {epochs: 1}, rounds: 2}"
TWO_YAML = "{method: {kind: qrmix, rank_k: 3}, clients: 4, participation: 0.5, local: {lr_decay: 0.998}, rounds: 3}"


def test_stages_run_in_one_go_and_are_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.yaml").write_text(ONE_YAML)
    Path("two.yaml").write_text(TWO_YAML)
    assert stages("out=both", "seed=5") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(Path("both/stage2"))
    assert (rounds(Path("both/stage1")), rounds(Path("both/stage2"))) == ([1, 2], [3])
    config = json.loads((Path("both/stage2") / "manifest.json").read_text())
    assert config["seed"] == 5
    before = (Path("both/stage1") / "metrics.jsonl").stat().st_mtime_ns, final(Path("both/stage2"))
    assert stages("out=both", "seed=5") == 0
    assert torch.equal(final(Path("both/stage2")), before[1])
    assert stages("out=both", "seed=6") == 2
    assert "seed: 5 → 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("two", "words", "message"),
    [
        (TWO_YAML.replace("rounds: 3", "rounds: 2"), (), "counts all stages"),
        (TWO_YAML[:-1] + ", load: first}", (), "loads the previous stage"),
        (TWO_YAML, ("--config", "one.yaml"), "--config with --stages"),
        ("{metod: fedrcl}", (), "metod"),
    ],
)
def test_stages_that_make_no_sense_are_refused_before_anything_runs(
    two: str, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("one.yaml").write_text(ONE_YAML)
    Path("two.yaml").write_text(two)
    assert stages(*words) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_method_with_a_round_of_its_own_starts_from_scratch() -> None:
    run(*translate([*ONE, "out=first"]).overrides)
    with pytest.raises(ArnoError, match="an additional round 0"):
        run("method=lorenzo", "load=first", "clients=4", "model=mlp", "out=no")


def test_the_script_is_only_the_translation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).resolve().parents[2] / "federated_train.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "load_model_path" in capsys.readouterr().out


def test_a_real_pth_is_the_start_of_a_stage() -> None:
    """A state dict of torch.save as load_model_path: names of the network, rounds from the name of the file."""
    problem = build.supervised(plain(compose(translate([*ONE, "out=no"]).overrides)))
    torch.manual_seed(5)
    module = deepcopy(problem.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.05)
    torch.save(module.state_dict(), "model_e2.pth")
    words = translate([*TWO, "load_model_path=model_e2.pth", "trainer.local_lr=1e-30", "out=second"]).overrides
    run(*words, "rounds=3")
    assert torch.equal(final(Path("second")), torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    assert rounds(Path("second")) == [3]
    resume("second", "rounds=4")
    other = translate([*TWO, "load_model_path=model_e2.pth", "model.hidden=[64]", "out=no"]).overrides
    with pytest.raises(ArnoError, match=r"hidden\.0\.weight is \[128, 64\], and the network has \[64, 64\]"):
        run(*other)
