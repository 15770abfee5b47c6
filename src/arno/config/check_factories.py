"""Checks of what factories return. A mistake in a user's own factory is reported on one line before the first round."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import ArnoError
from ..models.network import network_of, takes_shape
from ..problems.supervised import Supervised
from ..registry import broken
from ..tasks.task import Task
from .settings import registry

T = TypeVar("T")

#: The positional arguments of the factories of each group.
ARGUMENTS = {
    "method": (),
    "problem": ("config",),
    "data": (),
    "task": ("targets", "classes"),
    "partition": ("strata", "clients", "seed"),
    "model": ("shape", "outputs"),
    "select": ("participation",),
    "engine": ("problem",),
}

#: The class of the objects that the factories of a group return, with its public name.
CLASSES = {
    "problem": "arno.core.problem.Problem",
    "task": "arno.tasks.task.Task",
    "model": "torch.nn.Module",
    "select": "arno.Part",
    "engine": "arno.core.engine.Engine",
}


def make(group: str, settings: Mapping[str, Any], kind: type[T], *arguments: object) -> T:
    """Call the factory that `settings` name; an error if the result is not of the type `kind`."""
    refuse_signature(group, settings)
    try:
        if group == "model" and settings["kind"] == "custom":
            own = {key: value for key, value in settings.items() if key not in ("kind", "target")}
            made = network_of(registry(group).get("custom", settings["target"]), *arguments, **own)  # type: ignore[arg-type]
        else:
            made = registry(group).build(settings, *arguments)
    except (Exception, SystemExit) as error:
        if settings["kind"] != "custom" or isinstance(error, MemoryError):
            raise
        raise broken(named(group, settings), "calling it failed", error) from error
    if isinstance(made, nn.Module) and any(map(is_lazy, made.parameters())):
        rule = "a lazy layer has no size before its first batch"
        raise ArnoError(f"{named(group, settings)} returned {shown(made)}", rule, "write nn.Linear(64, 10)")
    if not isinstance(made, kind):
        what = f"{named(group, settings)} returned {shown(made)}"
        raise ArnoError(what, f"it must be an instance of {CLASSES[group]}", "correct what the factory returns")
    return made


def refuse_signature(group: str, settings: Mapping[str, Any]) -> None:
    """Refuse a custom factory that does not take the arguments of its group."""
    if settings["kind"] != "custom":
        return
    given = {key: value for key, value in settings.items() if key not in ("kind", "target")}
    factory, arguments = registry(group).get("custom", settings["target"]), ARGUMENTS[group]
    if group == "model" and (isinstance(factory, nn.Module) or not takes_shape(factory)):
        arguments = ()
        factory = (lambda: factory) if isinstance(factory, nn.Module) else factory
    try:
        inspect.signature(factory).bind(*arguments, **given)
    except TypeError as error:
        raise ArnoError(
            named(group, settings),
            f"it is called with ({', '.join(arguments)}) and its settings as keywords ({error})",
            f"write def factory({', '.join([*arguments, '*'])}, my_setting=1)",
        ) from error


def refuse_undeclared(task: Task, settings: Mapping[str, Any]) -> None:
    """Refuse a task that does not declare a name, outputs and metrics."""
    lacks = [name for name in ("name", "outputs", "metrics") if name not in dir(task)]
    if lacks or not task.metrics:
        raise ArnoError(
            f"{named('task', settings)} returned {shown(task)} without {', '.join(lacks) or 'metrics'}",
            "a task declares name, outputs and metrics",
            'set them in the class: metrics = (Metric("mae", "MAE", "less"),)',
        )


def try_out(problem: Supervised) -> None:
    """Compute and score the outputs of a few samples; an error if the network or the task returns wrong results."""
    task, x, y = problem.task, problem.x[:4], problem.y[:4]
    outputs = tried(problem.module, problem.inputs(x))
    network = type(problem.module).__name__
    if isinstance(outputs, Exception):
        what = f"{network} on samples of shape {list(problem.shape)} ({problem.inputs(x).dtype})".replace("torch.", "")
        why = str(outputs).splitlines()[0] if str(outputs) else type(outputs).__name__
        raise ArnoError(what, f"it cannot compute them: {why}", "correct the network") from outputs
    wanted = [len(x), *problem.shape, task.outputs] if task.positions else [len(x), task.outputs]
    if not isinstance(outputs, Tensor) or list(outputs.shape) != wanted:
        rule = f"the task {task.name} needs outputs of shape {wanted}"
        remedy = "correct its last layer" if isinstance(outputs, Tensor) else "return the tensor alone"
        raise ArnoError(f"{network} returned {shown(outputs)} for {len(x)} samples", rule, remedy)
    refuse_untrained(problem)
    refuse_probabilities(problem, outputs)
    for reduction, shape in (("mean", ()), ("sum", ()), ("none", (len(x),))):
        loss = task.loss(outputs, y, reduction)  # type: ignore[arg-type]
        if tuple(loss.shape) != shape:
            what = f'loss(…, reduction="{reduction}") of the task {task.name} returned {shown(loss)}'
            raise ArnoError(what, f"for {len(x)} samples it must have shape {list(shape)}", "correct the reduction")
    tally = task.tally(outputs, y)
    if tally.dtype != torch.float64 or tally.dim() != 1:
        what = f"tally of the task {task.name} returned {shown(tally)}"
        raise ArnoError(what, "it must be a float64 vector", "use torch.stack([…]).double()")
    scores, declared = set(task.scores(tally)), {metric.name for metric in task.metrics}
    if scores != declared:
        what = f"scores of the task {task.name} returned {', '.join(sorted(scores))}"
        raise ArnoError(what, f"its metrics declare {', '.join(sorted(declared))}", "use the same names in both")


def refuse_untrained(problem: Supervised) -> None:
    """Refuse a network whose outputs have no gradient for any of its parameters."""
    # On the CPU, because recurrent layers of cuDNN have no gradient in evaluation mode.
    module, x = deepcopy(problem.module).cpu().eval(), problem.inputs(problem.x[:4]).cpu()
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        trained = [p for p in module.parameters() if p.requires_grad]
        try:
            outputs = module(x.clone())
            delta = torch.ones_like(outputs)
            found = torch.autograd.grad(outputs, trained, delta, allow_unused=True) if outputs.requires_grad else ()
        except Exception as error:  # the user's code can raise any exception
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            rule = f"autograd cannot compute its gradient: {why}"
            raise ArnoError(f"the network {type(problem.module).__name__}", rule, "correct its forward") from error
    if not any(g is not None for g in found):
        rule = "autograd finds no gradient of its outputs for its parameters, so none would be trained"
        remedy = "remove detach(), numpy(), item() and no_grad() from its forward"
        raise ArnoError(f"the network {type(problem.module).__name__}", rule, remedy)


def refuse_probabilities(problem: Supervised, outputs: Tensor) -> None:
    """Refuse outputs after a sigmoid, if the loss takes logits: such outputs are never below 0.

    A sigmoid is assumed if the outputs are from 0 to 1 even for very large and very small inputs.
    """
    if problem.task.name not in ("binary", "multilabel") or not problem.x.is_floating_point():
        return
    x = problem.inputs(problem.x[:4])
    several = [outputs, *(tried(problem.module, factor * x) for factor in (1e3, -1e3))]
    if not all(isinstance(one, Tensor) and bool(((one >= 0) & (one <= 1)).all()) for one in several):
        return
    if len(torch.cat([one.flatten() for one in several]).unique()) > 1:
        rule = f"its outputs are from 0 to 1, as after a sigmoid, and the task {problem.task.name} takes logits"
        raise ArnoError(f"the network {type(problem.module).__name__}", rule, "leave out the sigmoid at its end")


def said_of(problem: Supervised) -> tuple[str, ...]:
    """A line for the notes, if the outputs of the network are probabilities although the loss takes logits."""
    if problem.task.name != "classification":
        return ()
    outputs = tried(problem.module, problem.inputs(problem.x[:4]))
    if bool((outputs < 0).any()) or not torch.allclose(outputs.sum(1).double(), torch.ones(1).double(), atol=1e-4):
        return ()
    what = f"the outputs of {type(problem.module).__name__} are probabilities, as after a softmax"
    return (f"model: {what}; the loss takes logits: leave out the softmax at its end",)


def tried(module: nn.Module, x: Tensor) -> Any:
    """The outputs of a network for a few samples, or the exception that it raises."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            return deepcopy(module).eval()(x)
        except Exception as error:
            return error


def named(group: str, settings: Mapping[str, Any]) -> str:
    """The choice of a factory, as a user writes it."""
    return f"{group}.target = {settings['target']}" if settings["kind"] == "custom" else f"{group}={settings['kind']}"


def shown(value: object) -> str:
    """A short description of a value, for an error.

    >>> shown(torch.zeros(2, 3)), shown(3)
    ('a tensor of shape [2, 3] (float32)', 'an object of type int')
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} ({value.dtype})".replace("torch.", "")
    return f"an object of type {type(value).__name__}"
