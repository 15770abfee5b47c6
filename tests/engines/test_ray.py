"""The Ray engine gives the serial engine's bits on several nodes, whatever is lost on the way, and makes no noise."""

import pytest
import torch

from arno.core import federation as rounds
from arno.core.federation import Federation, Local
from arno.engines.serial import Serial
from arno.experiment import build
from arno.experiment.config import compose, plain
from arno.methods import methods
from arno.selection import Uniform

ray = pytest.importorskip("ray", reason="needs pip install 'arno[ray]'")

from arno.engines.ray import ray_engine  # noqa: E402

SETTINGS = {
    "cluster_fedvarp": {"clusters": 3},
    "fedscavar": {"clusters": 3},
    "feddyn": {"alpha": 0.1},
    "qrmix": {"rank_k": 3, "oversampling": 3},
    "compose": {"parts": ("window", "scaffold", "cluster_varp"), "cluster_varp": {"clusters": 3}},
}


@pytest.fixture(scope="module")
def digits():
    config = plain(compose(["clients=7", "partition.alpha=0.3", "model.hidden=[12]", "data.limit=300"]))
    return build.classification(config)


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


def steady(record):
    """A record without what a clock wrote; as text, in which NaN equals NaN."""
    return str({name: value for name, value in record.items() if not name.endswith("seconds")})


def train(problem, engine, name, times=3, **local):
    parts = methods.get(name)(**SETTINGS.get(name, {}))
    share = 1.0 if name == "lorenzo" else 0.6
    setting = Local(**{"epochs": [1, 2, 3, 1, 2, 3, 1], "batch_size": 8, "lr": 0.05} | local)
    fed = Federation(problem, [Uniform(share), *parts], engine=engine, local=setting, rounds=times)
    records = [fed.round() for _ in range(times)]
    return fed, records


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", methods.names())
def test_the_bits_are_those_of_serial(name, digits, engine):
    a, ra = train(digits, Serial(digits), name)
    b, rb = train(digits, engine, name)
    assert torch.equal(a.w, b.w)
    for x, y in zip(ra, rb, strict=True):
        assert steady(x.clients) == steady(y.clients)
        assert steady(x.numbers) == steady(y.numbers)
    for p, q in zip(a.parts, b.parts, strict=True):
        for value, other in zip(p.state().values(), q.state().values(), strict=True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other)


def test_many_blocks_in_flight_come_back_in_order(digits, engine, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 2 * digits.layout.size)
    a, _ = train(digits, Serial(digits), "scaffold")
    b, _ = train(digits, engine, "scaffold")
    assert torch.equal(a.w, b.w)


def test_scores_and_losses_are_those_of_serial(digits, engine):
    serial, w = Serial(digits), digits.init(3)
    assert engine.report(w, clients=True) == serial.report(w, clients=True)
    assert engine.score([w, w + 0.1], "test") == serial.score([w, w + 0.1], "test")
    assert engine.score([w] * 4, "test") == serial.score([w] * 4, "test")
    assert torch.equal(engine.loss(w, torch.arange(7)), serial.loss(w, torch.arange(7)))
