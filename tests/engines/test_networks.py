"""Networks of a user's own: parameters that are not trained stay, and random draws belong to a client."""

import pickle

import pytest
import torch
import training
from torch import nn
from training import parts, same_bits, train

from arno.core.serial import Serial
from arno.core.work import SGD
from arno.engines.batched import Batched, unsupported
from arno.engines.processes import processes
from arno.errors import ArnoError
from arno.methods import methods
from arno.models.linear import MLP
from arno.models.network import Network
from arno.problems.supervised import Supervised, seeded

#: Methods that do not train the head of the global model.
OWN_HEADS = {"fedbabu", "fedper", "fedrep", "local"}


class Frozen(MLP):
    """Its first layer is not trained."""

    def __init__(self, shape, outputs):
        super().__init__(64, [12], outputs, "tanh")
        self.hidden.requires_grad_(False)


class Drops(Network):
    """Draws random numbers while it trains."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.body, self.head = nn.Linear(64, 12), nn.Linear(12, outputs)

    def embed(self, x, levels=None):
        return nn.functional.dropout(self.body(x.flatten(1)).relu(), 0.3, self.training)


def problem(network):
    """The digits with this network."""
    base = training.digits("dtype=float64")
    splits = dict(base.held_out)
    return Supervised(
        base.x, base.y, base.partition, lambda: network(base.shape, 10), splits=splits, dtype=torch.float64
    )


@pytest.fixture(scope="module")
def frozen():
    return problem(Frozen)


@pytest.fixture(scope="module")
def drops():
    return problem(Drops)


def moved(problem, fed):
    """How far the layer that is not trained has moved, and the head."""
    apart = (fed.w - problem.init(0)).abs()
    return float(apart[: 65 * 12].max()), float(apart[65 * 12 :].max())


@pytest.mark.parametrize("name", methods.names())
def test_no_method_moves_parameters_that_are_not_trained(name, frozen):
    sgd = SGD(weight_decay=0.1)
    fed, _ = train(frozen, Serial(frozen), name, times=2, sgd=sgd)
    still, head = moved(frozen, fed)
    assert still < 1e-12  # a weighted mean of equal numbers
    assert head > 1e-4 or name in OWN_HEADS


@pytest.mark.parametrize("method", ["fedavg", "fedrolex", "scaffold"])
def test_the_batched_engine_agrees_on_parameters_that_are_not_trained(method, frozen):
    sgd = SGD(weight_decay=0.1, clip=0.05)
    one, many = (train(frozen, engine(frozen), method, sgd=sgd)[0] for engine in (Serial, Batched))
    assert torch.allclose(one.w, many.w, atol=1e-10)
    assert moved(frozen, many)[0] < 1e-12


def test_a_network_without_trained_parameters_is_refused():
    def network(shape, outputs):
        return Frozen(shape, outputs).requires_grad_(False)

    with pytest.raises(ArnoError, match="the network Frozen: it has no parameter that is trained"):
        problem(network)


def test_draws_of_a_network_belong_to_a_client(drops):
    (one, _), (other, _) = (train(drops, Serial(drops), "fedavg", times=1) for _ in range(2))
    assert torch.equal(one.w, other.w)
    engine = processes(drops, workers=2)
    try:
        same_bits(drops, engine, parts("scaffold"), times=2)
    finally:
        engine.close()


class Plain(nn.Module):
    """No `Network`, and no chain of known layers."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.one, self.two = nn.Linear(64, 12), nn.Linear(12, outputs)

    def forward(self, x):
        h = self.one(x.flatten(1))
        return self.two(h * torch.sigmoid(h))


def test_any_network_that_vmap_computes_is_batched():
    plain = problem(Plain)
    one, many = (train(plain, engine(plain), "scaffold")[0] for engine in (Serial, Batched))
    assert torch.allclose(one.w, many.w, atol=1e-10)


def test_a_network_that_draws_is_batched_with_the_draws_of_each_client(drops, frozen):
    (one, _), (many, _) = (train(drops, engine(drops), "scaffold", times=2) for engine in (Serial, Batched))
    assert torch.allclose(one.w, many.w, atol=1e-10)
    work = next(one.plain_blocks(range(7), 0))
    assert unsupported(drops, work) == unsupported(frozen, work) == ""


def test_a_network_is_not_recorded_for_every_number_of_samples():
    plain = problem(Plain)
    sizes = plain.clients.sizes
    train(plain, Batched(plain), "fedavg", epochs=1, batch_size=100, share=1.0, times=1)
    made = set(plain.stack._programs) - {2, 3}  # of the check
    most = int(sizes.max().clamp(max=100))
    assert made <= {*range(8, 101, 8), most}
    assert len(made) < len(set((sizes % 100).tolist()))


def test_a_batch_size_beyond_all_clients_takes_no_memory():
    plain = problem(Plain)
    one, many = (train(plain, engine(plain), "fedavg", batch_size=10**12)[0] for engine in (Serial, Batched))
    assert torch.allclose(one.w, many.w, atol=1e-10)


class Noisy(Plain):
    """Draws what no rule knows."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def test_other_draws_are_not_batched():
    noisy = problem(Noisy)
    work = next(train(noisy, Serial(noisy), [], times=0)[0].plain_blocks(range(7), 0))
    assert "vmap: called random operation" in unsupported(noisy, work)


def test_seeding_draws_what_torch_draws_and_restores_the_stream():
    before = torch.get_rng_state()
    with seeded(2**63 + 5):
        drawn = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**63 + 5)
        assert torch.equal(drawn, torch.rand(3))


class Held(Plain):
    """Hooks of parameters: half of the weights do not move."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.one.weight.register_hook(lambda delta: delta * (torch.arange(12) < 6)[:, None])


def test_hooks_of_parameters_are_kept_where_clients_train():
    held = problem(Held)
    one, _ = train(held, Serial(held), "fedavg", times=1)
    apart = (one.w - held.init(0))[: 64 * 12].view(12, 64).abs()
    assert float(apart[:6].max()) > 1e-4
    assert float(apart[6:].max()) < 1e-12
    assert "a parameter has a hook" in unsupported(held, next(one.plain_blocks(range(7), 0)))
    engine = processes(held, workers=2, start="fork")
    try:
        same_bits(held, engine, parts("fedavg"), times=1)
    finally:
        engine.close()
    with pytest.raises(ArnoError, match="a parameter has a hook, which cannot be sent to another process"):
        pickle.dumps(held)
