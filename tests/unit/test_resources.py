"""Room before work: what a run needs, what the machine has, what is refused. `test_attack_…` repeats an attack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import arno
from arno import machine
from arno.cli import dispatch
from arno.config import build
from arno.config import settings as configs
from arno.core.resources import allocating, counted, exhausted
from arno.core.table import ClientTable
from arno.errors import ArnoError, TooLarge
from arno.kernels.choose_kernel import choose
from arno.records.folder import BLOCK, RunFolder
from arno.runs.estimate import check, estimate, total
from arno.runs.plan import plan

GIB = 2**30


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small_machine(monkeypatch):
    """A machine of 1 GiB."""
    monkeypatch.setattr(machine, "memory", lambda: GIB)
    monkeypatch.setattr(machine, "resident", lambda: GIB // 4)


def composed(*words: str) -> dict:
    return configs.plain(configs.compose(words))


def federation(*words: str):
    config = composed(*words)
    return config, build.federation(config)


# --- the machine ---


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def test_limits_of_control_groups_version_2(tmp_path):
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    group(tmp_path / "fs/a", max="4000\n", current="1500\n", stat="anon 1\ninactive_file 500\n")
    group(tmp_path / "fs/a/b", max="max\n", current="700\n", stat="anon 1\n")
    assert machine.groups(tmp_path / "cgroup", tmp_path / "fs") == [(4000, 1000)]


def test_limits_of_control_groups_version_1(tmp_path):
    (tmp_path / "cgroup").write_text("5:cpu:/\n4:memory:/a\n0::/\n")
    both = {"limit_in_bytes": "3000", "usage_in_bytes": "1000", "stat": "total_inactive_file 900"}
    group(tmp_path / "fs/memory/a", **both)
    assert machine.groups(tmp_path / "cgroup", tmp_path / "fs") == [(3000, 100)]


def test_a_system_without_control_groups(tmp_path):
    assert machine.groups(tmp_path / "none", tmp_path) == []
    assert machine.memory() > 0
    assert machine.available() <= machine.memory()


def test_the_limit_of_a_process_counts_what_is_mapped(monkeypatch):
    import resource

    limits = {resource.RLIMIT_AS: 30 * GIB, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    monkeypatch.setattr(machine, "memory", lambda: 2**50)
    room, where = machine.of_a_process()
    assert where == "ulimit -v"
    assert 0 < room < 30 * GIB


# --- before a network is built ---


def test_attack_two_hidden_layers_of_100000(capsys):
    with pytest.raises(TooLarge, match=r"10,007,600,010 parameters 2\d\d GiB.*has .*GiB; use a smaller model") as error:
        arno.run(model={"kind": "mlp", "hidden": [100_000, 100_000]}, out="run")
    assert "\n" not in str(error.value)
    assert not Path("run").exists()


def test_attack_ten_million_clients_with_scaffold(small_machine):
    with pytest.raises(TooLarge, match=r"records of 10,000,000 clients a round .* GiB; use a smaller participation="):
        arno.run(problem="quadratic", clients=10_000_000, method="scaffold", out="run")
    with pytest.raises(TooLarge, match="10,000,000 quadratics of dimension 50"):
        arno.run("problem.dim=50", problem="quadratic", clients=10_000_000, participation=1e-6, method="scaffold")
    assert not Path("run").exists()


def test_sizes_that_no_array_has():
    with pytest.raises(TooLarge, match="out of memory"):
        arno.run(model={"kind": "mlp", "hidden": [10**10, 10**10]}, out="run")


class Real(nn.Module):
    """A network that cannot be built on the device `meta`."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        assert float(self.head.weight.sum()) < 1e9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))


def test_counting_builds_no_network_and_draws_no_numbers():
    before = torch.get_rng_state()
    assert counted(lambda: nn.Sequential(nn.Linear(10**6, 10**6), nn.BatchNorm1d(10**6))) == 10**12 + 5 * 10**6
    assert counted(Real) is None
    assert torch.equal(before, torch.get_rng_state())


def test_a_network_that_needs_real_numbers_is_trained():
    Path("net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Sequential):\n    def __init__(self, shape, outputs):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, outputs))\n"
        "        self.scale = self[1].weight.sum().item()\n"
    )
    result = arno.run("model.target=net.py:Net", model="custom", rounds=1, clients=3, engine="serial")
    assert len(result.rows) == 1


