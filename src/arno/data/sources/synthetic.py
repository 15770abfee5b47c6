"""Data sets that papers generate: Synthetic(α, β) of FedProx and the linear regression of FedExP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from ...core.seeds import numpy_stream
from ...errors import ArnoError
from ...limits import room
from ..dataset import Dataset, datasets, held_inside
from ..images import Array


def _always(settings: Mapping[str, Any]) -> bool:
    return True


@datasets.register("synthetic", names_clients=_always)
def synthetic(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    spread: Literal["deviation", "variance"] = "deviation",
    iid: bool = False,
    clients: int = 30,
    features: int = 60,
    classes: int = 10,
    test: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Synthetic(α, β) of FedProx (Li et al., MLSys 2020): every client has a linear model and inputs of its own.

    u_k ~ N(0, α), W_k and b_k ~ N(u_k, 1); B_k ~ N(0, β), v_k ~ N(B_k, 1), x ~ N(v_k, Σ) with Σ_jj = j^(−1.2);
    y = argmax(W_kᵀx + b_k). Client k has 50 + ⌊e^z⌋ samples, z ~ N(4, 2²).

    α changes no label: u_k is one number for all classes and adds the same to the score of each. The models of the
    clients differ because W_k and b_k are drawn for every client; only `iid` makes them equal.

    Args:
        alpha: the spread of u_k, as in the paper; it does not change the labels.
        beta: how much the inputs of the clients differ.
        spread: what α and β are. deviation: standard deviations, as in the published generator, so that figures can be
            compared; variance: variances, as the paper writes them. For 0 and 1 both are the same.
        iid: all clients have the same model, with W, b ~ N(0, 1), and inputs with the mean B_k in every feature.
        clients: how many there are.
        features: inputs of a sample.
        classes: how many there are.
        test: the share of each client's samples for testing.
        seed: of the data; the same for every run.
    """
    _refuse(alpha=alpha, beta=beta)
    _refuse_counts(clients=clients, features=features, classes=classes)
    random = numpy_stream(seed, "synthetic")
    deviation = np.sqrt([alpha, beta]) if spread == "variance" else np.array([alpha, beta])
    sizes = 50 + random.lognormal(4, 2, clients).astype(np.int64)
    room(4 * int(sizes.sum()) * features, "data=synthetic")
    u, center = (random.normal(0, scale, clients) for scale in deviation)
    common = random.normal(0, 1, (features + 1, classes))
    noise = np.arange(1, features + 1) ** -0.6  # the root of Σ_jj
    x, y = np.empty((sizes.sum(), features), dtype=np.float32), np.empty(sizes.sum(), dtype=np.int64)
    for k, (first, last) in enumerate(_spans(sizes)):
        model = common if iid else random.normal(u[k], 1, (features + 1, classes))
        mean = np.full(features, center[k]) if iid else random.normal(center[k], 1, features)
        inputs = mean + noise * random.normal(size=(last - first, features))
        x[first:last], y[first:last] = inputs, (inputs @ model[:-1] + model[-1]).argmax(1)
    name = f"synthetic({'iid' if iid else f'{alpha:g},{beta:g}'})"
    return _named(name, x, y, sizes, test, tuple(map(str, range(classes))))


@datasets.register("linear", names_clients=_always)
def linear(
    *,
    alpha: float = 0.1,
    beta: float = 0.1,
    clients: int = 20,
    samples: int = 30,
    features: int = 1000,
    test: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """The linear regression of FedExP (Jhunjhunwala et al., ICLR 2023): more unknowns than samples, no noise.

    u_k ~ N(0, α²), w_k ~ N(u_k, 1); B_k ~ N(0, β²), v_k ~ N(B_k, 1), rows a ~ N(v_k, I), b = w_kᵀa. Then each row is
    divided by its norm, and the targets of each client by the norm of these targets. Without noise and with more
    features than samples of all clients together, one model solves the problems of all clients. α and β are deviations,
    as in the published notebook.

    Args:
        alpha: how much the models of the clients differ.
        beta: how much the inputs of the clients differ.
        clients: how many there are.
        samples: samples per client.
        features: inputs of a sample.
        test: the share of each client's samples for testing; with 0 the training samples are the test samples, as in
            the paper, which shows the training loss.
        seed: of the data; the same for every run.
    """
    _refuse(alpha=alpha, beta=beta)
    _refuse_counts(clients=clients, samples=samples, features=features)
    room(4 * clients * samples * features, "data=linear")
    random = numpy_stream(seed, "linear")
    u, center = random.normal(0, alpha, clients), random.normal(0, beta, clients)
    x, y = np.empty((clients * samples, features), dtype=np.float32), np.empty(clients * samples, dtype=np.float32)
    sizes = np.full(clients, samples)
    for k, (first, last) in enumerate(_spans(sizes)):
        model, mean = random.normal(u[k], 1, features), random.normal(center[k], 1, features)
        rows = mean + random.normal(size=(samples, features))
        targets = rows @ model
        x[first:last] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        y[first:last] = targets / np.linalg.norm(targets)
    return _named(f"linear({alpha:g},{beta:g})", x, y, sizes, test, ())


def _spans(sizes: Array) -> list[tuple[int, int]]:
    """For each client, its first sample and the sample after its last one."""
    ends = np.cumsum(sizes)
    return list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))


def _named(name: str, x: Array, y: Array, sizes: Array, test: float, classes: tuple[str, ...]) -> Dataset:
    """The data set whose clients have these sizes; test samples are taken inside each client."""
    if not 0 <= test < 1:
        raise ArnoError(f"data.test = {test}", "it must be a share from 0 to below 1", "try data.test=0.1")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    held = np.zeros(len(y), dtype=bool)
    if test:
        held = held_inside(owner, np.zeros(len(y)), max(1, round(test * len(y))), numpy_stream(0, "test"))
    tested = held if test else np.ones(len(y), dtype=bool)
    said = f"{len(sizes)} clients with {sizes.min():,} to {sizes.max():,} samples" + ", test samples included" * (
        test > 0
    )
    return Dataset(
        name,
        torch.from_numpy(x[~held]),
        torch.from_numpy(y[~held]),
        torch.from_numpy(x[tested]),
        torch.from_numpy(y[tested]),
        classes,
        scale=1.0,
        val=0.1 if test else 0.0,
        client=torch.from_numpy(owner[~held]),
        client_test=torch.from_numpy(owner[tested]),
        clients=tuple(map(str, range(len(sizes)))),
        rows=torch.from_numpy(np.flatnonzero(~held)),
        given=len(y),
        notes=(f"{name}: {said}",),
    )


def _refuse(**given: float) -> None:
    for name, value in given.items():
        if not 0 <= value < 1e6:
            raise ArnoError(f"data.{name} = {value:g}", "it must not be negative", f"try data.{name}=1")


def _refuse_counts(**given: int) -> None:
    least = {"classes": 2, "samples": 2}
    for name, value in given.items():
        if value < least.get(name, 1):
            raise ArnoError(f"data.{name} = {value}", f"at least {least.get(name, 1)} are needed", "use more")
