"""The batched engine agrees with the serial one to rounding for what it supports, and refuses the rest by name."""

import os
import re
import signal
from contextlib import contextmanager

import pytest
import torch
import training
from training import parts, train

from arno import run
from arno.conform import PACKAGED, read, replay
from arno.core.federation import Federation
from arno.core.serial import Serial
from arno.core.work import SGD
from arno.engines.batched import GROUP, Batched, batched
from arno.errors import ArnoError
from arno.kernels.low_rank import LowRank
from arno.methods import methods
from arno.models.linear import MLP

#: Some methods that are refused, and why. A method that is not listed here may be refused too.
REASONS = {"moon": "changes the loss", "fedlc": "changes the loss", "fedsam": "changes the local step"}
REASONS |= {"fedcm": "changes the local step", "ditto": "changes the local step", "qrmix": "measures something"}
#: Methods that must not be refused: their clients run plain SGD.
PLAIN = {"fedavg", "fedprox", "fednova", "scaffold", "fedvarp", "cluster_fedvarp", "feddyn", "fedadam", "fedavgm"}
PLAIN |= {"fedrolex", "heterofl", "federated_dropout", "fedscavar", "lorenzo", "compose"}
REFUSED = r"engine=batched: the method (changes the loss|changes the local step|measures something).*; use engine=proc"


@contextmanager
def refusals(name):
    """A method may be refused, unless it is plain; those that are listed must be, for their reason."""
    refusal = ""
    try:
        yield
    except ArnoError as error:
        refusal = str(error)
    if refusal:
        assert name not in PLAIN
        assert re.match(REFUSED, refusal)
    assert REASONS.get(name, "") in refusal


def problem(*words):
    return training.digits("dtype=float64", *words)


@pytest.fixture(scope="module")
def digits():
    return problem()


def agree(problem, make, **settings):
    (a, ra), (b, rb) = (train(problem, engine(problem), make(), **settings) for engine in (Serial, Batched))
    assert float((a.w - b.w).abs().max()) < 1e-9  # an adaptive server divides by small numbers
    for x, y in zip(ra, rb, strict=True):
        assert x.clients["client"] == y.clients["client"]
        assert torch.allclose(torch.tensor(x.clients["loss"]), torch.tensor(y.clients["loss"]), atol=1e-6)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_agrees_or_is_refused(name, digits):
    with refusals(name):
        agree(digits, lambda: parts(name), share=1.0 if name == "lorenzo" else 0.7)


class Halved(MLP):
    def embed(self, x, levels=None):
        return super().embed(x, levels) / 2


def test_a_network_derived_from_a_dense_one_is_itself():
    made = problem("model.hidden=[12]")
    plain, _ = train(made, Serial(made), [])
    made.module = Halved(64, [12], 10, "relu").to(made.dtype)
    own, _ = train(made, Serial(made), [])
    assert float((own.w - plain.w).abs().max()) > 1e-3
    agree(made, list)


@pytest.mark.parametrize(
    "sgd",
    [
        SGD(momentum=0.9),
        SGD(weight_decay=0.1),
        SGD(clip=0.05),
        SGD(momentum=0.5, weight_decay=0.01, clip=0.2, shuffle=False),
    ],
    ids=["momentum", "decay", "clip", "all"],
)
def test_local_settings(digits, sgd):
    agree(digits, list, sgd=sgd)


def test_values_that_change_every_round(digits):
    agree(digits, lambda: parts("scaffold"), epochs="each_round(integers(1, 4))", lr="each_round(uniform(0.01, 0.1))")


@pytest.mark.parametrize(
    "words",
    [
        ["model=softmax"],
        ["model=softmax", "model.bias=false"],
        ["model.hidden=[12,9]", "model.activation=tanh"],
        ["model.hidden=[12]", "partition=quantity"],
    ],
    ids=["softmax", "no bias", "tanh", "unequal sizes"],
)
def test_dense_networks(words):
    agree(problem(*words), list)


