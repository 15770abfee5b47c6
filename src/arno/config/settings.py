"""Configuration: typed defaults, overrides in the style of Hydra, and errors that name the nearest key.

This module does not import torch, because `arno --help` must answer at once. The groups (`method`, `data`, …) take
their settings from the signature of the factory that they name; see `registry.py`.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin
from zlib import crc32

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .. import limits
from ..errors import ArnoError, unknown
from ..registry import Registry
from . import meanings


def setting(default: Any, text: str) -> Any:
    """A field with a default and a line of help."""
    return field(default=default, metadata={"help": text})


def section(kind: type) -> Any:
    """A field that is a section with several settings."""
    return field(default_factory=kind)


@dataclass
class LocalConfig:
    """What a client does in a round; `epochs`, `batch_size` and `lr` may differ per client and per round."""

    epochs: Any = setting(1, "passes over the client's data (may differ per client and per round)")
    batch_size: Any = setting(32, "samples per step (may differ per client and per round)")
    lr: Any = setting(0.05, "learning rate (may differ per client and per round)")
    lr_decay: float = setting(1.0, "the learning rate is multiplied by this after every round")
    momentum: float = setting(0.0, "momentum of local SGD; reset at the start of every round")
    weight_decay: float = setting(0.0, "times the weights is added to every gradient")
    clip: float | None = setting(None, "largest norm of a gradient of the loss")
    shuffle: bool = setting(True, "a new order of the samples every epoch")
    augment: bool = setting(False, "random crop (padding 4) and flip of training images")


@dataclass
class EvalConfig:
    """When the global model is scored."""

    every: int = setting(1, "rounds between evaluations; the last round is always evaluated")
    test: bool = setting(True, "score the test data; the search of `arno tune` does not")
    clients: bool = setting(False, "also the accuracy under every client's label mix: mean, std, worst decile")
    finetune: int = setting(0, "epochs of local training from the global model before a client's own test; 0: none")


@dataclass
class CheckpointConfig:
    """When the run is saved."""

    every: int = setting(10, "rounds between checkpoints; 0: only at the end and on Ctrl-C")
    keep: int = setting(2, "how many of them to keep")


@dataclass
class Config:
    """A run. Settings of a group follow its name: `method=fedprox method.mu=0.1`."""

    method: Any = setting("fedavg", "what the server and the clients do; see `arno methods`")
    problem: Any = setting("supervised", "what is learned")
    data: Any = setting("digits", "the data set; see `arno data`")
    task: Any = setting("auto", "what the outputs of the network mean; auto: from the data")
    partition: Any = setting("dirichlet", "which client holds which samples; natural if the data name their clients")
    model: Any = setting("mlp", "the network")
    select: Any = setting("uniform", "which clients take part in a round")
    engine: Any = setting("auto", "where clients train")
    clients: int | None = setting(20, "N, the number of clients; if the data or a file name them, their number")
    participation: float = setting(1.0, "share of the clients that take part in a round")
    rounds: int = setting(50, "R, the number of rounds")
    weighting: Literal["samples", "uniform"] = setting("samples", "aggregation weights p_k: n_k / Σ n_i, or 1/m")
    server_lr: float = setting(1.0, "η_s, the server's learning rate")
    local: LocalConfig = section(LocalConfig)
    eval: EvalConfig = section(EvalConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    on_divergence: Literal["stop", "drop"] = setting("stop", "a client returns NaN: stop, or continue without it")
    on_client_error: Literal["stop", "retry", "drop"] = setting(
        "stop", "a client's training fails: stop, try it up to three times, or continue without it"
    )
    state: Literal["memory", "disk", "workers"] = setting("memory", "where tables with a row per client are stored")
    seed: int = setting(0, "seed of all random numbers")
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")
    dtype: Literal["float32", "float64"] = setting("float32", "number type of the model")
    load: str | None = setting(
        None, "start from the model of this run, checkpoint or .pth file and continue to count its rounds"
    )
    track: Any = setting(None, "trackers that follow the run: mlflow, tensorboard, wandb; mlflow@URI")
    out: str | None = setting(None, "the run's folder; default runs/<date>-<method>-<id>")


GROUPS = ("method", "problem", "data", "task", "partition", "model", "select", "engine")
#: Earlier names of the kinds of a group.
RENAMED = {("problem", "classification"): "supervised"}
#: Settings that every kind of a group has; the factories do not get them.
COMMON: dict[str, dict[str, tuple[Any, Any]]] = {
    "data": {"val": (float | None, None), "client_val": (float | None, None), "client_test": (float | None, None)}
    | {"shift": (Literal["rotation", "noise", "scale"] | None, None), "shift_strength": (float | None, None)},
    "partition": {"seed": (int | None, None)},
    "model": {"channels_last": (bool | None, None), "bfloat16": (bool, False)},
}
#: A run may be continued with other values of these settings, because they do not change what is computed.
#: `on_client_error` only concerns later rounds; the earlier rounds have recorded what they did.
FREE = (
    "rounds",
    "eval",
    "checkpoint",
    "track",
    "out",
    "state",
    "on_client_error",
    "engine.address",
    "engine.timeout",
    "engine.workers",
)


def registry(group: str) -> Registry:
    """The factories of a group."""
    from ..client_selection import selections
    from ..data import datasets, partitions
    from ..engines import engines
    from ..methods import methods
    from ..models import models
    from ..tasks import tasks
    from .build import problems

    registries = (methods, problems, datasets, tasks, partitions, models, selections, engines)
    return dict(zip(GROUPS, registries, strict=True))[group]


def compose(overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None) -> DictConfig:
    """The resolved configuration: defaults, then the problem's and the method's own, then `base`, then the overrides.

    >>> config = compose(["method=fedprox", "method.mu=0.1", "local.lr=1e-2"])
    >>> config.method.kind, config.method.mu, config.local.lr, config.rounds
    ('fedprox', 0.1, 0.01, 50)
    """
    _refuse_resolvers(base or {})
    below, above = list(flat(base or {})), [parse(text) for text in overrides]
    for group in GROUPS:  # if the overrides choose another kind, drop the base's settings of its own kind
        if _kind(group, below) != _kind(group, [*below, *above]):
            shared = {group, f"{group}.kind", *(f"{group}.{name}" for name in COMMON.get(group, ()))}
            below = [(key, value) for key, value in below if key.split(".")[0] != group or key in shared]
    given = [*below, *above]
    config = _defaults(given)
    kinds = {group: config[group].kind for group in GROUPS}
    own = [registry(group).info(kinds[group]).get("defaults", {}) for group in ("problem", "method")]
    if kinds["problem"] not in ("quadratic", "pair") and registry("partition").info(kinds["partition"]).get("of"):
        config.clients = None  # the data or the file give the number
    for key, value in [*own[0].items(), *own[1].items(), *given]:
        chosen = key in GROUPS or (key.endswith(".kind") and key.split(".")[0] in GROUPS)
        if not chosen and (key, value) != ("clients", None):
            _set(config, key, value)
    _resolve(config)
    if "cores" in config.engine and config.engine.cores == 0:
        config.engine.cores = os.cpu_count() or 1  # the number of cores changes rounding, so it is part of the run
    _check(config)
    return config


def _defaults(given: Sequence[tuple[str, Any]]) -> DictConfig:
    """The defaults of the chosen kinds. For the same factories they are made once, because that takes long."""
    chosen = []
    for group in GROUPS:
        kind = _kind(group, given)
        target = next((value for key, value in reversed(given) if key == f"{group}.target"), None)
        chosen.append((group, kind, target if kind == "custom" else None))
    factories = [registry(group).get(kind, target) for group, kind, target in chosen]
    for group, kind, _ in chosen:
        inner = registry(group).info(kind).get("nested")
        factories += [inner.get(name) for name in inner.names()] if inner else []
    if any(kind == "custom" for _, kind, _ in chosen):  # such a factory may not be hashable
        return _sections(tuple(chosen))
    return deepcopy(_kept_sections(tuple(chosen), tuple(factories)))


def _sections(chosen: Sequence[tuple[str, str, str | None]]) -> DictConfig:
    """The defaults of these kinds. chosen: group, kind and target of each."""
    config: DictConfig = OmegaConf.structured(Config)
    for group, kind, target in chosen:
        config[group] = OmegaConf.structured(_schema(group, kind, target))
    return config


@lru_cache(maxsize=32)
def _kept_sections(chosen: tuple[tuple[str, str, str | None], ...], factories: tuple[Any, ...]) -> DictConfig:
    """The same, cached.

    factories: the factories of the kinds, because another factory of the same name has other defaults.
    """
    return _sections(chosen)


def parse(text: str) -> tuple[str, Any]:
    """One `key=value`; the value is YAML, as in Hydra.

    >>> parse("local.lr=uniform(0.001, 0.1)"), parse("model.hidden=[64, 64]"), parse("local.lr=1e-3")
    (('local.lr', 'uniform(0.001, 0.1)'), ('model.hidden', [64, 64]), ('local.lr', 0.001))
    """
    if not isinstance(text, str):
        what = f"argument {limits.shortened(repr(text))}"
        raise ArnoError(what, "settings are written key=value", 'e.g. arno.run("rounds=10"), or arno.run(rounds=10)')
    return deepcopy(_parsed(text))  # the caller may change a list


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[str, Any]:
    """The same, cached, because the runs of a comparison have most of their settings in common."""
    key, equals, value = text.partition("=")
    key = key.strip().lstrip("+")
    what = f"argument {limits.shortened(repr(text))}"
    if not equals or not key:
        raise ArnoError(what, "settings are written key=value", "e.g. rounds=10; see arno run --help")
    try:
        limits.check_yaml(value, what)
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]))
        assert isinstance(parsed, dict)
        return key, limits.numbers(parsed["value"], what)
    except ArnoError:
        raise
    except Exception as error:
        raise ArnoError(what, f"its value cannot be read ({_first(error)})", "quote it") from error


def read(path: Path) -> dict[str, Any]:
    """The settings in a configuration file."""
    what = f"config {limits.shortened(path)!r}"
    text = limits.read_text(path, "config", limits.CONFIG)
    try:
        loaded = OmegaConf.create(limits.check_yaml(text, what))
        if (path.parent / "manifest.json").exists():  # a run's folder may come from another user
            _refuse_resolvers(OmegaConf.to_container(loaded))
        values = limits.numbers(OmegaConf.to_container(loaded, resolve=True), what)
    except ArnoError:
        raise
    except Exception as error:
        raise ArnoError(what, f"is no valid YAML ({_first(error)})", "correct it") from error
    if not isinstance(values, dict) or not isinstance(loaded, DictConfig):
        raise ArnoError(what, "it must hold settings by name", "e.g. rounds: 10")
    return {str(k): v for k, v in values.items()}


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain dictionaries and lists."""
    try:
        out = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ArnoError("a value with ${…}", f"it cannot be resolved ({_first(error)})", "name another key") from error
    assert isinstance(out, dict)
    return {str(k): v for k, v in out.items()}


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with the names and defaults of this version."""
    return plain(compose((), translated(config)))


def translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration of release 0.1 in the names of this version; any other configuration unchanged.

    A configuration of release 0.1 has no task. Lorenzo's default metric was f1; it is now null, the first metric of the
    task, which is the same score. The numbers of partition=file addressed the samples after the validation split.

    >>> translated({"method": {"kind": "lorenzo", "metric": "f1"}, "problem": {"kind": "classification"}})
    {'method': {'kind': 'lorenzo', 'metric': None}, 'problem': {'kind': 'supervised'}, 'task': {'kind': 'auto'}}
    """
    method, problem = config.get("method"), config.get("problem")
    if "task" in config or not isinstance(method, Mapping) or not isinstance(problem, Mapping):
        return dict(config)
    kind = str(problem.get("kind"))
    out = {**config, "problem": {**problem, "kind": RENAMED.get(("problem", kind), kind)}, "task": {"kind": "auto"}}
    lorenzo = method if method.get("kind") == "lorenzo" else method.get("lorenzo")
    if isinstance(lorenzo, Mapping) and lorenzo.get("metric") == "f1":
        now = {**lorenzo, "metric": None}
        out["method"] = now if lorenzo is method else {**method, "lorenzo": now}
    partition = config.get("partition")
    if isinstance(partition, Mapping) and partition.get("kind") == "file":
        out["partition"] = {**partition, "after_validation": True}
    return out


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The settings that change the computation and differ, as `key: a → b`."""
    left, right = dict(flat(a)), dict(flat(b))
    keys = [k for k in sorted(left.keys() | right.keys()) if not _free(k)]
    return [f"{k}: {left.get(k)} → {right.get(k)}" for k in keys if left.get(k) != right.get(k)]


def mark(config: Mapping[str, Any]) -> str:
    """A checksum of the settings that change the computation."""
    chosen = {key: value for key, value in flat(config) if not _free(key)}
    return f"{crc32(json.dumps(chosen, sort_keys=True, default=str).encode()):08x}"


def _free(key: str) -> bool:
    return key in FREE or key.split(".")[0] in FREE


def as_overrides(config: Mapping[str, Any]) -> list[str]:
    """The overrides that turn the defaults into this configuration: a command that reproduces it.

    >>> as_overrides(plain(compose(["method=fedprox", "method.mu=0.1", "seed=3"])))
    ['method=fedprox', 'method.mu=0.1', 'seed=3']
    """
    kinds = {group: config[group]["kind"] for group in GROUPS}
    chosen = [f"{group}={kind}" for group, kind in kinds.items()]
    named = [f"{g}.target={config[g]['target']}" for g, kind in kinds.items() if kind == "custom"]
    usual = dict(flat(plain(compose([*chosen, *named]))))
    words = [word for word, group in zip(chosen, GROUPS, strict=True) if kinds[group] != getattr(Config, group)] + named
    if kinds["partition"] == Config.partition and _natural([*flat({"data": config["data"]})]):
        words.append(f"partition={Config.partition}")
    for key, value in flat(config):
        if usual.get(key) != value and not key.endswith(".kind"):
            words.append(f"{key}={written(value)}")
    order = [f.name for f in fields(Config)]
    return sorted(words, key=lambda word: (order.index(word.split("=")[0].split(".")[0]), "." in word.split("=")[0]))


def describe() -> Iterator[tuple[str, Any, str]]:
    """Every general setting: key, default, help."""
    for f in fields(Config):
        if f.default is MISSING:
            kind = f.default_factory
            assert is_dataclass(kind)
            for g in fields(kind):
                yield f"{f.name}.{g.name}", g.default, g.metadata["help"]
        else:
            yield f.name, f.default, f.metadata["help"]


def _kind(group: str, given: Sequence[tuple[str, Any]]) -> str:
    """The kind of a group that was chosen last."""
    chosen = [value for key, value in given if key in (group, f"{group}.kind")]
    if chosen and not isinstance(chosen[-1], str):
        raise ArnoError(f"{group} = {chosen[-1]}", "a group is chosen by name", f"write {group}=NAME")
    kind = chosen[-1] if chosen else "natural" if group == "partition" and _natural(given) else getattr(Config, group)
    kind = RENAMED.get((group, kind), kind)
    if kind not in (names := registry(group).names()) and (error := meanings.choice(group, kind, names)):
        raise error
    return kind


def _natural(given: Sequence[tuple[str, Any]]) -> bool:
    """Whether the data name their clients, and no setting of another partition is given."""
    if any(key.startswith("partition.") and key != "partition.seed" for key, _ in given):
        return False
    names_clients = registry("data").info(_kind("data", given)).get("names_clients")
    settings = {key.removeprefix("data."): value for key, value in given if key.startswith("data.")}
    return names_clients is not None and bool(names_clients(settings))


def _schema(group: str, kind: str, target: str | None) -> type:
    """A dataclass with the settings of a factory."""
    columns: list[Any] = [("kind", str, field(default=kind))]
    if kind == "custom":
        columns.append(("target", str, field(default=target)))
    for name, parameter in _settings(group, kind, target).items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            raise ArnoError(f"{group}={kind}", f"its setting {name!r} has no default", "give it one in its signature")
        columns.append(_column(name, parameter.annotation, default))
    inner: Registry | None = registry(group).info(kind).get("nested")
    for name in () if inner is None else inner.names():  # nested sections, such as method.window.beta
        own = [_column(p.name, p.annotation, p.default) for p in inner.settings(name).values()] if inner else []
        kind_of = make_dataclass(f"{group}.{name}", own)
        columns.append((name, kind_of, field(default_factory=kind_of)))
    common = COMMON.get(group, {}) | ({"limit": (int | None, None)} if (group, kind) == ("data", "custom") else {})
    known = {column[0] for column in columns}
    columns += [_column(name, *common[name]) for name in common if name not in known]
    return make_dataclass(f"{group}={kind}", columns)


def _settings(group: str, kind: str, target: str | None) -> Mapping[str, inspect.Parameter]:
    """The settings of a factory. The defaults of a user's own factory must be plain values."""
    try:
        found = registry(group).settings(kind, target)
    except (NameError, ValueError, TypeError, SyntaxError) as error:
        if kind != "custom":
            raise
        rule = f"its signature cannot be read ({_first(error)})"
        raise ArnoError(f"{group}.target = {target}", rule, "give every setting a simple type") from error
    plain_kinds = (bool, int, float, str, list, tuple, Mapping, type(None), type(inspect.Parameter.empty))
    for name, parameter in found.items():
        if kind == "custom" and (name in ("kind", "target") or not isinstance(parameter.default, plain_kinds)):
            rule = f"its setting {name!r} " + (
                "has a name that Arno uses" if name in ("kind", "target") else "is no plain value"
            )
            raise ArnoError(f"{group}.target = {target}", rule, "settings are numbers, texts, lists and dictionaries")
    return found


