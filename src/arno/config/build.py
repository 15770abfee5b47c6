"""Builds the objects that a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from .. import machine
from ..core.engine import Engine
from ..core.federation import Federation, Local
from ..core.method_part import Part
from ..core.problem import Problem
from ..core.resources import Need, refuse
from ..core.seeds import seeded
from ..core.work import SGD
from ..data.dataset import Dataset, load, shortened, split_in_time, split_inside, split_validation
from ..data.partition import Partition, as_partition
from ..data.partition.partition import by_owner
from ..data.shift import shifted
from ..errors import ArnoError
from ..models.network import Shape
from ..models.python import starts_from_weights
from ..problems.client_tests import keep_some, without_any
from ..problems.quadratic import Quadratic
from ..problems.supervised import Supervised
from ..quadratic import draw
from ..registry import Registry
from ..tasks.task import PADDING, Task
from .check_factories import make, refuse_signature, refuse_undeclared, said_of, tried, try_out
from .settings import COMMON, registry

problems = Registry("problem", "arno.config.build")


def federation(config: dict[str, Any], parts: Sequence[Part] | None = None, on: Problem | None = None) -> Federation:
    """Build problem, engine, selection and method.

    parts: parts that replace the configured method.
    on: an existing problem; its clients then train in this process.
    """
    problem = on or make("problem", config["problem"], Problem, config)  # type: ignore[type-abstract]
    selection = make("select", config["select"], Part, config["participation"])
    engine = None if on else make("engine", config["engine"], Engine, problem)  # type: ignore[type-abstract]
    local = config["local"]
    chosen = method(config) if parts is None else list(parts)
    return Federation(
        problem,
        [selection, *chosen, *fine_tuning(config, problem, chosen)],
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
        on_client_error=config["on_client_error"],
        seed=config["seed"],
        rounds=config["rounds"],
        state=place(config),
    )


@problems.register("supervised")
def supervised(config: dict[str, Any]) -> Supervised:
    """The data, their partition, the task and the network."""
    dataset, train, held_out, partition = split(config)
    if config["local"]["augment"] and len(dataset.shape) != 3:
        raise ArnoError("local.augment = true", f"samples of shape {dataset.shape} are no images", "set it to false")
    rows, partition = partition.lined_up(train)
    own = keep_own(config, dataset, partition)
    some = len(held_out) or rows is not train
    y = dataset.y.index_select(0, rows) if some else dataset.y
    trained = y if own.train is partition else y[own.train.indices.long()]
    task = make("task", config["task"], Task, trained, dataset.classes)  # type: ignore[type-abstract]
    refuse_undeclared(task, config["task"])
    model, fingerprint = dict(config["model"]), dataset.fingerprint()
    channels_last, bfloat16 = model.pop("channels_last"), model.pop("bfloat16")
    dataset = readable(dataset, model, task)
    x, shape = dataset.x.index_select(0, rows) if some else dataset.x, shape_of(dataset, task)
    splits = {"test": (dataset.x_test, dataset.y_test)} if config["eval"]["test"] else {}
    if len(held_out):
        splits["val"] = (dataset.x[held_out], dataset.y[held_out])
    if own.val is not None:
        splits["val"] = (x[own.val.indices], y[own.val.indices])
    own_code = bool({"custom", "python"} & {config["model"]["kind"], config["task"]["kind"]})
    problem = Supervised(
        x,
        y,
        own.train,
        lambda: make("model", model, nn.Module, shape, task.outputs),
        task=task,
        transform=dataset.transform(),
        splits=splits,
        own_test=own.test,
        own_split=own.split,
        name=f"{dataset.name} by {config['partition']['kind']}, {config['model']['kind']}",
        fingerprint=fingerprint,
        channels_last=channels_last,
        bfloat16=bfloat16,
        device=device(config["device"]),
        dtype=getattr(torch, config["dtype"]),
        seed=split_seed(config),
        trial=config["engine"].get("timeout") if own_code else None,  # engines with workers have a time limit
    )
    problem.client_names, problem.class_names = partition.names, dataset.classes
    problem.notes = (*dataset.notes, *own.notes, *start_note(config["model"]))
    problem.validation, problem.references = chooses(splits, own.val), dataset.references
    if own_code:
        try_out(problem)
        problem.notes = (*problem.notes, *said_of(problem))
    return problem


def readable(dataset: Dataset, model: Mapping[str, Any], task: Task) -> Dataset:
    """The data set in the form that the network reads: tokens, categories or numbers."""
    kind = model["kind"]
    reads = registry("model").info(kind).get("reads")
    if reads == "categories":
        return dataset.as_codes()
    if reads == "tokens":
        return dataset.as_tokens()
    if kind not in ("custom", "python") and dataset.x.dtype == torch.int64:
        rule = "the samples are sequences of tokens, and this network reads numbers"
        raise ArnoError(f"model={kind} on {dataset.name}", rule, "use model=lstm or model=transformer")
    if kind in ("custom", "python") and dataset.x.is_floating_point() and dataset.whole:
        return numbers_or_tokens(dataset, model, task)
    return dataset


def numbers_or_tokens(dataset: Dataset, model: Mapping[str, Any], task: Task) -> Dataset:
    """A data set of whole numbers; as tokens if the user's own network accepts tokens but not standardised numbers."""
    with seeded(0):
        for one in (dataset, dataset.as_tokens()):
            try:
                module = make("model", model, nn.Module, shape_of(one, task), task.outputs)
            except Exception:  # a network for tokens cannot be made without a vocabulary
                continue
            if not isinstance(tried(module, one.transform().normalise(one.x[:4])), Exception):
                note = "samples are whole numbers; the network reads them as tokens, and they are not standardised"
                return one if one is dataset else replace(one, notes=(*one.notes, note))
    return dataset


