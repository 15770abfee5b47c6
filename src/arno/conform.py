"""Conformance: replay cases that specify what a method computes, with the same classes that `arno run` uses.

A case is an `.npz` file without pickles. It holds the data, the start, the participation and the order of batches, so
that nothing is random, and the expected trajectory in float64. The packaged cases are in `arno/conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .client_selection.schedule import Fixed
from .core.federation import Federation, Local
from .core.seeds import stream
from .core.table import ClientTable
from .core.work import SGD
from .data.archives import read_npz
from .data.dataset import Transform
from .data.partition import Partition
from .engines import engines
from .errors import ArnoError, unknown
from .limits import numbers, parse_json, shortened
from .methods import methods
from .methods.fedrcl import relaxed_contrastive
from .methods.lorenzo import Lorenzo
from .methods.qrmix import eigenpairs, hessian_product, mix
from .models.linear import MLP
from .problems.quadratic import Quadratic
from .problems.supervised import Supervised
from .tasks.classification import Classification, balanced

#: What a replay yields: pairs (computed, expected).
Pairs = Iterator[tuple[Any, Any]]

PACKAGED = Path(__file__).parent / "conformance"
#: The largest whole number in a specification. These numbers are sizes and counts of steps, and a case is tiny.
LARGEST = 256


@dataclass(frozen=True)
class Case:
    """A case's specification and arrays."""

    spec: dict[str, Any]
    arrays: dict[str, np.ndarray]
    backend: str

    def tensor(self, name: str) -> Tensor:
        """An array as a tensor."""
        return torch.from_numpy(self.arrays[name])


@dataclass(frozen=True)
class Outcome:
    """One line of the report."""

    name: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; a NaN is not."""
        return self.error <= self.tolerance


def replay(path: Path, backend: str = "serial") -> Outcome:
    """Run one case; the error is the largest absolute difference to any expected number."""
    case = read(path, backend)
    kind, remedy = case.spec["kind"], "see the format of a case in docs/conformance.md"
    if kind not in KINDS:
        raise unknown("kind of case", kind, KINDS)
    if (large := max(_whole(case.spec), default=0)) > LARGEST:
        rule = f"its spec has the number {large:,}, and numbers must be at most {LARGEST}"
        raise ArnoError(f"{path}", rule, "give a small case")
    try:
        errors = [_difference(mine, expected) for mine, expected in KINDS[kind](case)]
        largest = max(errors, key=lambda e: (np.isnan(e), e))
    except ArnoError:
        raise
    except KeyError as error:
        raise ArnoError(f"{path.name}", f"{error} is missing", remedy) from error
    except Exception as error:  # arrays that contradict the settings can cause any exception
        rule = f"cannot be replayed ({type(error).__name__}: {shortened(' '.join(str(error).split()))})"
        raise ArnoError(f"{path.name}", rule, remedy) from error
    return Outcome(case.spec["name"], largest, float(case.spec["tol"]))


def read(path: Path, backend: str) -> Case:
    """Read and check a case; nothing in it is executed."""
    try:
        arrays = read_npz(path)
        spec = parse_json(str(arrays.pop("spec")), "its spec")
    except (ArnoError, KeyError) as error:
        raise ArnoError(f"{path}", f"is not a conformance case ({error})", "give .npz files with a 'spec'") from error
    if reason := _wrong(spec):
        raise ArnoError(f"{path}", f"is not a conformance case: its spec {reason}", "give a case of version 1")
    return Case(numbers(spec, f"{path}"), arrays, backend)


def _wrong(spec: Any) -> str:
    """Why this is not the specification of a case; empty if it is one."""
    kinds = {"version": int, "name": str, "kind": str, "tol": int | float, "method": dict}
    if not isinstance(spec, dict):
        return "holds no names"
    if missing := sorted(kinds.keys() - spec.keys()):
        return f"lacks {', '.join(missing)}"
    if spec["version"] != 1:
        return f"has version {shortened(spec['version'])}, not 1"
    if odd := [name for name, kind in kinds.items() if not isinstance(spec[name], kind)]:
        return f"has a wrong {odd[0]}"
    return ""


def _whole(value: Any) -> Iterator[int]:
    """Every whole number in a specification."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _whole(item)
    elif isinstance(value, int):
        yield abs(value)