def _column(name: str, annotation: Any, default: Any) -> tuple[str, Any, Any]:
    if isinstance(default, list | tuple):
        return name, _omega(annotation), field(default_factory=lambda: list(default))
    if isinstance(default, Mapping):
        return name, dict[str, Any], field(default_factory=lambda: dict(default))
    return name, _omega(annotation), field(default=default)


def _omega(annotation: Any) -> Any:
    """The type as OmegaConf knows it; `Any` for types that OmegaConf does not know."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (int, float, bool, str) or origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        kinds = [_omega(a) for a in arguments if a is not type(None)]
        if len(kinds) == 1 and kinds[0] is not Any:
            return kinds[0] | None
        return Any
    if origin in (list, tuple):
        inner = _omega(arguments[0])
        return types.GenericAlias(list, (inner,))
    return Any


def _refuse_resolvers(stored: Any) -> None:
    """Refuse ${name:…} in a stored configuration. It could read the environment, and stored values do not need it."""
    items = stored.values() if isinstance(stored, Mapping) else stored if isinstance(stored, list | tuple) else ()
    for value in items:
        _refuse_resolvers(value)
    if isinstance(stored, str) and "${" in stored and ":" in stored:
        what = f"a stored value {limits.shortened(stored)!r}"
        raise ArnoError(what, "a stored configuration holds values, no ${…:…}", "write the value itself")


def _resolve(config: DictConfig) -> None:
    """Replace every ${…} by its value; an error if it has no value, or a value of the wrong type."""
    try:
        OmegaConf.resolve(config)
    except Exception as error:  # from OmegaConf, its parser or a resolver, or RecursionError
        key = error.full_key if isinstance(error, OmegaConfBaseException) and error.full_key else "a value with ${…}"
        rule = _rule(error) if str(error) else "it refers to itself"
        raise ArnoError(key, f"its ${{…}} cannot be resolved: {rule}", "write the value itself") from error


def _set(config: DictConfig, key: str, value: Any) -> None:
    try:
        if not _has(config, key):  # OmegaConf also accepts keys such as local[lr] and track.0
            raise KeyError(key)
        if key.split(".")[0] in GROUPS and "." not in key:
            raise KeyError(key)
        OmegaConf.update(config, key, value, merge=False)
    except KeyError:
        raise _unknown_key(config, key, written(value)) from None
    except Exception as error:  # from OmegaConf or its parser
        what = limits.shortened(f"{key} = {written(value)}")
        raise ArnoError(what, _rule(error), "see arno run --help") from error


def _has(config: DictConfig, key: str) -> bool:
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node:
            return False
        node = node._get_node(name)
    return True


def _unknown_key(config: DictConfig, key: str, value: str) -> ArnoError:
    known = [k.removesuffix(".kind") for k, _ in flat(plain(config))]
    error = meanings.meant(key, value, bool(_owners(meanings.plain(key.rpartition(".")[2]))))
    if error is not None:
        return error
    group = key.split(".")[0]
    if group in GROUPS:
        mine = [k for k in known if k.startswith(f"{group}.")]
        leaf = key.partition(".")[2]
        owners = [one for one in _owners(leaf) if one.startswith(f"{group}=")]
        near = get_close_matches(leaf, [k.partition(".")[2] for k in mine], 1, 0.6)
        if (elsewhere := [k for k in known if k.endswith(f".{leaf}")]) and not near and not owners:
            return ArnoError(f"unknown key {key!r}", f"{group} has no such setting", f"try {elsewhere[0]}=...")
        if not mine or (owners and not near):
            remedy = f"try {' or '.join(f'{one}=...' for one in owners[:4])}" if owners else f"leave out {key}"
            return ArnoError(f"unknown key {key!r}", f"{group}={config[group].kind} has no such setting", remedy)
        known = mine
    else:
        inside = [k for k in known if k.endswith(f".{key}")] or _owners(key)
        if inside:
            tries = " or ".join(f"{one}=..." for one in inside[:4])
            return ArnoError(f"unknown key {key!r}", "a setting is written with its group", f"try {tries}")
    return unknown("key", key, known, "see arno run --help")


def _owners(key: str) -> list[str]:
    """The kinds that have this setting, written as on the command line."""
    found = []
    for group in GROUPS:
        for name in registry(group).names():
            with suppress(ArnoError):  # `custom` needs a target
                if key in registry(group).settings(name):
                    found.append(f"{group}={name} {group}.{key}")
    return found


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of nested sections with its dotted key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _python(value)


def _python(value: Any) -> Any:
    """Numbers and arrays of NumPy and torch as numbers and lists of Python; any other value as it is."""
    if isinstance(value, list | tuple):
        return type(value)(_python(each) for each in value)
    return value.tolist() if isinstance(value, _arrays()) else value


def _arrays() -> tuple[type[Any], ...]:
    """The types of numbers and arrays of NumPy and torch, if a program has imported them; nothing is imported here."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (*((numpy.generic, numpy.ndarray) if numpy else ()), *((torch.Tensor,) if torch else ()))


