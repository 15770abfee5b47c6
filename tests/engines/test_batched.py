"""The batched engine agrees with the serial one to rounding for what it supports, and refuses the rest by name."""

import os
import signal

import pytest
import torch
import training
from torch import nn

from arno.config import build
from arno.config.settings import compose, plain
from arno.conform import PACKAGED, read, replay
from arno.core.federation import Federation, Local
from arno.core.work import SGD
from arno.engines.batched import Batched, batched
from arno.engines.serial import Serial
from arno.errors import ArnoError
from arno.methods import methods
from arno.models.linear import MLP
from arno.selection import Uniform

SETTINGS = training.SETTINGS | {"heterofl": {"beta": [0.3, 0.5, 1.0, 0.3, 0.5, 1.0, 0.7]}}
REFUSED = {"moon": "terms", "fedrcl": "terms", "qrmix": "measures"}


def problem(*words):
    skew = [] if any(word.startswith("partition=") for word in words) else ["partition.alpha=0.3"]
    words = ["clients=7", *skew, "data.limit=300", "dtype=float64", *words]
    return build.classification(plain(compose(words)))


@pytest.fixture(scope="module")
def digits():
    return problem("model.hidden=[12]")


def train(problem, engine, parts, times=3, share=0.7, **local):
    setting = Local(**{"epochs": [1, 2, 3, 1, 2, 3, 1], "batch_size": [8, 5, 8, 16, 3, 8, 100], "lr": 0.05} | local)
    fed = Federation(problem, [Uniform(share), *parts], engine=engine, local=setting, rounds=times)
    records = [fed.round() for _ in range(times)]
    return fed.w, records


def agree(problem, make, **settings):
    (a, ra), (b, rb) = (train(problem, engine(problem), make(), **settings) for engine in (Serial, Batched))
    assert float((a - b).abs().max()) < 1e-9  # an adaptive server divides by small numbers
    for x, y in zip(ra, rb, strict=True):
        assert x.clients["client"] == y.clients["client"]
        assert torch.allclose(torch.tensor(x.clients["loss"]), torch.tensor(y.clients["loss"]), atol=1e-6)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_agrees_or_is_refused(name, digits):
    def make():
        return methods.get(name)(**SETTINGS.get(name, {}))

    if name in REFUSED:
        with pytest.raises(ArnoError, match=f"engine=batched.*{REFUSED[name]}.*processes"):
            train(digits, Batched(digits), make())
        return
    agree(digits, make, share=1.0 if name == "lorenzo" else 0.7)


class Halved(MLP):
    def embed(self, x, levels=None):
        return super().embed(x, levels) / 2


def test_a_network_derived_from_a_dense_one_is_itself():
    made = problem("model.hidden=[12]")
    plain_w, _ = train(made, Serial(made), [])
    made.module = Halved(64, [12], 10, "relu").to(made.dtype)
    own, _ = train(made, Serial(made), [])
    assert float((own - plain_w).abs().max()) > 1e-3
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


@pytest.mark.parametrize(
    "words",
    [
        ["model=softmax"],
        ["model.hidden=[12,9]", "model.activation=tanh"],
        ["model.hidden=[12]", "partition=quantity"],
    ],
    ids=["softmax", "tanh", "unequal sizes"],
)
def test_dense_networks(words):
    agree(problem(*words), list)


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
    if read(case, "serial").spec["kind"] == "federated":
        assert replay(case, "batched").ok


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrolex"])
def test_small_groups_in_several_processes_change_no_bit(name, digits, monkeypatch):
    monkeypatch.setattr("arno.engines.batched.GROUP", 2 * digits.layout.d)  # two rows at a time
    alone, crew = (Batched(digits, workers) for workers in (1, 3))
    (a, ra), (b, rb) = (train(digits, engine, methods.get(name)(), share=1.0) for engine in (alone, crew))
    assert torch.equal(a, b)
    assert [r.clients["loss"] for r in ra] == [r.clients["loss"] for r in rb]
    assert "_crew" in vars(crew)
    crew.close()
    serial, _ = train(digits, Serial(digits), methods.get(name)(), share=1.0)
    assert float((a - serial).abs().max()) < 1e-9


def test_one_group_stays_in_this_process(digits):
    engine = Batched(digits, 3)
    train(digits, engine, [])
    assert "_crew" not in vars(engine)


def test_a_group_whose_worker_died_is_trained_again_as_it_was(digits, monkeypatch):
    monkeypatch.setattr("arno.engines.batched.GROUP", 2 * digits.layout.d)
    alone, crew = (Federation(digits, engine=Batched(digits, workers)) for workers in (1, 2))
    for _ in range(3):
        alone.round()
        if workers := crew.engine._crew._workers:
            os.kill(workers[0].process.pid, signal.SIGKILL)
        crew.round()
    assert torch.equal(alone.w, crew.w)
    crew.engine.close()


def test_what_it_cannot_do_is_refused(digits):
    with pytest.raises(ArnoError, match=r"engine\.workers = -1"):
        batched(digits, workers=-1)
    with pytest.raises(ArnoError, match=r"local\.augment"):
        train(digits, Batched(digits), [], sgd=SGD(augment=True))

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(x.flatten(1))

    digits_own = problem("model.hidden=[12]")
    digits_own.module = Own()
    with pytest.raises(ArnoError, match="network of your own"):
        train(digits_own, Batched(digits_own), [])