def federated(case: Case) -> Pairs:
    """Rounds of a method on a tiny classification problem."""
    fed, _ = _federation(case)
    steps = case.arrays.get("server_step")
    for t, expected in enumerate(case.arrays["w"]):
        record = fed.round()
        yield fed.w, expected
        if steps is not None and "server_step" in record.numbers:  # an empty round takes no step
            yield record.numbers["server_step"], steps[t]
    fed.engine.close()
    state = {name: value for part in fed.parts for name, value in part.state().items()}
    for name in ("c", "ck", "y", "m", "h", "g"):
        if name in case.arrays:
            mine = state[name]
            yield mine[torch.arange(mine.n)] if isinstance(mine, ClientTable) else mine, case.arrays[name]


def personal(case: Case) -> Pairs:
    """Rounds of a method with personal models: the global model, every client's model at the end and its test loss."""
    fed, problem = _federation(case)
    for expected in case.arrays["w"]:
        fed.round()
        yield fed.w, expected
    models = fed.personal(torch.arange(case.spec["clients"]))
    fed.engine.close()
    yield models, case.arrays["personal"]
    losses = []
    for k, w in enumerate(models):
        outputs = problem.model(w)(case.tensor(f"test_x_{k}"))
        losses.append(float(problem.task.loss(outputs, case.tensor(f"test_y_{k}").long()).detach()))
    yield losses, case.arrays["test_loss"]
    state = {key: value for part in fed.parts for key, value in part.state().items()}
    for key, mine in (("v", "v"), ("alpha", "a"), ("weights", "weights")):
        if key in case.arrays:
            value = state[mine]
            yield value[torch.arange(value.n)] if isinstance(value, ClientTable) else value, case.arrays[key]


def lorenzo(case: Case) -> Pairs:
    """Bootstrap, sequential rounds, early stopping and the final test of Lorenzo."""
    method = dict(case.spec["method"])
    name, rounds = method.pop("name"), method.pop("rounds")
    val, test = ((case.tensor(f"{split}_x"), case.tensor(f"{split}_y").long()) for split in ("val", "test"))
    problem = _classification(case, val=val, balanced=val, test=test)
    part: Lorenzo = methods.get(name)(**method, min_batches=0)[0]
    engine = engines.get(case.backend)(problem)
    fed = Federation(problem, [part], engine=engine, local=_local(case.spec), w=case.tensor("w0"), rounds=rounds)
    w, f1, order, scores = [], [], [], []
    while fed.t < rounds and not part.stop():
        record = fed.round()
        w.append(fed.w)
        f1.append(part.s_g)
        if fed.t > 0:
            order.append(record.clients["client"])
            scores.append(part.S.tolist())
    yield fed.t, case.arrays["stopped_after"]
    yield torch.stack(w), case.arrays["w"]
    yield f1, case.arrays["f1"]
    yield order, case.arrays["order"]
    yield scores, case.arrays["scores"]
    yield part.best, case.arrays["w_best"]
    yield list(part.final(fed.w).values()), case.arrays["test_f1"]
    engine.close()


def balance(case: Case) -> Pairs:
    """The balanced validation set: how many samples of each class it has, and how many different samples."""
    labels, classes = case.tensor("labels"), case.spec["dims"]["classes"]
    chosen = torch.as_tensor(balanced(labels, classes, seed=0))
    yield torch.bincount(labels[chosen], minlength=classes), case.arrays["counts"]
    yield torch.bincount(labels[chosen.unique()], minlength=classes), case.arrays["kept_distinct"]


def quadratic(case: Case) -> Pairs:
    """Rounds of FedAvg with a plain mean on given quadratics: the model, the gap and the distance to w*."""
    spec = case.spec
    problem = Quadratic(case.tensor("h"), case.tensor("e"), case.tensor("p"), case.tensor("w0"))
    yield problem.star, case.arrays["w_star"]
    fed = Federation(
        problem,
        [Fixed(spec["participation"])],
        engine=engines.get(case.backend)(problem),
        local=Local(epochs=spec["method"]["local_steps"], lr=spec["method"]["lr"]),
        weighting="uniform",
    )
    for w, gap, distance in zip(*(case.arrays[name] for name in ("w", "gap", "distance")), strict=True):
        fed.round()
        scores = fed.engine.report(fed.w)
        yield fed.w, w
        yield (scores["gap"], scores["distance"]), (gap, distance)
    fed.engine.close()