def written(value: Any) -> str:
    """A value as a user writes it: YAML on one line; a text without quotes if it is read as the same text.

    >>> written(None), written((64, 64)), written(True), written(1.0), written("a b"), written("1")
    ('null', '[64, 64]', 'true', '1.0', 'a b', '"1"')
    """
    if isinstance(value, str):
        try:
            if parse(f"value={value}")[1] == value:
                return value
        except ArnoError:
            pass
    return json.dumps(value, ensure_ascii=False, default=str)


def _rule(error: Exception) -> str:
    """The rule in an error of OmegaConf, in plain words."""
    said = _first(error)
    choice = re.search(r"expected one of \[(.*)\]", said)
    if choice:
        return f"it must be one of {choice[1]}".replace("'", "")
    words = {
        "to Integer": "it must be a whole number",
        "to Float": "it must be a number",
        "not a valid bool": "it must be true or false",
        "not Optional": "it cannot be left empty",
        "not a ListConfig": "it must be a list, as [64, 64]",
        "is not a subclass": "it is a section; its settings follow a dot",
    }
    return next((rule for part, rule in words.items() if part in said), said)


def _first(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")


def _check(config: DictConfig) -> None:
    """Check the general settings."""
    for key, least in (
        ("clients", 1),
        ("rounds", 1),
        ("eval.every", 1),
        ("checkpoint.every", 0),
        ("checkpoint.keep", 1),
        ("seed", 0),
    ):
        value = OmegaConf.select(config, key)
        if value is not None and value < least:
            raise ArnoError(f"{key} = {value}", f"it must be at least {least}", f"try {key}={max(least, 10)}")
    check_out(config.out)
    track = config.track if isinstance(config.track, ListConfig) else [config.track or ""]
    if not all(isinstance(name, str) for name in track):
        what = f"track = {limits.shortened(config.track)}"
        raise ArnoError(what, "trackers are given by name", "write track=mlflow or track=[mlflow, tensorboard]")
    if not 0 < config.participation <= 1:
        raise ArnoError(
            f"participation = {config.participation:g}", "it must be above 0 and at most 1", "try participation=0.1"
        )
    for key in ("local.epochs", "local.batch_size", "local.lr"):
        value = OmegaConf.select(config, key)
        numbers = list(value) if isinstance(value, ListConfig) else [value]
        fine = (int, float) if isinstance(value, ListConfig) else (int, float, str)
        if any(isinstance(x, bool) or not isinstance(x, fine) for x in numbers):
            rule = "it must be a number, a list with one number per client, or a distribution"
            raise ArnoError(f"{key} = {written(plain(config)['local'][key[6:]])}", rule, f"try {key}='choice(1, 2)'")
    if not 0 < config.server_lr < float("inf"):
        raise ArnoError(f"server_lr = {config.server_lr:g}", "it must be positive", "try server_lr=1")
    if not config.local.lr_decay > 0:
        raise ArnoError(f"local.lr_decay = {config.local.lr_decay:g}", "it must be above 0", "change local.lr_decay")
    for key, low, high in (("local.momentum", 0, 1), ("local.weight_decay", 0, None)):
        value = OmegaConf.select(config, key)
        if not value >= low or (high is not None and value >= high):
            rule = f"it must be at least {low}" + (f" and below {high}" if high is not None else "")
            raise ArnoError(f"{key} = {value:g}", rule, f"change {key}")
    if config.local.clip is not None and not config.local.clip > 0:
        raise ArnoError(f"local.clip = {config.local.clip:g}", "it must be positive", "use local.clip=null for none")


def check_out(out: str | None) -> None:
    """Refuse a name of the folder that file systems cannot store: too long, or not a text."""
    if out is None:
        return
    try:
        longest = max((len(os.fsencode(part)) for part in Path(out).parts), default=0)
        whole = len(os.fsencode(os.path.abspath(out)))
        out.encode()
    except ValueError as error:  # a surrogate: half of a character, or a byte that is not UTF-8
        what = f"out = {limits.shortened(out)!a}"
        raise ArnoError(what, f"it is no name ({_first(error)})", "choose another out=") from error
    if longest > 255 or whole > 3900:  # 4096, minus the length of the names in the folder
        rule = f"a name has at most 255 bytes and a path 3900, not {longest} and {whole}"
        raise ArnoError(f"out = {limits.shortened(out)}", rule, "choose a shorter out=")
