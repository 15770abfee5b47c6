"""What the tests of all engines do: every method on seven unequal clients, and a comparison of what came out."""

import torch

from arno.core.federation import Federation, Local
from arno.engines.serial import Serial
from arno.methods import methods
from arno.selection import Uniform

SETTINGS = {
    "cluster_fedvarp": {"clusters": 3},
    "fedscavar": {"clusters": 3},
    "feddyn": {"alpha": 0.1},
    "qrmix": {"rank_k": 3, "oversampling": 3},
    "compose": {"parts": ("window", "scaffold", "cluster_varp"), "cluster_varp": {"clusters": 3}},
}


def steady(record):
    """A record without what a clock wrote; as text, in which NaN equals NaN."""
    return str({name: value for name, value in record.items() if not name.endswith("seconds")})


def train(problem, engine, name, times=3, **local):
    """Some rounds of a method: the federation and its records."""
    parts = methods.get(name)(**SETTINGS.get(name, {}))
    share = 1.0 if name == "lorenzo" else 0.6
    setting = Local(**{"epochs": [1, 2, 3, 1, 2, 3, 1], "batch_size": 8, "lr": 0.05} | local)
    fed = Federation(problem, [Uniform(share), *parts], engine=engine, local=setting, rounds=times)
    records = [fed.round() for _ in range(times)]
    return fed, records


def same_bits(problem, engine, name):
    """The model, the records and the state of the parts are those of the serial engine."""
    a, ra = train(problem, Serial(problem), name)
    b, rb = train(problem, engine, name)
    assert torch.equal(a.w, b.w)
    for x, y in zip(ra, rb, strict=True):
        assert steady(x.clients) == steady(y.clients)
        assert steady(x.numbers) == steady(y.numbers)
    for p, q in zip(a.parts, b.parts, strict=True):
        for value, other in zip(p.state().values(), q.state().values(), strict=True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other)