# --- before the first round ---


def test_a_run_that_cannot_fit_is_refused_with_the_sum(small_machine):
    config, fed = federation("clients=60", "engine=serial", "model.hidden=[2000,2000]", "method=scaffold")
    with pytest.raises(TooLarge, match=r"client tables .* \+ .* = .* GiB: .* has 1.0 GiB; use state=disk") as e:
        check(config, fed, Path("run"))
    assert "\n" not in str(e.value)


def test_a_run_that_fits_is_not_refused():
    config, fed = federation("clients=4")
    assert check(config, fed, Path("run")) == []


def test_what_is_tight_is_said(monkeypatch):
    config, fed = federation("clients=4", "model.hidden=[1000]")
    monkeypatch.setattr(machine, "available", lambda: 2**20)
    room = int(1.1 * total(estimate(config, fed).disk))
    monkeypatch.setattr(machine, "free_disk", lambda path: room)
    memory, disk = check(config, fed, Path("run"))
    assert memory.startswith("memory is tight: ")
    assert disk.startswith("disk is tight: ")


def test_a_small_shared_memory_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "free_shared", lambda: 1000)
    config, fed = federation("clients=4", "engine=processes")
    with pytest.raises(TooLarge, match=r"blocks in shared memory .*: /dev/shm has 1 kB; use engine=serial"):
        check(config, fed, Path("run"))
    config, fed = federation("clients=4", "engine=serial")
    assert check(config, fed, Path("run")) == []


def test_a_full_disk_is_refused_before_the_first_round(monkeypatch):
    monkeypatch.setattr(machine, "free_disk", lambda path: 2**20)
    with pytest.raises(TooLarge, match=r"checkpoints .* = .*: the file system of run has 1 MiB; choose another out="):
        arno.run(model={"kind": "mlp", "hidden": [1000]}, out="run", rounds=1)
    assert not Path("run").exists()


@pytest.mark.parametrize(("seen", "at_once"), [(300, 7), (300, 300), (1, 1), (999, 128)])
def test_the_growth_of_a_table_is_foreseen(seen, at_once):
    table = ClientTable(1000, torch.zeros(10))
    memory, disk = table.needs(seen, at_once)
    sizes, most = [len(table._rows)], 1
    for at in range(0, seen, at_once):
        ids = torch.arange(at, min(at + at_once, seen))
        table[ids] = torch.ones(len(ids), 10)
        if len(table._rows) != sizes[-1]:
            most = max(most, sizes[-1] + len(table._rows))
            sizes.append(len(table._rows))
    assert memory - 130 * seen == 40 * most
    assert disk == 0


def test_a_table_on_disk_needs_disk(tmp_path):
    memory, disk = ClientTable(1000, torch.zeros(10), tmp_path).needs(500, 10)
    assert memory == 130 * 500
    assert disk == 40 * 501


def test_the_needs_of_workers_and_of_rows_of_a_method():
    config, fed = federation("engine=processes", "engine.workers=3", "model.hidden=[1000]", "method=scaffold")
    found = estimate(config, fed)
    assert (found.engine, found.workers, found.cohort, found.seen) == ("processes", 3, 20, 20)
    vector = 4 * fed.layout.size
    assert total(found.shared) >= 2 * 20 * vector
    assert total(found.worker) >= 4 * vector
    fed.engine.close()


# --- memory that is not there all the same ---


def test_errors_of_allocators_are_one_line():
    for error in (
        MemoryError("Unable to allocate 7.28 TiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried to "
                     "allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"),
        OSError(12, "Cannot allocate memory"),
    ):  # fmt: skip
        short = exhausted(error)
        assert short is not None
        assert str(short).startswith("out of memory: ")
        assert "arno plan" in str(short)
    assert "37 GiB" in str(exhausted(RuntimeError("can't allocate memory: you tried to allocate 40000000000 bytes")))
    assert exhausted(RuntimeError("shapes do not match")) is None


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="no shape"), allocating():
        raise RuntimeError("no shape")
    with pytest.raises(ArnoError, match="rule"), allocating():
        raise ArnoError("value", "rule")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v")
