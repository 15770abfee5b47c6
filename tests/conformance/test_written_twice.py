"""Random cases of every personal method and baseline, written as files and replayed by `arno conform`'s own code.

The expected numbers are those of `autograd.py`, which `reference.py` must confirm before a case counts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import autograd
import numpy as np
import pytest
import reference
import torch
from reference import METHODS, Case
from test_reference import HIDDEN, WITHOUT_BUFFERS, close, federation

from arno.conform import replay
from arno.core.table import ClientTable

PERSONAL = {
    "local", "fedavg", "fedper", "lg_fedavg", "fedrep", "fedbabu", "fedbn", "ditto", "apfl", "pfedme", "per_fedavg",
    "fedala",
}  # fmt: skip
#: Methods that refuse local momentum, and clipping.
PLAIN = {"apfl": 2, "pfedme": 2, "per_fedavg": 2, "fedcm": 1, "feddc": 1, "mime": 1, "mimelite": 1}
#: Cases of each method: as files; with momentum, clipping and decaying rates, which no file can hold.
FILES, OPTIONS = 6, 6
#: Relative; FedDecorr divides by standard deviations that may be small.
TOLERANCE = 1e-9


def settings(name: str, n: int, layers: int, g: np.random.Generator) -> dict[str, Any]:
    """Settings from all that a method allows, its limits included."""

    def between(low: float, high: float) -> float:
        return float(g.choice([low, high, g.uniform(low, high), g.uniform(low, high)]))

    def each(low: float, high: float) -> list[float]:
        return [between(low, high) for _ in range(n)]

    def whole(low: int, high: int) -> int:
        return int(g.integers(low, high + 1))

    def among(*values: Any) -> Any:
        return values[g.integers(len(values))]

    tuning = {"finetune_epochs": whole(0, 3), "finetune_part": among("full", "head", "body")}
    lam = among(0.0, 1.0, 15.0)
    drawn: dict[str, dict[str, Any]] = {
        "fedavg": tuning,
        "fedbabu": tuning,
        "fedrep": {"head_epochs": [whole(0, 4) for _ in range(n)]},
        "ditto": {"lam": each(0, 3), "personal_epochs": [whole(0, 4) for _ in range(n)]},
        "apfl": {"alpha": each(0, 1), "adaptive": among(True, False)},
        "pfedme": {"lam": lam, "inner_steps": whole(1, 6), "inner_lr": g.uniform(0.005, 0.13), "beta": between(0, 2)},
        "per_fedavg": {
            "alpha": between(0, 0.5), "variant": among("fo", "hf", "exact"), "delta": among(1e-3, 0.05, 1.0),
            "adapt_steps": whole(0, 3),
        },
        "fedala": {
            "layers": whole(1, layers), "eta": between(0, 20), "start_epochs": whole(0, 4),
            "weight_epochs": whole(0, 2), "sample_percent": 100,
        },
        "fedlc": {"tau": between(0, 3), "denominator": among("all", "others")},
        "fedntd": {"beta": between(0, 2), "tau": between(0.5, 4)},
        "feddecorr": {"beta": between(0, 2), "scale": among("code", "paper")},
        "fedsam": {"rho": between(0, 0.5)},
        "fedacg": {"momentum": between(0, 0.95), "mu": each(0, 0.5)},
        "fedexp": {"epsilon": among(1e-9, 1e-3, 0.5)},
        "fedcm": {"alpha": between(0.05, 1)},
        "feddc": {"alpha": between(0, 0.5), "drift": among("cohort", "all")},
        "mime": {"beta": between(0, 0.95)},
        "mimelite": {"beta": between(0, 0.95)},
    }  # fmt: skip
    return drawn.get(name, {})


def sizes(g: np.random.Generator, n: int, norm: bool) -> tuple[list[int], list[int]]:
    """Samples, and batch sizes that divide them, do not, or exceed them; with batch norm no batch has one sample."""
    samples = [int(x) for x in g.integers(2 if norm else 1, 14, n)]
    batch = [int(x) for x in g.integers(2 if norm else 1, 8, n)]
    if norm:
        batch = [
            b + 1 if s % b == 1 and (s % (b + 1) != 1) else s if s % b == 1 else b
            for s, b in zip(samples, batch, strict=True)
        ]
    return samples, batch


def cohorts(g: np.random.Generator, n: int, repeats: bool) -> list[list[int]]:
    """Rounds: some clients, one client, all, none (with repeats: clients drawn twice); a client may never be drawn."""
    eligible = g.permutation(n)[: max(1, n - int(g.integers(0, 2)))]
    rounds = []
    for _ in range(int(g.integers(1, 6))):
        many = int(g.integers(1, len(eligible) + 1))
        rounds.append(g.choice(eligible, many, replace=repeats).tolist())
    return rounds


def draw(name: str, seed: int) -> Case:
    g = np.random.default_rng([seed, 22, *name.encode()])
    n, f, c = int(g.integers(1, 6)), int(g.integers(1, 6)), int(g.integers(2, 6))
    hidden = 0 if name not in HIDDEN and g.random() < 0.3 else int(g.integers(1, 7))
    norm = bool(hidden) and name in PERSONAL - WITHOUT_BUFFERS and g.random() < 0.5
    samples, batch = sizes(g, n, norm)
    net = reference.Net((f, hidden, c), norm)
    w0 = g.normal(size=net.size)
    w0[net.d + hidden :] = g.uniform(0.5, 2.0, net.size - net.d - hidden) if norm else w0[net.d + hidden :]
    held = [g.permutation(c)[: g.integers(1, c + 1)] for _ in range(n)]  # clients lack classes
    return Case(
        method=name,
        settings=settings(name, n, 2 if hidden else 1, g),
        dims=(f, hidden, c),
        norm=norm,
        w0=w0,
        x=[g.normal(size=(size, f)) for size in samples],
        y=[g.choice(mine, size) for mine, size in zip(held, samples, strict=True)],
        rounds=cohorts(g, n, repeats=name not in PERSONAL),
        epochs=g.integers(1, 5, n).tolist(),
        batch=batch,
        lr=g.uniform(0.02, 0.4, n).tolist(),
        decay=float(g.choice([0.0, 0.01, 0.2])),
        uniform=bool(g.integers(2)),
        server_lr=float(g.choice([1.0, 0.5, 1.4])),
    )


def write(case: Case, expected: reference.Outcome, path: Path) -> Path:
    """The case as a file of the format."""
    f, hidden, c = case.dims
    personal = case.method in PERSONAL
    spec = {
        "version": 1,
        "name": path.stem,
        "kind": "personal" if personal else "federated",
        "tol": TOLERANCE * max(1.0, float(np.abs(expected.w).max())),
        "model": "mlp_bn" if case.norm else "mlp" if hidden else "softmax",
        "dims": {"features": f, "classes": c} | ({"hidden": hidden} if hidden else {}),
        "clients": len(case.x),
        "rounds": len(case.rounds),
        "participation": case.rounds,
        "epochs": case.epochs,
        "batch_size": case.batch,
        "lr": case.lr,
        "weight_decay": case.decay,
        "method": {
            "name": case.method, "weighting": "uniform" if case.uniform else "samples", "server_lr": case.server_lr,
            **case.settings,
        },
    }  # fmt: skip
    arrays: dict[str, Any] = {"w0": case.w0, "w": np.stack(expected.w)}
    arrays |= {f"x_{k}": x for k, x in enumerate(case.x)} | {f"y_{k}": y for k, y in enumerate(case.y)}
    arrays |= {"alpha" if key == "a" else key: np.asarray(value) for key, value in expected.state.items()}
    if personal:
        g, net = np.random.default_rng(len(case.w0)), reference.Net(case.dims, case.norm)
        arrays["personal"], losses = expected.personal, []
        for k, w in enumerate(arrays["personal"]):
            x, y = g.normal(size=(5, f)), g.integers(0, c, 5)
            arrays |= {f"test_x_{k}": x, f"test_y_{k}": y}
            losses.append(-np.log(reference.softmax(net.outputs(w, x))[np.arange(5), y]).mean())
        arrays["test_loss"] = np.array(losses)
    np.savez(path, spec=json.dumps(spec), **arrays)
    return path


def agree(first: reference.Outcome, second: reference.Outcome) -> bool:
    """Whether two programs found the same numbers."""
    pairs = [(first.w, second.w)] + [(first.state[key], second.state[key]) for key in second.state]
    if first.personal is not None or second.personal is not None:
        pairs.append((first.personal, second.personal))
    return all(close(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", METHODS)
def test_random_files_replay(name, tmp_path):
    for seed in range(FILES):
        case = draw(name, seed)
        expected = autograd.run(case)
        assert agree(expected, reference.run(case)), f"the two programs differ: seed {seed}"
        outcome = replay(write(case, expected, tmp_path / f"{name}_{seed}.npz"))
        assert outcome.ok, f"seed {seed}: error {outcome.error:.1e} of {case}"


def with_options(name: str, seed: int) -> Case:
    """A case with what the format cannot hold: momentum, clipping, decaying rates, empty rounds, batch norm."""
    case, g = draw(name, 1000 + seed), np.random.default_rng([seed, 23, *name.encode()])
    return replace(
        case,
        rounds=[*case.rounds, [], case.rounds[0]] if g.random() < 0.5 else case.rounds,
        lr_decay=float(g.choice([1.0, 0.9, 0.5])),
        momentum=0.0 if PLAIN.get(name, 0) >= 1 else float(g.choice([0.0, 0.5, 0.9])),
        clip=None if PLAIN.get(name, 0) >= 2 else [None, 0.1, 1.0][g.integers(3)],
    )


@pytest.mark.parametrize("name", METHODS)
def test_random_options_agree(name):
    for seed in range(OPTIONS):
        case = with_options(name, seed)
        expected, fed = autograd.run(case), federation(case)
        everybody = torch.arange(len(case.x))
        for t in range(len(case.rounds)):
            fed.round()
            assert close(fed.w, expected.w[t]), f"seed {seed}, round {t + 1}: {case}"
        if expected.personal is not None:
            assert close(fed.personal(everybody), expected.personal), f"seed {seed}: personal models of {case}"
        state = {key: value for part in fed.parts for key, value in part.state().items()}
        for key in expected.state.keys() & state.keys():
            mine = state[key][everybody] if isinstance(state[key], ClientTable) else state[key]
            assert close(mine, expected.state[key]), f"seed {seed}: {key} of {case}"
