"""Random small cases of every personal method and baseline against the NumPy program of `reference.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import torch
from reference import METHODS, Case, Net
from torch import nn

from arno.client_selection.schedule import Fixed
from arno.core.federation import Federation, Local
from arno.core.table import ClientTable
from arno.core.work import SGD
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.methods import methods
from arno.models.linear import MLP
from arno.problems.supervised import Supervised
from arno.tasks.classification import Classification

#: Methods that the specification does not define with batch normalisation, and with local momentum.
WITHOUT_BUFFERS = {"apfl", "pfedme", "per_fedavg", "fedala"}
WITHOUT_MOMENTUM = {"apfl", "pfedme", "per_fedavg", "fedcm", "feddc", "mime", "mimelite"}
HIDDEN = {"feddecorr"}
#: Cases of each method.
SEEDS = 12


def settings(name: str, n: int, layers: int, g: np.random.Generator) -> dict[str, Any]:
    """Settings of a method, drawn from all that it allows."""

    def pick(*values: Any) -> Any:
        return values[g.integers(len(values))]

    def each(low: float, high: float, whole: bool = False) -> list[Any]:
        drawn = g.integers(int(low), int(high) + 1, n) if whole else g.uniform(low, high, n)
        return drawn.tolist()

    tuning = {"finetune_epochs": pick(0, 1, 2), "finetune_part": pick("full", "head", "body")}
    drawn: dict[str, dict[str, Any]] = {
        "fedavg": tuning,
        "fedbabu": tuning,
        "fedrep": {"head_epochs": each(0, 3, whole=True)},
        "ditto": {"lam": each(0, 4), "personal_epochs": each(0, 3, whole=True)},
        "apfl": {"alpha": pick(each(0, 1), [0.0] * n, [1.0] * n), "adaptive": pick(True, False)},
        "pfedme": {
            "lam": pick(0.0, 3.0, 15.0), "inner_steps": pick(1, 4), "inner_lr": 0.05, "beta": pick(0.5, 1.0, 1.7)
        },
        "per_fedavg": {
            "alpha": pick(0.0, 0.1, 0.5), "variant": pick("fo", "hf", "exact"), "delta": 0.01,
            "adapt_steps": pick(0, 1, 3),
        },
        "fedala": {
            "layers": int(g.integers(1, layers + 1)), "eta": pick(0.0, 1.0, 30.0), "start_epochs": pick(0, 3),
            "weight_epochs": pick(0, 1), "sample_percent": 100,
        },
        "fedlc": {"tau": pick(0.0, 1.0, 2.5), "denominator": pick("all", "others")},
        "fedntd": {"beta": pick(0.0, 0.7), "tau": pick(1.0, 3.0)},
        "feddecorr": {"beta": pick(0.1, 2.0), "scale": pick("code", "paper")},
        "fedsam": {"rho": pick(0.0, 0.3)},
        "fedacg": {"momentum": pick(0.0, 0.85), "mu": each(0, 0.5)},
        "fedexp": {"epsilon": pick(1e-3, 1e-9)},
        "fedcm": {"alpha": pick(0.1, 0.6, 1.0)},
        "feddc": {"alpha": pick(0.0, 0.4), "drift": pick("cohort", "all")},
        "mime": {"beta": pick(0.0, 0.9)},
        "mimelite": {"beta": pick(0.0, 0.9)},
    }  # fmt: skip
    return drawn.get(name, {})


def draw(name: str, seed: int) -> Case:
    """A case: clients of unequal size, missing classes, cohorts of any size (empty, repeated), unequal local work."""
    g = np.random.default_rng([seed, *name.encode()])
    n, f, c = int(g.integers(2, 6)), int(g.integers(2, 5)), int(g.integers(2, 5))
    hidden = 0 if name not in HIDDEN and g.random() < 0.3 else int(g.integers(1, 5))
    norm = bool(hidden) and name not in WITHOUT_BUFFERS and g.random() < 0.5
    sizes = [int(size) for size in g.integers(1, 9, n)]
    batch = [int(size) for size in g.integers(1, 6, n)]
    if norm:  # no batch of one sample
        sizes, batch = [2 * size for size in sizes], [2 * size for size in batch]
    net = Net((f, hidden, c), norm)
    w0 = g.normal(size=net.size)
    if norm:
        w0[net.d + hidden :] = g.uniform(0.5, 2.0, hidden)
    cohorts = [g.integers(0, n, g.integers(0, n + 2)).tolist() for _ in range(4)]
    return Case(
        method=name,
        settings=settings(name, n, 2 if hidden else 1, g),
        dims=(f, hidden, c),
        norm=norm,
        w0=w0,
        x=[g.normal(size=(size, f)) for size in sizes],
        y=[g.integers(0, c, size) for size in sizes],
        rounds=cohorts,
        epochs=g.integers(1, 4, n).tolist(),
        batch=batch,
        lr=g.uniform(0.05, 0.3, n).tolist(),
        decay=float(g.choice([0.0, 0.1])),
        lr_decay=float(g.choice([1.0, 0.8])),
        momentum=0.0 if name in WITHOUT_MOMENTUM else float(g.choice([0.0, 0.5])),
        uniform=bool(g.integers(2)),
        server_lr=float(g.choice([1.0, 0.7, 1.3])),
    )


def federation(case: Case) -> Federation:
    f, hidden, c = case.dims
    layers = (nn.Linear(f, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, c)) if case.norm else ()
    problem = Supervised(
        torch.from_numpy(np.concatenate(case.x)),
        torch.from_numpy(np.concatenate(case.y)),
        Partition(torch.arange(sum(map(len, case.y))), torch.tensor([0, *map(len, case.y)]).cumsum(0)),
        lambda: nn.Sequential(*layers) if case.norm else MLP(f, (hidden,) if hidden else (), c, "tanh"),
        transform=Transform((0.0,), (1.0,), 1.0),
        task=Classification(c),
        dtype=torch.float64,
    )
    sgd = SGD(weight_decay=case.decay, momentum=case.momentum, clip=case.clip, shuffle=False)
    return Federation(
        problem,
        [Fixed(case.rounds), *methods.get(case.method)(**case.settings)],
        local=Local(case.epochs, case.batch, case.lr, case.lr_decay, sgd),
        weighting="uniform" if case.uniform else "samples",
        server_lr=case.server_lr,
        w=torch.from_numpy(case.w0),
    )


def close(mine: Any, expected: Any) -> bool:
    a, b = np.asarray(mine, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    return a.shape == b.shape and bool((np.abs(a - b) <= 1e-8 * np.maximum(1.0, np.abs(b))).all())


@pytest.mark.parametrize("name", METHODS)
def test_random_cases_agree_with_the_program_in_numpy(name):
    for seed in range(SEEDS):
        case = draw(name, seed)
        expected, fed, steps = reference.run(case), federation(case), []
        everybody = torch.arange(len(case.x))
        for t, cohort in enumerate(case.rounds):
            record = fed.round()
            if cohort and "server_step" in record.numbers:
                steps.append(record.numbers["server_step"])
            assert close(fed.w, expected.w[t]), f"seed {seed}, round {t + 1}: {case}"
        if expected.personal is not None:
            assert close(fed.personal(everybody), expected.personal), f"seed {seed}: personal models of {case}"
        state = {key: value for part in fed.parts for key, value in part.state().items()} | {"server_step": steps}
        for key, value in expected.state.items():
            mine = state[key][everybody] if isinstance(state[key], ClientTable) else state[key]
            assert close(mine, value), f"seed {seed}: {key} of {case}"