def test_attack_a_limit_of_the_shell(tmp_path):
    run = f"ulimit -v 4000000; exec {sys.executable} -m arno run model.hidden=[20000,20000] out=run"
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert "ulimit -v has" in done.stderr


# --- arno plan ---


def planned(capsys, *words: str) -> list[dict]:
    assert dispatch(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan(capsys):
    (plan,) = planned(capsys, "clients=10", "rounds=4", "participation=0.5", "method=scaffold", "model.hidden=[16]")
    assert (plan["clients"], plan["cohort"], plan["rounds"], plan["parameters"]) == (10, 5, 4, 1210)
    assert (plan["engine"], plan["kernel"]) == ("batched", "dense")
    assert plan["kernel_reason"] == "the network is a chain of linear layers with one activation"
    assert plan["up"] == plan["down"] == 2 * 5 * 1210 * 4  # the model and its control
    assert plan["memory"] == sum(plan["memory_items"].values())
    assert plan["disk"] == sum(plan["disk_items"].values())
    assert plan["seconds"] > 0
    assert plan["refused"] == []
    assert not Path("runs").exists()


def test_a_plan_counts_as_the_run_does(capsys):
    words = ["clients=6", "rounds=2", "local.epochs=2", "engine=serial", "method=fedper", "data.client_test=0.2"]
    (plan,) = planned(capsys, *words)
    row = arno.run(*words).rows[-1]
    assert (row["uploaded_bytes"], row["downloaded_bytes"]) == (2 * plan["up"], 2 * plan["down"])
    assert row["local_steps"] == 2 * plan["local_steps"]


def test_a_plan_for_people(capsys):
    assert dispatch(["plan", "clients=4", "model.hidden=[8]", "method=lorenzo"]) == 0
    out = capsys.readouterr().out
    for name in ("parameters", "engine", "kernel", "memory", "disk", "traffic", "time"):
        assert f"\n{name} " in out


def test_a_plan_of_a_grid(capsys):
    assert dispatch(["plan", "method=fedavg,scaffold", "seed=0..2", "clients=4", "model=softmax"]) == 0
    out = capsys.readouterr().out
    assert "== method=fedavg, 3 runs" in out
    assert "== all 6 runs" in out


def test_a_plan_says_what_is_refused(capsys):
    assert dispatch(["plan", "model.hidden=[100000,100000]"]) == 2
    said = capsys.readouterr().out
    assert "\nrefused        the run needs 7 copies of a network of 10,007,600,010 parameters" in said


def test_a_plan_of_a_problem_without_a_network_and_on_ray(capsys):
    (plan,) = planned(capsys, "problem=quadratic", "clients=50", "select=powd", "participation=0.1")
    assert (plan["engine"], plan["kernel"], plan["local_steps"]) == ("serial", "", 5)
    (plan,) = planned(capsys, "engine=ray", "clients=4", "model=softmax")
    assert plan["engine"] == "ray"


def test_kernels_give_their_reason():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    assert choose(net, (1, 8, 8), True).reason == "the network runs as it is: it has buffers"
    wide = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    assert choose(wide, (1, 8, 8), True).reason.startswith("convolutions in channels_last")


def test_the_manifest_holds_the_reason():
    result = arno.run(clients=3, rounds=1, engine="serial", model="softmax")
    manifest = result.folder.manifest()
    assert (manifest["kernel"], manifest["kernel_reason"][:11]) == ("dense", "the network")


def test_resume_needs_no_more_disk_than_run(monkeypatch, tmp_path):
    """What a run has written is room for it: a disk on which it could start is large enough to continue it."""
    words, out = ("rounds=2", "clients=4", "model=softmax", "engine=serial", "data.limit=100"), tmp_path / "run"
    need = plan(configs.plain(configs.compose(words))).disk
    monkeypatch.setattr(machine, "free_disk", lambda path: need + 2 * BLOCK - RunFolder(out).size())
    arno.run(*words, out=str(out))
    assert RunFolder(out).size() > 2 * BLOCK
    assert arno.resume(out).rows[-1]["round"] == 2
    with pytest.raises(TooLarge, match="the file system of"):
        arno.resume(out, "rounds=100000")
