"""The Ray engine gives the serial engine's bits on several nodes, whatever is lost on the way, and makes no noise."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import ClassVar

import psutil
import pytest
import torch
from training import parts, same_bits, same_scores, train

import arno
from arno.client_selection.schedule import Fixed
from arno.client_selection.uniform import Uniform
from arno.config.settings import compose, plain
from arno.core import federation as rounds
from arno.core.federation import Federation, Local
from arno.core.method_part import Part
from arno.core.serial import Serial
from arno.errors import ArnoError, ClientError
from arno.methods import methods
from arno.runs.result import RunResult

ray = pytest.importorskip("ray", reason="needs pip install 'arno[ray]'")

from arno.engines.actors import Call, refused  # noqa: E402
from arno.engines.ray import ray_engine, shares  # noqa: E402
from arno.engines.remote_table import WorkerTable  # noqa: E402
from arno.engines.transport import Block, Piece  # noqa: E402
from arno.grids.cluster import CellActor, outcome_of  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """Three nodes of one core on this machine."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def engine(cluster, digits):
    made = ray_engine(digits, address=cluster.address)
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", methods.names())
def test_the_bits_are_those_of_serial(name, digits, engine):
    same_bits(digits, engine, name)


def test_many_blocks_in_flight_come_back_in_order(digits, engine, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 2 * digits.layout.size)
    a, _ = train(digits, Serial(digits), "scaffold")
    b, _ = train(digits, engine, "scaffold")
    assert torch.equal(a.w, b.w)


def test_no_reference_outlives_its_round(digits, engine):
    gc.collect()
    gc.disable()  # what only the collector frees, the object store keeps until it runs
    try:
        train(digits, engine, "scaffold", times=6)
        until = monotonic() + 20  # threads of Ray hold answers for a while
        while (left := sum(type(each) in (Call, Piece, Block) for each in gc.get_objects())) and monotonic() < until:
            sleep(0.1)
    finally:
        gc.enable()
    assert left <= 3, "a thread of Ray keeps at most its last answer, whatever the number of rounds"


def test_scores_and_losses_are_those_of_serial(digits, engine):
    same_scores(digits, engine)


def test_rows_with_the_workers_are_the_same_rows(digits, engine):
    feds = [
        Federation(digits, [Uniform(0.6), *parts("scaffold")], engine=e, state=state, seed=5)
        for e, state in ((Serial(digits), None), (engine, "workers"))
    ]
    for fed in feds:
        for _ in range(4):
            fed.round()
    a, b = (fed.parts[1].ck for fed in feds)
    assert 0 < a.seen == b.seen
    assert torch.equal(feds[0].w, feds[1].w)
    assert torch.equal(a.mean(), b.mean())
    for name, tensor in a.tensors().items():
        assert torch.equal(tensor, b.tensors()[name]), name
    again = WorkerTable(7, digits.init(0), 1)  # a checkpoint goes to another number of workers
    again.restore(b.tensors())
    assert torch.equal(again[torch.arange(7)], a[torch.arange(7)])
    ray.kill(again._shards[0])
    with pytest.raises(ArnoError, match=r"state=workers: rows of clients were lost.*arno resume RUN"):
        read_until_lost(again, torch.arange(7))


def read_until_lost(table, rows):
    """Read until that fails, for at most 20 seconds: Ray ends an actor some time after `ray.kill` returns."""
    for _ in range(200):
        table[rows]
        sleep(0.1)


def test_rows_with_the_workers_need_workers_and_room(digits, engine, monkeypatch):
    with pytest.raises(ArnoError, match="state=workers: engine serial has no workers"):
        Federation(digits, parts("scaffold"), state="workers")
    monkeypatch.setattr(type(engine._cluster), "memory", 1000)
    with pytest.raises(ArnoError, match=r"a table of up to 7 clients × 910 parameters takes .*; use state=disk"):
        Federation(digits, parts("scaffold"), engine=engine, state="workers")


@dataclass(frozen=True)
class Wait:
    """A probe that says which process trained which client, then waits until it may go on."""

    folder: Path

    def __call__(self, learner, job):
        (self.folder / f"{job.client}-{os.getpid()}").touch()
        until((self.folder / "go").exists)
        return {"client": torch.tensor([job.client])}


