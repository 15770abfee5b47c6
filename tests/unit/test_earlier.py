"""Folders of release 0.1 are read, continued to the bit, or refused with the reason.

A folder of that release differs from one of today in its configuration (no task, other names), its manifest (no
metrics, no kernel), its checkpoints (the number of a part stands before the names of its state), and it has no
checksums outside of checkpoints.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import arno
from arno.analysis.comparison import Comparison
from arno.grids.cells import run_cells
from arno.grids.compare import is_done
from arno.records import checkpoint, metrics_file
from arno.records.folder import RunFolder
from arno.runs.run import RunResult

SMALL = ("clients=5", "rounds=6", "model=softmax", "data.limit=300", "engine=serial", "eval.clients=true", "seed=3")
CASES = {
    "fedavg": ("method=fedavg", "participation=0.6"),
    "scaffold": ("method=scaffold", "participation=0.6"),
    "lorenzo": ("method=lorenzo",),
    "fedvarp": ("method=fedvarp", "participation=0.6"),
    "qrmix": ("method=qrmix", "participation=0.6"),
    "quadratic": ("problem=quadratic", "method=scaffold", "local.lr=1e-3"),
    "compose": ("method=compose", "method.parts=[scaffold,window,server_adaptive]", "participation=0.6"),
}


def stopped(run: Path, after: int) -> Path:
    """A copy of a run as if it had been stopped after a round with a checkpoint."""
    copy = run.with_name(f"{run.name}-stopped")
    shutil.copytree(run, copy)
    for name in ("final.safetensors", "best.safetensors", "clients.parquet", "panels.json"):
        (copy / name).unlink(missing_ok=True)
    folder = RunFolder(copy)
    folder.rewind(after)
    assert [int(path.stem) for path in folder.saved()] == [after]
    folder.update_manifest(status="interrupted", rounds=after, checksums={})
    return copy


def of_release_0_1(run: Path) -> None:
    """Rewrite the files of a run as release 0.1 wrote them."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(old_config(config), sort_keys=False))
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["metrics"], manifest["kernel"]
    for name in ("crc", "checksums", "client_count"):
        manifest.pop(name, None)
    (run / "manifest.json").write_text(json.dumps(manifest | {"arno": "0.1.0"}, indent=2))
    rows = metrics_file.read(run)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (run / "checkpoints").glob("[0-9]*.safetensors"):
        old_checkpoint(path)
    for path in (run / "checkpoints").glob("clients-*.parquet"):
        path.rename(path.with_name(f"{path.stem[:16]}.parquet"))


def old_config(config: dict[str, Any]) -> dict[str, Any]:
    """The same settings in the names of release 0.1."""
    old = {key: value for key, value in config.items() if key != "task"}
    if old["problem"]["kind"] == "supervised":
        old["problem"] = {"kind": "classification"}
    method = old["method"]
    for section in (method, method.get("lorenzo", {})):
        if "min_batches" in section:  # Lorenzo
            section["metric"] = "f1"
    return old


def old_checkpoint(path: Path) -> None:
    """Number the parts: 0 is the selection, which has no state."""
    tensors, meta = checkpoint.read_tensors(path)
    header = json.loads(meta["arno"])
    plain = json.loads(header["plain"])
    parts: dict[str, int] = {}

    def numbered(name: str) -> str:
        part, dot, _ = name.partition(".")
        return f"{parts.setdefault(part, len(parts) + 1)}.{name}" if dot else name

    plain["federation"] = {numbered(name): value for name, value in plain["federation"].items()}
    plain["config"] = old_config(plain["config"])
    plain["run"].pop("first", None)
    text = json.dumps(plain)
    tensors = {
        f"federation/{numbered(name.removeprefix('federation/'))}" if name.startswith("federation/") else name: tensor
        for name, tensor in tensors.items()
    }
    header |= {"plain": text, "checksum": checkpoint._checksum(tensors, checkpoint.FORMAT + text)}
    checkpoint.write_tensors(path, tensors, {"arno": json.dumps(header)})