def shape_of(dataset: Dataset, task: Task) -> Shape:
    """The shape of a sample, and the meaning of its values."""
    padding = dataset.tokens.index(PADDING) if PADDING in dataset.tokens else None
    coded = dataset.categories if len(dataset.categories) == dataset.x.shape[-1] else ()
    vocabulary = max(dataset.vocabulary, task.outputs if task.positions else 0) if dataset.vocabulary else 0
    return Shape(dataset.shape, vocabulary=vocabulary, padding=padding, positions=task.positions, categories=coded)


class Own(NamedTuple):
    """The samples of the clients for training, validation and test; see `Supervised`."""

    train: Partition
    val: Partition | None
    test: Partition | None
    split: str
    notes: list[str]


def keep_own(config: dict[str, Any], dataset: Dataset, partition: Partition) -> Own:
    """Separate the clients' own test and validation samples (`data.client_test`, `data.client_val`) from a partition.

    If the data name the clients of the test samples, each client is scored on its test samples. With `eval.test=false`,
    clients are scored on their own validation samples.
    """
    seed, test, val, split = split_seed(config), None, None, ""
    notes: list[str] = []
    if (share := config["data"].get("client_test")) is not None:
        partition, test = keep_some(partition, share, seed, gap=dataset.gap)
        notes += without_any(test, "data.client_test")
    elif named_tests(dataset, partition) and config["eval"]["test"]:
        assert dataset.client_test is not None
        rows = (dataset.client_test >= 0).nonzero()[:, 0]
        test = by_owner(dataset.client_test[rows].numpy(), len(partition), partition.names).within(rows)
        split = "test"
        notes += without_any(test, "")
    if (share := config["data"].get("client_val")) is not None:
        partition, val = keep_some(partition, share, seed, "client_val", dataset.gap)
        notes += without_any(val, "data.client_val")
    return Own(partition, val, test if config["eval"]["test"] else val, split, notes)


def named_tests(dataset: Dataset, partition: Partition) -> bool:
    """Whether some test samples belong to the clients of a partition."""
    known = dataset.client_test is not None and bool((dataset.client_test >= 0).any())
    return known and partition.names == dataset.clients


def start_note(model: Mapping[str, Any]) -> list[str]:
    """A line that says that the initial model has the user's own weights; no line for other networks."""
    if model["kind"] != "python" or not starts_from_weights(model["network"]):
        return []
    return [f"model: the weights of {model['network']} are the initial model for every seed"]