def rcl_loss(case: Case) -> Pairs:
    """FedRCL's term and its gradients on given features."""
    levels = [case.tensor(f"feat_{i}").requires_grad_() for i in range(_count(case, "feat_"))]
    settings = {name: value for name, value in case.spec["method"].items() if name != "name"}
    loss = relaxed_contrastive(levels, case.tensor("labels"), **settings)
    loss.backward()
    yield loss.detach(), case.arrays["loss"]
    for i, features in enumerate(levels):
        yield features.grad, case.arrays[f"grad_{i}"]


def qrmix_client(case: Case) -> Pairs:
    """QR-Mix's eigenpairs of the last layer on given features."""
    f, w, c, method = case.tensor("features"), case.tensor("w"), case.spec["dims"]["classes"], case.spec["method"]
    p = (f @ w[c:].view(c, -1).T + w[:c]).softmax(1)
    evals, evecs = eigenpairs(
        lambda v: hessian_product(f, p, v, block=16),
        len(w),
        method["rank_k"],
        method["oversampling"],
        method["power_iters"],
        stream(0, "conform"),
        like=f,
    )
    yield evals, case.arrays["evals"]
    yield evecs @ evecs.T, case.arrays["projector"]


def qrmix_server(case: Case) -> Pairs:
    """QR-Mix's step on the last layer from given eigenpairs and deltas."""
    clients = range(case.spec["clients"])
    settings = {name: value for name, value in case.spec["method"].items() if name != "name"}
    mixed = mix(
        [(case.tensor(f"evals_{i}"), case.tensor(f"evecs_{i}")) for i in clients],
        torch.stack([case.tensor(f"delta_{i}") for i in clients]),
        torch.full((len(clients),), 1 / len(clients), dtype=torch.float64),
        **settings,
    )
    yield mixed.update, case.arrays["update"]


KINDS: dict[str, Callable[[Case], Pairs]] = {
    "federated": federated,
    "personal": personal,
    "lorenzo": lorenzo,
    "balance": balance,
    "quadratic": quadratic,
    "rcl_loss": rcl_loss,
    "qrmix_client": qrmix_client,
    "qrmix_server": qrmix_server,
}


def implemented(path: Path) -> bool:
    """Whether this version can replay the case."""
    spec = read(path, "serial").spec
    return spec["kind"] in KINDS and (spec["kind"] != "federated" or spec["method"].get("name") in methods.names())


def _federation(case: Case) -> tuple[Federation, Supervised]:
    """The federation of a case, and its problem."""
    spec, method = case.spec, dict(case.spec["method"])
    name, weighting, server_lr = method.pop("name"), method.pop("weighting"), method.pop("server_lr")
    problem = _classification(case)
    fed = Federation(
        problem,
        [Fixed(spec["participation"]), *methods.get(name)(**method)],
        engine=engines.get(case.backend)(problem),
        local=_local(spec),
        weighting=weighting,
        server_lr=server_lr,
        w=case.tensor("w0"),
    )
    return fed, problem


def _classification(case: Case, **splits: tuple[Tensor, Tensor]) -> Supervised:
    spec, dims = case.spec, case.spec["dims"]
    xs = [case.tensor(f"x_{k}") for k in range(spec["clients"])]
    ys = [case.tensor(f"y_{k}").long() for k in range(spec["clients"])]
    sizes = torch.tensor([0, *(len(y) for y in ys)])
    hidden = (dims["hidden"],) if spec["model"] == "mlp" else ()
    return Supervised(
        torch.cat(xs),
        torch.cat(ys),
        Partition(torch.arange(int(sizes.sum())), sizes.cumsum(0)),
        lambda: _network(spec["model"], dims, hidden),
        transform=Transform((0.0,), (1.0,), 1.0),
        splits=splits,
        task=Classification(dims["classes"]),
        dtype=torch.float64,
    )


def _network(model: str, dims: dict[str, int], hidden: tuple[int, ...]) -> nn.Module:
    """The network of a case."""
    if model != "mlp_bn":
        return MLP(dims["features"], hidden, dims["classes"], "tanh")
    first, last = nn.Linear(dims["features"], dims["hidden"]), nn.Linear(dims["hidden"], dims["classes"])
    return nn.Sequential(first, nn.BatchNorm1d(dims["hidden"]), nn.Tanh(), last)


def _local(spec: dict[str, Any]) -> Local:
    sgd = SGD(weight_decay=spec["weight_decay"], shuffle=False)
    return Local(epochs=spec["epochs"], batch_size=spec["batch_size"], lr=spec["lr"], sgd=sgd)


def _count(case: Case, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in case.arrays)


def _difference(mine: Any, expected: Any) -> float:
    a, b = np.asarray(mine, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max()) if a.size else 0.0