def records(run: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in RunResult(run).rows]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("arno.pictures.curves.draw_curves", lambda *arguments: None)
    monkeypatch.setattr("arno.pictures.draw.write_panels", lambda *arguments: None)


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_run_continues_to_the_bit(name, here):
    whole = arno.run(*SMALL, *CASES[name], "checkpoint.every=3", out="whole").path
    run = stopped(whole, 3)
    of_release_0_1(run)
    assert RunResult(run).metrics[0].name == ("gap" if name == "quadratic" else "test_f1")
    state = checkpoint.load(RunFolder(run).saved()[-1]).federation
    assert all(key in ("w", "t") or key[0].isdigit() for key in state)
    assert (len(state) > 2) == (name != "fedavg")
    again = arno.resume(run)
    for file in ("final.safetensors", "best.safetensors"):
        assert (run / file).read_bytes() == (whole / file).read_bytes()
    assert records(run) == records(whole)
    assert again.config["problem"] == RunResult(whole).config["problem"]
    assert again.metrics == RunResult(whole).metrics


def test_a_finished_run_is_read_with_the_metrics_of_its_release(here):
    run = arno.run(*SMALL, out="run").path
    of_release_0_1(run)
    result = RunResult(run)
    assert result.config["task"] == {"kind": "auto"}
    declared = {metric.name: metric for metric in result.metrics}
    assert result.metrics[0].name == "test_f1"
    assert (declared["test_f1"].better, declared["test_f1"].low, declared["test_f1"].high) == ("more", 0, 1)
    assert declared["test_loss"].better == "less"
    assert {"val_f1", "client_accuracy_worst_decile", "train_loss"} <= declared.keys()
    assert result.model("final")(result.problem.x[:1].float()).shape == (1, 10)


def test_runs_of_both_releases_are_compared_as_equals(here):
    for method, seed in ((m, s) for m in ("fedavg", "fedprox") for s in (0, 1)):
        path = arno.run(*SMALL, f"method={method}", f"seed={seed}", out=f"{method}{seed}").path
        if method == "fedavg":
            of_release_0_1(path)
    found = Comparison.of([f"{m}{s}" for m in ("fedavg", "fedprox") for s in (0, 1)])
    assert list(found.groups) == ["fedavg", "fedprox"]
    assert found.metric == "test_f1"
    assert found.differences()["pairs"].tolist() == [2]


@pytest.mark.parametrize("method", ["fedavg", "lorenzo", "compose"])
def test_a_cell_of_release_0_1_is_done(method, here):
    run = arno.run(*SMALL, *CASES[method], out="cell").path
    config = RunFolder(run).config()
    of_release_0_1(run)
    assert yaml.safe_load((run / "config.yaml").read_text())["problem"]["kind"] == "classification"
    assert is_done(config, retry=False)
    with pytest.raises(arno.ArnoError, match="seed: 3 → 4"):
        is_done(config | {"seed": 4}, retry=False)


def test_parts_that_act_in_another_order_now_are_refused(here):
    words = ("method=compose", "method.parts=[server_momentum,varp]", "checkpoint.every=3")
    whole = arno.run(*SMALL, *words, out="whole").path
    run = stopped(whole, 3)
    assert arno.resume(run).path == run, "today roles order them before and after"
    shutil.rmtree(run)
    run = stopped(whole, 3)
    config = RunFolder(run).config()
    of_release_0_1(run)
    with pytest.raises(arno.ArnoError, match=r"ServerMomentum acted before Varp.*with release 0\.1, or start"):
        arno.resume(run)
    with pytest.raises(arno.ArnoError, match="ServerMomentum acted before Varp"):
        is_done(config | {"out": str(run)}, retry=False)


@pytest.mark.slow
def test_a_comparison_of_release_0_1_is_continued_without_running_its_cells_again(here, monkeypatch):
    words = ("method=fedavg,lorenzo", "seed=0..1", *SMALL[:3])
    first = arno.compare(*words, out="grid")
    runs = [run.path for group in first.members for run in group.runs.values()]
    assert len(runs) == 4
    for path in runs:
        of_release_0_1(path)
    ran: list[str] = []

    def only(configs: list[dict[str, Any]], *others: Any) -> bool:
        ran.extend(Path(config["out"]).name for config in configs)
        return run_cells(configs, *others)

    monkeypatch.setattr("arno.grids.compare.run_cells", only)
    again = arno.compare(*words, out="grid")
    assert ran == []
    assert again.table()["final"].tolist() == first.table()["final"].tolist()
    shutil.rmtree(runs[-1])
    arno.compare(*words, out="grid")
    assert ran == [runs[-1].name]