def chooses(splits: Mapping[str, tuple[torch.Tensor, torch.Tensor]], own: Partition | None) -> str:
    """A sentence that says which samples choose the best model."""
    if "val" not in splits:
        return "validation: no samples (data.val=0); the best model is the last one"
    held = f"{len(splits['val'][1]):,} samples"
    if own is None:
        return f"validation: {held} that the server holds (data.val) choose the best model"
    keeping = int((own.sizes > 0).sum())
    return f"validation: {held} that {keeping:,} clients keep (data.client_val), taken together, choose the best model"


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
    size = 8 * (4 * dim + 4 + 6 * spd * dim**2)  # e, h, p, the optima and intermediate results
    needs = [Need(f"{config['clients']:,} quadratics of dimension {dim:,}", size * config["clients"])]
    refuse(needs, *machine.of_a_process(), "use fewer clients or a smaller problem.dim")
    instance = draw(config["clients"], dim, alpha, spd, config["seed"] if seed is None else seed)
    return Quadratic.of(instance, device(config["device"]), getattr(torch, config["dtype"]))


@problems.register("pair", defaults={"weighting": "uniform", "dtype": "float64", "clients": 2})
def pair(config: dict[str, Any], *, gradient: float = 1.0, curvature: float = 1.0, flat: float = 1e-6) -> Quadratic:
    """Two quadratics with opposite slopes: F_1(w) = ½βw² + Gw and F_2(w) = ½εw² − Gw; the start is w = 1.

    The lower bound of SCAFFOLD (Karimireddy et al., ICML 2020, theorem II) and its figure 3. There ε is 0; here it is
    small and positive, because every client of a quadratic problem has a minimum.

    gradient: G, how much the clients' gradients differ at the optimum.
    curvature: β, the curvature of the first client; the Hessians differ by about as much.
    flat: ε, the curvature of the second client.
    """
    if config["clients"] != 2:
        raise ArnoError(f"clients = {config['clients']} with problem=pair", "it has two clients", "leave out clients=")
    if not (curvature > 0 and flat > 0):
        rule = "both curvatures must be positive, otherwise a client has no minimum"
        raise ArnoError(f"problem.curvature = {curvature:g}, problem.flat = {flat:g}", rule, "use positive curvatures")
    numbers = {"device": device(config["device"]), "dtype": getattr(torch, config["dtype"])}
    h, e = torch.tensor([curvature, flat], **numbers), torch.tensor([[-gradient], [gradient]], **numbers)
    return Quadratic(h, e, start=torch.ones(1, **numbers))


def split(config: dict[str, Any]) -> tuple[Dataset, torch.Tensor, torch.Tensor, Partition]:
    """The data set, its training and validation indices, and the partition of the training part."""
    chosen = dict(config["data"])
    val, client_val, *_ = (chosen.pop(name, None) for name in COMMON["data"])
    if client_val is not None and val:
        rule = "the first sets the samples of the server, the second those that every client keeps"
        raise ArnoError(f"data.val = {val:g} with data.client_val = {client_val:g}", rule, "leave one of them out")
    if chosen.get("numbers", True) is None and config["task"]["kind"] in ("classification", "binary", "regression"):
        chosen["numbers"] = config["task"]["kind"] == "regression"
    refuse_signature("data", {key: value for key, value in chosen.items() if key != "limit"})
    seed, clients = split_seed(config), config["clients"]
    given = {key: value for key, value in config["partition"].items() if key != "seed"}
    dataset = load(chosen, seed)
    strata, owner = dataset.strata(), None
    share = 0.0 if client_val is not None else dataset.val if val is None else val
    if dataset.client is not None and given["kind"] != "natural":
        unused = f"the {len(dataset.clients):,} clients of the data are not used (partition={given['kind']})"
        dataset = replace(dataset, notes=(*dataset.notes, f"{unused}; partition=natural uses them"))
    if registry("partition").info(given["kind"]).get("of") and not given.get("after_validation"):
        partition = whole(dataset, given, clients, seed)
        owner = partition.owners(len(dataset.y))
        train, held_out = validation(dataset, strata, share, seed, owner)
        partition = partition.among(train)
    else:
        train, held_out = validation(dataset, strata, share, seed)
        made = make("partition", given, object, strata.index_select(0, train), clients, seed)
        partition = as_partition(made, given["kind"], len(train), clients)
    return change_inputs(config, dataset, train, partition, owner), train, held_out, partition