@pytest.mark.parametrize("words", [[], ["partition=quantity"]], ids=["even", "unequal"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedrolex"])
def test_a_first_layer_that_is_kept_as_a_few_samples(words, name, monkeypatch):
    kept, write = [], LowRank.write
    monkeypatch.setattr(LowRank, "write", lambda self, update: kept.append(write(self, update)))
    few = problem("data.limit=84", "model.hidden=[200]", *words)
    agree(few, lambda: parts(name), epochs=1, batch_size=7)
    assert bool(kept) == (name == "fedavg")


def test_windows_that_mask(digits):
    agree(digits, lambda: methods.get("fedrolex")(beta=0.5, mode="mask"))


@pytest.mark.parametrize("model", ["lenet5", "resnet18"])
def test_convolutions_go_through_vmap(model, tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    side = 16 if model == "resnet18" else 28
    x, y = rng.integers(0, 255, (40, 1, side, side), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "images.npz", x=x, y=y)
    words = ["data=npz", f"data.path={tmp_path / 'images.npz'}", f"model={model}", "data.limit=null", "partition=iid"]
    images = problem(*words, *(["model.width=4"] if model == "resnet18" else []))
    agree(images, list, epochs=1, batch_size=3)
    agree(images, lambda: methods.get("fedrolex")(beta=0.5), epochs=1, batch_size=3)


@pytest.mark.parametrize("case", sorted(PACKAGED.glob("*.npz")), ids=lambda path: path.stem)
def test_conformance(case):
    spec = read(case, "serial").spec
    if spec["kind"] == "federated":
        with refusals(spec["method"]["name"]):
            assert replay(case, "batched").ok


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrolex"])
def test_small_groups_in_several_processes_change_no_bit(name, digits, monkeypatch):
    monkeypatch.setattr("arno.engines.batched.GROUP", 2 * digits.layout.d)  # two rows at a time
    alone, parallel = (Batched(digits, workers) for workers in (1, 3))
    (a, ra), (b, rb) = (train(digits, engine, name, share=1.0) for engine in (alone, parallel))
    assert torch.equal(a.w, b.w)
    assert [r.clients["loss"] for r in ra] == [r.clients["loss"] for r in rb]
    assert alone._pool is None
    assert len(parallel._pool._transport.workers) == 3
    parallel.close()
    serial, _ = train(digits, Serial(digits), name, share=1.0)
    assert float((a.w - serial.w).abs().max()) < 1e-9


def test_a_group_is_the_same_in_a_worker_and_in_the_server(monkeypatch):
    """Rows with few samples keep the first layer as samples; the larger batches of other groups do not matter."""
    made = problem("model.hidden=[256]")
    for name, value in (("GROUP", 2 * made.layout.d), ("MORE", 1), ("FEW", 0)):
        monkeypatch.setattr(f"arno.engines.batched.{name}", value)
    kept = []
    monkeypatch.setattr(LowRank, "__init__", counted(LowRank.__init__, kept))
    setting = {"share": 1.0, "epochs": 1, "batch_size": [40, 100, 40, 100, 100, 40, 100]}
    alone, parallel = (Batched(made, workers) for workers in (1, 2))
    (a, _), (b, _) = (train(made, engine, [], **setting) for engine in (alone, parallel))
    assert kept
    assert torch.equal(a.w, b.w)
    parallel.close()


def counted(function, calls):
    def call(*arguments):
        calls.append(function)
        return function(*arguments)

    return call


def test_attention_trains_in_smaller_groups_on_more_cores(digits, monkeypatch):
    seen = []
    monkeypatch.setattr(digits, "multiplications", digits.layout.d + GROUP // 6)  # it uses its weights several times
    monkeypatch.setattr(Batched, "_together", lambda self, work, delta, loss, rows: seen.append(len(rows)))
    for cores, most in ((1, 7), (2, 4), (4, 3), (99, 1)):
        seen.clear()
        train(digits, Batched(digits, cores=cores), [], share=1.0, times=1)
        assert sum(seen) == digits.clients.n
        assert max(seen) == most


def test_one_group_stays_in_this_process(digits):
    engine = Batched(digits, 3)
    train(digits, engine, [])
    assert engine._pool is None


def test_a_group_whose_worker_died_is_trained_again_as_it_was(digits, monkeypatch):
    monkeypatch.setattr("arno.engines.batched.GROUP", 2 * digits.layout.d)
    alone, parallel = (Federation(digits, engine=Batched(digits, workers)) for workers in (1, 2))
    for t in range(3):
        alone.round()
        if t:
            os.kill(parallel.engine._pool._transport.workers[0].process.pid, signal.SIGKILL)
        parallel.round()
    assert torch.equal(alone.w, parallel.w)
    parallel.engine.close()


OWN = """
from torch import nn


def Dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, classes))


def Buffers(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))
"""


def test_what_it_cannot_do_is_refused(digits, tmp_path):
    with pytest.raises(ArnoError, match=r"engine\.workers = -1"):
        batched(digits, workers=-1)
    with pytest.raises(ArnoError, match=r"local\.augment"):
        train(digits, Batched(digits), [], sgd=SGD(augment=True))

    (tmp_path / "own.py").write_text(OWN)
    own = problem("model=custom", f"model.target={tmp_path / 'own.py'}:Buffers")
    with pytest.raises(ArnoError, match="BatchNorm"):
        train(own, Batched(own), [])


def test_dropout_draws_the_numbers_of_the_serial_engine(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    agree(problem("model=custom", f"model.target={tmp_path / 'own.py'}:Dropout", "partition=quantity"), list)


def test_a_problem_without_a_network_is_refused_in_one_line(tmp_path):
    with pytest.raises(ArnoError, match=r"engine=batched: it trains networks, and this problem has none; use engine="):
        run("problem=quadratic", "engine=batched", rounds=1, out=tmp_path / "run")