@dataclass
class Gate(Part):
    """Every client stops at the gate once it has trained."""

    roles: ClassVar = frozenset({"loss"})
    folder: Path

    def send(self, work):
        return replace(work, probe=Wait(self.folder))


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def held(folder):
    """The processes that stand at the gate."""
    return {int(mark.name.split("-")[1]) for mark in folder.glob("*-*")}


@pytest.fixture
def by_value():
    """Actors cannot import this file: what it defines travels with the work."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def gated(digits, engine, tmp_path, by_value):
    """Runs two rounds of SCAFFOLD; in the middle of the first, with every actor at work, `accident` happens."""

    def run(accident):
        def interfere():
            until(lambda: len(held(tmp_path)) == 3)
            accident(held(tmp_path))
            (tmp_path / "go").touch()

        until(
            lambda: engine.loss(digits.init(0), torch.arange(7)).isfinite().all() and len(engine._transport.actors) == 3
        )
        fed = Federation(digits, [*parts("scaffold"), Gate(tmp_path)], engine=engine, local=Local(epochs=2))
        engine.timing.pace = 1.0  # clients who take long go alone
        other = threading.Thread(target=interfere)
        other.start()
        for _ in range(2):
            fed.round()
        other.join()
        return fed.w

    return run


@pytest.fixture(scope="module")
def undisturbed(digits):
    fed = Federation(digits, parts("scaffold"), local=Local(epochs=2))
    for _ in range(2):
        fed.round()
    return fed.w


def test_an_actor_lost_in_the_middle_of_a_round(gated, undisturbed):
    lost = []

    def accident(at_work):
        lost.append(min(at_work))
        os.kill(lost[0], signal.SIGKILL)

    assert torch.equal(gated(accident), undisturbed)
    assert not psutil.pid_exists(lost[0])


def test_a_node_lost_in_the_middle_of_a_round(gated, undisturbed, cluster):
    node = next(iter(cluster.worker_nodes))
    before = [p.process.pid for processes in node.all_processes.values() for p in processes]

    def accident(at_work):
        tree = [q for pid in before for q in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]]
        assert {q.pid for q in tree} & at_work
        for process in tree:
            process.kill()

    assert torch.equal(gated(accident), undisturbed)
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in before)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=1)


@dataclass(frozen=True)
class Hang:
    """A probe in which client 2 never ends, or only once it has hung before."""

    folder: Path
    always: bool

    def __call__(self, learner, job):
        mark = self.folder / "hung"
        if job.client == 2 and (self.always or not mark.exists()):
            mark.touch()
            threading.Event().wait()
        return {}


@dataclass
class Hanging(Part):
    roles: ClassVar = frozenset({"loss"})
    folder: Path
    always: bool

    def send(self, work):
        return replace(work, probe=Hang(self.folder, self.always))


@pytest.mark.parametrize("always", [False, True])
def test_a_hung_client_is_run_again_and_given_up(always, digits, engine, undisturbed, tmp_path, by_value, monkeypatch):
    monkeypatch.setattr(engine.timing, "timeout", 1.0)
    fed = Federation(digits, [*parts("scaffold"), Hanging(tmp_path, always)], engine=engine, local=Local(epochs=2))
    if always:
        with pytest.raises(
            ArnoError, match=r"client 2 in round 1: it took longer than engine\.timeout = 1 s .*, 3 times"
        ):
            fed.round()
        return
    for _ in range(2):
        fed.round()
    assert (tmp_path / "hung").exists()
    assert torch.equal(fed.w, undisturbed)


@dataclass(frozen=True)
class Exit:
    """A probe in which client 2 calls sys.exit in round 2."""

    def __call__(self, learner, job):
        if job.client == 2 and job.round == 1:
            sys.exit(3)
        return {}


@dataclass
class Exiting(Part):
    roles: ClassVar = frozenset({"loss"})

    def send(self, work):
        return replace(work, probe=Exit())


def test_a_client_that_exits_is_an_error_or_dropped(digits, engine, by_value):
    feds = [
        Federation(digits, [*parts("scaffold"), Exiting()], engine=e, local=Local(epochs=2), on_client_error=policy)
        for e, policy in ((Serial(digits), "drop"), (engine, "drop"), (engine, "stop"))
    ]
    for _ in range(3):
        a, b = (fed.round() for fed in feds[:2])
        assert a.dropped == b.dropped == (a.t == 1)
        assert [why.partition(" (in ")[0] for why in b.failures] == ["client 2 in round 2: SystemExit: 3"] * b.dropped
    assert torch.equal(feds[0].w, feds[1].w)
    feds[2].round()
    with pytest.raises(
        ClientError, match=r"client 2 in round 2: SystemExit: 3 \(in .*test_ray\.py, line \d+: sys\.exit\(3\)"
    ):
        feds[2].round()


@pytest.fixture(scope="module")
def adding(engine, digits):
    engine._transport.stop()  # their cores are needed
    made = ray_engine(digits, workers=3, reduce="worker")  # a node that was killed may still be counted
    yield made
    made.close()


SUMMED = ["fedavg", "fedprox", "fedadam", "fedavgm", "fedrcl"]


@pytest.mark.parametrize("name", SUMMED)
def test_sums_made_by_workers_agree_to_rounding_and_repeat(name, digits, adding, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 3 * digits.layout.size)
    sent = []
    actors = adding._transport.actors
    real = actors.send
    monkeypatch.setattr(actors, "send", lambda actor, call: sent.append(call.method) or real(actor, call))
    # Equal batches: an adaptive server divides by small numbers, and would enlarge the rounding of small clients.
    (a, ra), (b, rb), (c, _) = (train(digits, e, name, batch_size=8) for e in (Serial(digits), adding, adding))
    assert sent.count("sum") == len(sent) == 2 * 3 * 3  # one per worker and round, in two runs of three rounds
    assert torch.equal(b.w, c.w)
    torch.testing.assert_close(a.w, b.w, rtol=1e-4, atol=1e-6)
    for x, y in zip(ra, rb, strict=True):
        for column in ("client", "weight", "steps", "uploaded"):
            assert x.clients[column] == y.clients[column]
        for column in ("loss", "delta_norm"):
            torch.testing.assert_close(torch.tensor(x.clients[column]), torch.tensor(y.clients[column]))
    assert adding.equality == "as serial to rounding, by 3 workers"
    assert adding.equality in adding.name


def test_sums_leave_out_clients_that_diverged(digits, adding):
    local = Local(epochs=2, batch_size=8, lr=[0.05] * 6 + [1e30])
    feds = [Federation(digits, engine=e, local=local, on_divergence="drop") for e in (Serial(digits), adding)]
    a, b = [fed.round() for fed in feds]
    assert a.dropped == b.dropped == 1
    assert a.clients["client"] == b.clients["client"] == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(feds[0].w, feds[1].w)
    with pytest.raises(ArnoError, match="client 6 diverged in round 1"):
        Federation(digits, engine=adding, local=local).round()


@pytest.mark.parametrize("last", [6, 2])
def test_sums_leave_out_clients_that_failed(last, digits, adding, by_value, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", digits.layout.size)  # a block per client; the last one brings the sum
    cohorts = Fixed([list(range(last + 1))] * 2)
    feds = [
        Federation(digits, [cohorts, Exiting()], engine=e, local=Local(batch_size=8), on_client_error="drop")
        for e in (Serial(digits), adding)
    ]
    for _ in range(2):
        a, b = [fed.round() for fed in feds]
    assert a.dropped == b.dropped == 1
    assert a.failures == b.failures
    assert a.clients["client"] == b.clients["client"] == [k for k in range(last + 1) if k != 2]
    torch.testing.assert_close(feds[0].w, feds[1].w)


@pytest.mark.parametrize("name", ["scaffold", "fedvarp", "fednova", "moon", "lorenzo"])
def test_sums_are_refused_where_rows_are_needed(name, digits, adding):
    with pytest.raises(ArnoError, match=r"engine\.reduce=worker with \w+: it reads every client's update"):
        Federation(digits, parts(name), engine=adding, local=Local(batch_size=8), rounds=3)


def test_shares_deal_the_cohort_evenly_and_once(digits):
    fed = Federation(digits, local=Local(epochs=[9, 1, 1, 1, 1, 4, 5], batch_size=1000))
    works = list(fed.blocks(range(7), 0))
    dealt = shares(works, 2)
    assert sorted(j for share in dealt for j in share[0]) == list(range(7))
    assert [sum(int(works[0].steps[j]) for j in share[0]) for share in dealt] == [11, 11]
    assert len(shares(works, 100)) == 7


def test_wrong_settings_and_addresses_are_refused_in_one_line(digits, monkeypatch):
    with pytest.raises(ArnoError, match=r"engine\.workers = -1"):
        ray_engine(digits, workers=-1)
    with pytest.raises(ArnoError, match=r"engine\.timeout = -1"):
        ray_engine(digits, timeout=-1)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ArnoError, match=r"engine\.address = 127\.0\.0\.1:1: no Ray cluster answers there"):
        ray_engine(digits, address="127.0.0.1:1")
    with pytest.raises(ArnoError, match="it is written HOST:PORT"):
        ray_engine(digits, address="ray://here")
    long = RuntimeError("Initialization failure from server:\nTraceback\n  File\nTimeoutError: the head is slow")
    assert "(Initialization failure from server: TimeoutError: the head is slow)" in str(refused("ray://here:1", long))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArnoError, match=r"ray is not installed.*pip install 'arno\[ray\]'"):
        ray_engine(digits)


def test_another_version_on_the_cluster_is_named(cluster, tmp_path):
    code = "import sys, ray; ray.__version__ = '1.2.3'; from arno.cli import main; main(sys.argv[1:])"
    words = ["run", "engine=ray", f"engine.address={cluster.address}", f"out={tmp_path / 'r'}"]
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"error: engine.address = {cluster.address}: Version mismatch")


def test_a_comparison_spreads_its_cells(engine, adding, tmp_path):
    for other in (engine, adding):
        other._transport.stop()  # their cores are needed
    words = ["clients=5", "rounds=2", "data.limit=200", "model.hidden=[8]"]
    arno.compare("method=fedavg,scaffold", "engine=ray", *words, seed=range(2), out=tmp_path / "all")
    for method in ("fedavg", "scaffold"):
        for seed in range(2):
            alone = arno.run(
                f"method={method}", "engine=serial", *words, seed=seed, out=str(tmp_path / f"{method}{seed}")
            )
            cell = RunResult(tmp_path / "all" / f"method={method}+seed={seed}")
            assert cell.folder.manifest()["status"] == "done"
            assert torch.equal(cell.final, alone.final)


HEAD = """
import sys
from ray.cluster_utils import Cluster
settings = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": int(sys.argv[1])}
nodes = Cluster(initialize_head=True, head_node_args=settings)
print("up", flush=True)
sys.stdin.read()
nodes.shutdown()
"""


CLIENT = """
import os, pathlib, sys, ray
if pathlib.Path("~/.ray/auth_token").expanduser().exists():
    os.environ["RAY_AUTH_MODE"] = "token"