def validation(
    dataset: Dataset, strata: torch.Tensor, share: float, seed: int, owner: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation indices. owner: the client of each sample, for a split inside each client.

    If the data are in the order of time, the last samples are held out.
    """
    if dataset.gap is not None:
        named = torch.zeros_like(strata) if dataset.client is None else dataset.client
        return split_in_time(named if owner is None else owner, share, dataset.gap)
    return split_validation(strata, share, seed) if owner is None else split_inside(owner, strata, share, seed)


def change_inputs(
    config: Mapping[str, Any], dataset: Dataset, train: torch.Tensor, partition: Partition, owner: torch.Tensor | None
) -> Dataset:
    """The data set after `data.shift`. owner: the client of each sample; None if validation samples have no client."""
    kind, strength = config["data"].get("shift"), config["data"].get("shift_strength")
    if kind is None and strength is not None:
        raise ArnoError(f"data.shift_strength = {strength:g}", "there is no shift", "add data.shift=rotation")
    if kind is None:
        return dataset
    if partition.shares():
        rule = "clients share samples, and a sample is changed for its client"
        raise ArnoError(f"data.shift = {kind}", rule, f"use another partition than {config['partition']['kind']}")
    if owner is None:
        owner = torch.full((len(dataset.y),), -1)
        owner[train] = partition.owners(len(train))
    return shifted(dataset, kind, strength, owner, len(partition), split_seed(config))


def split_seed(config: Mapping[str, Any]) -> int:
    """The seed of all draws that decide which client holds which samples: `partition.seed`, or the run's seed."""
    own: int | None = config["partition"].get("seed")
    return int(config["seed"]) if own is None else own


def whole(dataset: Dataset, given: Mapping[str, Any], clients: int | None, seed: int) -> Partition:
    """The partition of all training samples, before the validation split, by the clients of the data or of a file.

    A file names the samples by their positions in the given data. Samples that are test data or were left out belong to
    no client.
    """
    if registry("partition").info(given["kind"])["of"] == "clients":
        if dataset.client is None:
            remedy = "use partition=dirichlet, or name the column of a table: data=table data.client=hospital"
            raise ArnoError("partition=natural", f"{dataset.name} does not name the client of each sample", remedy)
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
    """The parts of the method."""
    parts = make("method", config["method"], object)
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Part) for part in parts):
        raise ArnoError(
            f"method={config['method']['kind']} returned {parts!r}", "a method is a list of parts", "return [MyPart(…)]"
        )
    return list(parts)


def fine_tuning(config: dict[str, Any], problem: Problem, parts: Sequence[Part]) -> list[Part]:
    """The part that fine-tunes the global model for the clients' own test samples, if `eval.finetune` asks for it."""
    epochs = config["eval"]["finetune"]
    if not epochs:
        return []
    if epochs < 0:
        raise ArnoError(f"eval.finetune = {epochs}", "it is a number of epochs", "try eval.finetune=5")
    if not problem.tests_clients:
        rule = "fine-tuned models are scored on samples that every client keeps, and there are none"
        raise ArnoError(f"eval.finetune = {epochs}", rule, "add data.client_test=0.2")
    if any("personal" in part.roles for part in parts):
        rule = "the method already has personal models, which are scored"
        raise ArnoError(f"eval.finetune = {epochs} with method={config['method']['kind']}", rule, "leave it out")
    from ..methods.finetune import FineTune

    return [FineTune(epochs)]


def place(config: dict[str, Any]) -> Path | Literal["workers"] | None:
    """Where client tables are stored: in memory (None), in a folder, or in the workers."""
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
    """The device called `name`; `auto` chooses CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(name)
        float(torch.zeros(1, device=chosen))  # fails on the device meta, which has no values
    except (RuntimeError, AssertionError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ArnoError(f"device = {name}", f"torch cannot use it ({why})", "try device=cpu") from error
    return chosen
