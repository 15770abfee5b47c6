"""Build the objects that a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..core.contracts import Engine, Problem
from ..core.federation import Federation, Local
from ..core.part import Part
from ..core.work import SGD
from ..data.dataset import Dataset, load, shortened, split_inside, split_validation
from ..data.partition import Partition, as_partition
from ..errors import ArnoError
from ..problems.client_tests import keep_some
from ..problems.quadratic import Quadratic
from ..problems.supervised import Supervised
from ..quadratic import draw
from ..registry import Registry
from ..tasks.task import Task
from .custom import make, refuse_signature, refuse_undeclared, try_out
from .settings import registry

problems = Registry("problem", "arno.config.build")


def federation(config: dict[str, Any], parts: Sequence[Part] | None = None) -> Federation:
    """Build problem, engine, selection and method; `parts` replace the configured method."""
    problem = make("problem", config["problem"], Problem, config)  # type: ignore[type-abstract]
    selection = make("select", config["select"], Part, config["participation"])
    engine = make("engine", config["engine"], Engine, problem)  # type: ignore[type-abstract]
    local = config["local"]
    return Federation(
        problem,
        [selection, *(method(config) if parts is None else parts)],
        engine=engine,
        local=Local(
            epochs=local["epochs"],
            batch_size=local["batch_size"],
            lr=local["lr"],
            lr_decay=local["lr_decay"],
            sgd=SGD(local["momentum"], local["weight_decay"], local["clip"], local["shuffle"], local["augment"]),
        ),
        weighting=config["weighting"],
        server_lr=config["server_lr"],
        on_divergence=config["on_divergence"],
        seed=config["seed"],
        rounds=config["rounds"],
        state=place(config),
    )


@problems.register("supervised")
def supervised(config: dict[str, Any]) -> Supervised:
    """The data, who holds which of them, the task and the network."""
    dataset, train, held_out, partition = split(config)
    if config["local"]["augment"] and len(dataset.shape) != 3:
        raise ArnoError("local.augment = true", f"samples of shape {dataset.shape} are no images", "set it to false")
    rows, partition = partition.lined_up(train)
    own_test, share = None, config["data"].get("client_test")
    if share is not None:
        partition, own_test = keep_some(partition, share, config["seed"])
    x, y = dataset.x, dataset.y
    if len(held_out) or rows is not train:
        x, y = x.index_select(0, rows), y.index_select(0, rows)
    splits = {"test": (dataset.x_test, dataset.y_test)}
    if len(held_out):
        splits["val"] = (dataset.x[held_out], dataset.y[held_out])
    task = make("task", config["task"], Task, y, dataset.classes)  # type: ignore[type-abstract]
    refuse_undeclared(task, config["task"])
    model = dict(config["model"])
    channels_last, shape = model.pop("channels_last"), dataset.shape
    problem = Supervised(
        x,
        y,
        partition,
        lambda: make("model", model, nn.Module, shape, task.outputs),
        task=task,
        transform=dataset.transform(),
        splits=splits,
        own_test=own_test,
        name=f"{dataset.name} by {config['partition']['kind']}, {config['model']['kind']}",
        fingerprint=dataset.fingerprint(),
        channels_last=channels_last,
        device=device(config["device"]),
        dtype=getattr(torch, config["dtype"]),
        seed=config["seed"],
    )
    problem.client_names, problem.notes = partition.names, dataset.notes
    if "custom" in (config["model"]["kind"], config["task"]["kind"]):
        try_out(problem)
    return problem


@problems.register("quadratic", defaults={"weighting": "uniform", "dtype": "float64"})
def quadratic(
    config: dict[str, Any], *, dim: int = 5, alpha: float = 3.0, spd: bool = False, seed: int | None = None
) -> Quadratic:
    """Random quadratics: e_k ~ U(0,100)^dim, h_k ~ U(0,9), shares from a power law, start ~ 100·N(0,I).

    dim: dimension of the unknown.
    alpha: exponent of the power law of the shares p_k.
    spd: a full positive definite matrix H_k with eigenvalues ~ U(0,9) in place of h_k·I.
    seed: of the problem; the run's seed by default.
    """
    instance = draw(config["clients"], dim, alpha, spd, config["seed"] if seed is None else seed)
    return Quadratic.of(instance, device(config["device"]), getattr(torch, config["dtype"]))


def split(config: dict[str, Any]) -> tuple[Dataset, torch.Tensor, torch.Tensor, Partition]:
    """The data set, its training and validation indices, and the partition of the training part."""
    chosen = dict(config["data"])
    val = chosen.pop("val", None)
    chosen.pop("client_test", None)
    if chosen.get("numbers", True) is None and config["task"]["kind"] in ("classification", "regression"):
        chosen["numbers"] = config["task"]["kind"] == "regression"
    refuse_signature("data", chosen)
    dataset = load(chosen, config["seed"])
    strata, clients, seed, given = dataset.strata(), config["clients"], config["seed"], config["partition"]
    share = dataset.val if val is None else val
    if dataset.client is not None and given["kind"] != "natural":
        unused = f"the {len(dataset.clients):,} clients of the data are not used (partition={given['kind']})"
        dataset = replace(dataset, notes=(*dataset.notes, f"{unused}; partition=natural uses them"))
    if registry("partition").info(given["kind"]).get("of") and not given.get("after_validation"):
        partition = whole(dataset, given, clients, seed)
        train, held_out = split_inside(partition.owners(len(dataset.y)), strata, share, seed)
        return dataset, train, held_out, partition.among(train)
    train, held_out = split_validation(strata, share, seed)
    made = make("partition", given, object, strata.index_select(0, train), clients, seed)
    return dataset, train, held_out, as_partition(made, given["kind"], len(train), clients)


def whole(dataset: Dataset, given: Mapping[str, Any], clients: int | None, seed: int) -> Partition:
    """The partition of all training samples, before the validation split: the clients of the data, or those of a file.

    A file addresses the samples as they were given. Samples that are test data or were left out belong to no client.
    """
    if registry("partition").info(given["kind"])["of"] == "clients":
        if dataset.client is None:
            remedy = "use partition=dirichlet, or name the column of a table: data=table data.client=hospital"
            raise ArnoError("partition=natural", f"{dataset.name} does not say which sample is whose", remedy)
        if clients not in (None, len(dataset.clients)):
            rule = f"the data name {len(dataset.clients)} clients ({shortened(dataset.clients)})"
            raise ArnoError(f"clients = {clients}", rule, "leave out clients=, or use partition=dirichlet")
        return replace(make("partition", given, Partition, dataset.client, clients, seed), names=dataset.clients)
    samples = len(dataset.y) if dataset.given is None else dataset.given
    made = make("partition", given, Partition, torch.zeros(samples, dtype=torch.int64), clients, seed)
    if dataset.rows is None:
        return made
    partition = made.among(dataset.rows)
    if len(empty := (partition.sizes == 0).nonzero()):
        k = int(empty[0])
        rule = f"its {int(made.sizes[k])} samples are all test samples or were left out"
        raise ArnoError(f"client {k if made.names is None else made.names[k]}", rule, "give it more samples")
    return partition


def method(config: dict[str, Any]) -> list[Part]:
    """The method's parts."""
    parts = make("method", config["method"], object)
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Part) for part in parts):
        raise ArnoError(
            f"method={config['method']['kind']} returned {parts!r}", "a method is a list of parts", "return [MyPart(…)]"
        )
    return list(parts)


def place(config: dict[str, Any]) -> Path | Literal["workers"] | None:
    """Where client tables are stored: in memory (None), in a folder, in the workers."""
    if config["state"] == "workers":
        return "workers"
    return state_folder(config) if config["state"] == "disk" else None


def state_folder(config: dict[str, Any]) -> Path:
    """The parent of the run's folder, for client tables on disk."""
    folder = Path(config["out"]).parent if config["out"] else Path("runs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be written ({error.strerror})"
        raise ArnoError(f"out = {config['out']}", why, "choose another out=") from error
    return folder


def device(name: str) -> torch.device:
    """The device called `name`; `auto` takes the best there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(name)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ArnoError(f"device = {name}", f"torch cannot use it ({why})", "try device=cpu") from error
    return chosen