ray.init(sys.argv[1], log_to_driver=False)
assert ray.get(ray.remote(lambda: 3).remote()) == 3
"""


def _ends_well(command):
    with suppress(subprocess.TimeoutExpired):
        return not subprocess.run(command, capture_output=True, timeout=90).returncode
    return False


def test_a_client_from_outside_reaches_the_cluster(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["clients=5", "rounds=2", "data.limit=200", "model.hidden=[8]"]
    where = ["engine=ray", f"engine.address=ray://127.0.0.1:{port}", f"out={tmp_path / 'r'}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)  # Ray leaves settings to its children
    with subprocess.Popen([sys.executable, "-c", HEAD, str(port)], text=True, **pipes) as head:
        assert any(line == "up\n" for line in head.stdout)
        plain = [sys.executable, "-c", CLIENT, f"ray://127.0.0.1:{port}"]
        if not any(_ends_well(plain) for _ in range(2)):
            head.stdin.close()
            pytest.skip("Ray's own client does not reach Ray's own server on this machine")
        command = [sys.executable, "-m", "arno", "run", *words, *where]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
        head.stdin.close()
    assert ended.returncode == 0, ended.stderr
    alone = arno.run("engine=serial", *words, out=str(tmp_path / "alone"))
    assert torch.equal(RunResult(tmp_path / "r").final, alone.final)


def test_a_cell_that_cannot_reach_its_folder_is_sent_back(tmp_path):
    config = plain(compose(["rounds=1", "data.limit=200", "engine=serial", f"out={tmp_path / 'out' / 'cell'}"]))
    answer = CellActor(os.getcwd()).run(config, str(tmp_path / "nobody-made-this"))
    assert not (tmp_path / "out").exists()
    assert not outcome_of(answer, config).reason
    assert RunResult(tmp_path / "out" / "cell").final.isfinite().all()
