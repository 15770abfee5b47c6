"""`arno run`: what it writes, what it prints, and that it computes the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

import arno as package
from arno.errors import ArnoError
from arno.records.metrics_file import read as recorded

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_run_folder_holds_what_the_architecture_says(arno, small, pictures):
    small = (*small, "engine=serial")
    run = arno("run", *small, "out=it").folder
    assert {p.name for p in run.iterdir()} == {
        "config.yaml",
        "manifest.json",
        "manifest.json.previous",
        "metrics.jsonl",
        "clients.parquet",
        "checkpoints",
        "final.safetensors",
        "best.safetensors",
        "curves.png",
        "counts.npy",
        "log.txt",
        "panels.json",
    }
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["engine"] == {"name": "serial", "equality": "reference", "threads": 1}
    assert manifest["seed"] == 0
    assert len(manifest["data_fingerprint"]) == 32
    assert {"arno", "python", "torch", "numpy"} <= manifest.keys()
    assert manifest["command"] == f"arno run {' '.join(sorted(small, key=_order))} out=it"
    rows = recorded(run)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert {"seconds", "test_accuracy", "test_f1", "test_loss", "val_f1"} <= rows[-1].keys()
    clients = pq.read_table(run / "clients.parquet").to_pydict()
    assert [clients["round"].count(t) for t in (1, 2, 3, 4)] == [3, 3, 3, 3]
    assert load_file(run / "final.safetensors")["w"].shape == (650,)
    assert (run / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert [p.name for p in sorted((run / "checkpoints").glob("*.safetensors"))] == [
        "00000002.safetensors",
        "00000004.safetensors",
    ]
    assert not list(run.rglob("*.part"))


def _order(word: str) -> int:
    keys = ["model", "engine", "clients", "participation", "rounds", "checkpoint.every"]
    return keys.index(word.split("=")[0])


def test_the_same_command_gives_the_same_bits(arno, small, same_run):
    one, two = (arno("run", *small, f"out={out}").folder for out in "ab")
    same_run(one, two)
    other = arno("run", *small, "seed=1", "out=c").folder
    assert (one / "final.safetensors").read_bytes() != (other / "final.safetensors").read_bytes()


def test_its_config_and_its_command_reproduce_a_run(arno, small, same_run):
    one = arno("run", *small, "method=fedprox", "method.mu=0.3", "local.lr=uniform(0.01, 0.1)", "out=a").folder
    two = arno("run", "--config", one / "config.yaml", "out=b").folder
    same_run(one, two)
    import shlex

    command = shlex.split(json.loads((one / "manifest.json").read_text())["command"])
    assert command[0] == "arno"
    three = arno(*command[1:], "out=c").folder
    same_run(one, three)


def test_a_config_with_another_method_drops_the_settings_of_the_first(arno, small):
    one = arno("run", *small, "method=fedprox", "method.mu=0.3", "out=a").folder
    two = arno("run", "--config", one / "config.yaml", "method=fedavg", "out=b").folder
    assert OmegaConf.load(two / "config.yaml").method.kind == "fedavg"
    assert "mu" not in OmegaConf.load(two / "config.yaml").method


def test_without_out_the_run_has_a_folder_of_its_own_under_runs(arno, small):
    one, two = (arno("run", *small, "rounds=1").folder for _ in range(2))
    assert one != two
    assert one.parent == two.parent == Path("runs")
    assert "-fedavg-" in one.name


def test_plain_lines_when_not_a_terminal(arno, small):
    lines = arno("run", *small, "eval.every=2").out.splitlines()
    rounds = [line for line in lines if line.startswith("round ")]
    assert len(rounds) == 2
    assert rounds[0].startswith("round 2/4  f1 ")
    assert "clients/s" in rounds[0]
    assert any("test accuracy" in line for line in lines)
    assert max(map(len, lines)) <= 120
    table = [line for line in lines if line[:1] in "┏┃┡│└"]
    assert table
    assert max(map(len, table)) <= 80


def test_quiet_prints_only_the_folder(arno, small):
    said = arno("run", *small, "--quiet", "out=it")
    assert (said.out, said.err) == ("it\n", "")


def test_per_client_accuracy_on_request(arno, small):
    run = arno("run", *small, "eval.clients=true", "out=it").folder
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    mean, std, worst = (row[f"client_accuracy_{name}"] for name in ("mean", "std", "worst_decile"))
    assert 0 <= worst <= mean <= 1
    assert std > 0
    deciles = [row[f"client_accuracy_p{q}"] for q in range(0, 101, 10)]
    assert deciles == sorted(deciles)
    assert deciles[0] == worst  # of five clients the worst tenth is the worst
    assert deciles[0] < mean < deciles[-1]


def test_who_holds_what_is_kept_with_the_run(arno, small):
    result = package.RunResult(arno("run", *small, "out=it").folder)
    partition, labels = result.problem.partition, result.problem.y
    for k, row in enumerate(result.counts):
        assert row.tolist() == torch.bincount(labels[partition[k]], minlength=10).tolist()


def test_evaluation_is_not_done_between_and_always_at_the_end(arno, small):
    run = arno("run", *small, "rounds=5", "eval.every=2", "out=it").folder
    rows = recorded(run)
    assert [row["round"] for row in rows if "test_accuracy" in row] == [2, 4, 5]


def test_the_best_model_is_the_one_with_the_best_validation_score(arno, small):
    run = arno("run", *small, "rounds=8", "local.lr=0.5", "out=it").folder
    rows = recorded(run)
    best = max(rows, key=lambda row: row["val_f1"])["round"]
    assert json.loads((run / "manifest.json").read_text())["best_round"] == best
    again = arno("run", *small, f"rounds={best}", "local.lr=0.5", "out=again").folder
    assert torch.equal(load_file(run / "best.safetensors")["w"], load_file(again / "final.safetensors")["w"])


def test_without_validation_data_the_best_model_is_the_last(arno, small):
    run = arno("run", *small, "data.val=0", "out=it").folder
    assert (run / "best.safetensors").read_bytes() == (run / "final.safetensors").read_bytes()


def test_the_python_api_has_the_same_power(arno, small, same_run):
    run = arno("run", *small, "method=fedprox", "method.mu=0.3", "out=a").folder
    result = package.run(*small, "method.mu=0.3", method="fedprox", out="b")
    same_run(run, result.path)
    assert result.history.index.tolist() == [1, 2, 3, 4]
    assert set(result.clients["client"]) <= set(range(5))
    assert torch.equal(result.final, load_file("a/final.safetensors")["w"])
    model = result.model("final")
    assert torch.equal(torch.cat([p.flatten() for p in model.parameters()]), result.final)
    assert not model.training
    nested = package.run(
        method={"kind": "fedprox", "mu": 0.3},
        model="softmax",
        clients=5,
        rounds=4,
        participation=0.6,
        checkpoint={"every": 2},
        out="c",
    )
    same_run(run, nested.path)


def test_the_python_api_takes_parts(small, same_run):
    from arno.methods.fedprox import fedprox

    parts = package.run(*small, method=fedprox(mu=0.3), out="a")
    named = package.run(*small, "method.mu=0.3", method="fedprox", out="b")
    same_run(parts.path, named.path)
    assert json.loads((parts.path / "manifest.json").read_text())["command"] is None


def test_a_method_of_ones_own_in_one_file(arno, small):
    target = EXAMPLES / "my_method.py"
    assert len(target.read_text().splitlines()) < 40
    own = ("method=custom", f"method.target={target}:factory")
    gentle = arno("run", *small, *own, "method.strength=0.5", "out=a").folder
    assert OmegaConf.load(gentle / "config.yaml").method.strength == 0.5
    fedavg = arno("run", *small, "out=b").folder
    norms = [np.linalg.norm(load_file(run / "final.safetensors")["w"]) for run in (gentle, fedavg)]
    assert norms[0] < norms[1]
    loud = arno("run", *small, *own, "method.strength=1e9", "out=c").folder
    assert (loud / "final.safetensors").read_bytes() == (fedavg / "final.safetensors").read_bytes()
    assert "did you mean 'method.strength'" in arno("run", *own, "method.strenght=1").error


def test_the_state_of_a_method_of_ones_own_survives_a_stop(arno, small, same_run):
    own = ("method=custom", f"method.target={EXAMPLES / 'my_method.py'}:factory", "method.strength=0.5")
    whole = arno("run", *small, *own, "out=a").folder
    arno("run", *small, *own, "rounds=2", "out=b")
    same_run(whole, arno("resume", "b", "rounds=4").folder)


def test_a_network_of_ones_own(arno, small):
    own = ("model=custom", f"model.target={EXAMPLES / 'my_net.py'}:Net", "model.width=16")
    one = arno("run", *small, *own, "model.drop=0.5", "out=a").folder
    two = arno("run", *small, *own, "model.drop=0.5", "out=b").folder
    dry = arno("run", *small, *own, "model.drop=0", "out=c").folder
    bits = [(run / "final.safetensors").read_bytes() for run in (one, two, dry)]
    assert bits[0] == bits[1], "dropout draws from keyed streams"
    assert bits[0] != bits[2]
    assert load_file("a/final.safetensors")["w"].shape == (64 * 16 + 16 + 16 * 10 + 10,)


def test_debug_shows_the_traceback_and_nothing_else_does(arno):
    assert "rounds = 0" in arno("run", "rounds=0").error
    with pytest.raises(ArnoError, match="rounds = 0"):
        arno("run", "rounds=0", "--debug")


def test_python_m_arno_is_arno():
    done = subprocess.run([sys.executable, "-m", "arno", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"arno {package.__version__}\n"


@pytest.mark.parametrize("command", ["--help", "run --help", "compare --help", "resume --help", "completion bash"])
def test_help_answers_at_once_without_torch(command):
    code = (
        f"import sys\nfrom arno.cli import main\ntry: main({command.split()})\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert not {'torch', 'matplotlib', 'pandas'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "arno" in done.stdout


def test_run_help_names_every_setting_and_every_choice(arno):
    from arno.config.settings import GROUPS, describe, registry

    said = arno("run", "--help").out
    for key, _, _ in describe():
        assert f"  {key} " in said
    for group in GROUPS:
        for name in registry(group).names():
            assert name in said, f"{group}={name}"
    assert "arno run method=fedprox" in said


def test_a_command_that_does_not_exist_is_answered_with_the_nearest(arno):
    assert "did you mean 'resume'?" in arno("resum").error


def test_a_part_that_remembers_the_model_is_saved(arno):
    """FedExP with report=mean_of_two keeps the last model; a checkpoint cannot hold the same memory twice."""
    words = ["method=fedexp", "method.report=mean_of_two", "clients=4", "data.limit=100", "model=softmax"]
    run = arno("run", *words, "rounds=4", "checkpoint.every=2", "engine=serial").folder
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
