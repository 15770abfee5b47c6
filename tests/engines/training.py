"""Shared by the tests of the engines: every method on seven unequal clients, and a comparison of the results."""

import torch

from arno.client_selection.uniform import Uniform
from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation, Local
from arno.core.serial import Serial
from arno.core.table import ClientTable
from arno.methods import methods

#: Settings of the methods whose defaults do not suit seven clients and a small network.
SETTINGS = {
    "cluster_fedvarp": {"clusters": 3},
    "fedscavar": {"clusters": 3},
    "feddyn": {"alpha": 0.1},
    "heterofl": {"beta": [0.3, 0.5, 1.0, 0.3, 0.5, 1.0, 0.7]},
    "qrmix": {"rank_k": 3, "oversampling": 3},
    "compose": {
        "parts": ["window", "scaffold", "cluster_varp", "server_momentum"],
        "cluster_varp": {"clusters": 3},
    },
}


def parts(name):
    """The parts of a method."""
    return methods.get(name)(**SETTINGS.get(name, {}))


def words(name):
    """The same method and settings on the command line."""
    return [f"method={name}", *_words("method", SETTINGS.get(name, {}))]


def _words(prefix, settings):
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _words(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}={str(value).replace(' ', '')}".replace("'", "")


def digits(*words):
    """Digits on seven clients, with skewed labels and a small network unless the words say otherwise."""
    defaults = {"partition": "partition.alpha=0.3", "model": "model.hidden=[12]"}
    added = [word for group, word in defaults.items() if not any(given.startswith(group) for given in words)]
    return build.supervised(plain(compose(["clients=7", "data.limit=300", *added, *words])))


def train(problem, engine, method, times=3, share=0.7, **local):
    """Some rounds of a method (a name, or parts): the federation and its records."""
    setting = {"epochs": [1, 2, 3, 1, 2, 3, 1], "batch_size": [8, 5, 8, 16, 3, 8, 100], "lr": 0.05} | local
    share = 1.0 if method == "lorenzo" else share
    chosen = parts(method) if isinstance(method, str) else method
    fed = Federation(problem, [Uniform(share), *chosen], engine=engine, local=Local(**setting), rounds=times)
    return fed, [fed.round() for _ in range(times)]


def same_bits(problem, engine, method, **settings):
    """The model, the records, the state of the parts and the personal models are those of the serial engine."""
    a, first = train(problem, Serial(problem), method, **settings)
    b, second = train(problem, engine, method, **settings)
    assert torch.equal(a.w, b.w)
    for x, y in zip(first, second, strict=True):
        assert steady(x.clients) == steady(y.clients)
        assert steady(x.numbers) == steady(y.numbers)
    for p, q in zip(a.parts, b.parts, strict=True):
        for value, other in zip(p.state().values(), q.state().values(), strict=True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other)
            elif isinstance(value, ClientTable):
                mine, theirs = value.tensors(), other.tensors()
                assert mine.keys() == theirs.keys()
                assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    if any("personal" in part.roles for part in a.parts):
        everybody = torch.arange(a.n)
        assert torch.equal(a.personal(everybody), b.personal(everybody))


def steady(record):
    """A record without measured times; as text, in which NaN equals NaN."""
    return str({name: value for name, value in record.items() if not name.endswith("seconds")})


def same_scores(problem, engine):
    """Scores, losses and estimates of losses are those of the serial engine."""
    serial, w, everyone = Serial(problem), problem.init(3), torch.arange(7)
    assert engine.report(w, clients=True) == serial.report(w, clients=True)
    for models in ([w], [w, w + 0.1], [w, w + 0.1, w - 0.1, w + 0.2]):
        assert engine.score(models, "test") == serial.score(models, "test")
    assert torch.equal(engine.loss(w, everyone), serial.loss(w, everyone))
    sizes = torch.tensor([3, 4, 5, 6, 7, 8, 9])
    estimates = [e.batch_loss(w, everyone, sizes, 5, 2) for e in (engine, serial)]
    assert torch.equal(*estimates)
    assert not torch.equal(estimates[0], serial.loss(w, everyone))
