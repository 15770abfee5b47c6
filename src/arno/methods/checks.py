"""Checks of methods: they raise an error for a task, a network or another part with which a method cannot work."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.federation import Federation
from ..core.method_part import Part
from ..errors import ArnoError
from ..problems.supervised import Supervised


def need_classes(fed: Federation, method: str) -> Supervised:
    """The problem; an error unless its task has classes and the network has one output for each class."""
    problem = fed.problem
    if not isinstance(problem, Supervised) or not problem.task.classes:
        what = problem.task.name if isinstance(problem, Supervised) else "a problem without a network"
        raise ArnoError(f"{method} on {what}", "its loss is defined for classes", "use a classification task")
    if problem.task.outputs != problem.task.classes:
        rule = f"its loss needs an output for each of the {problem.task.classes} classes"
        raise ArnoError(f"{method} on {problem.task.name} with one output", rule, "set task.logits=two")
    return problem


def no_momentum(fed: Federation, method: str, why: str) -> None:
    """Refuse momentum on the clients."""
    if fed.local.sgd.momentum:
        raise ArnoError(f"{method} with local.momentum = {fed.local.sgd.momentum:g}", why, "set local.momentum=0")


def no_buffers(fed: Federation, method: str) -> None:
    """Refuse networks with buffers, such as running statistics."""
    if fed.layout.size != fed.layout.d:
        rule = "it is not defined for running statistics (BatchNorm)"
        raise ArnoError(f"{method} on this network", rule, "use GroupNorm or LayerNorm")


def plain_steps(fed: Federation, part: Part, method: str) -> None:
    """Refuse everything that changes the step of a rule: buffers, momentum, clipping, and parts with some roles."""
    no_buffers(fed, method)
    no_momentum(fed, method, "its step is defined without momentum")
    if fed.local.sgd.clip is not None:
        raise ArnoError(f"{method} with local.clip", "its step is defined without clipping", "leave local.clip out")
    why = "its local step is defined without such a part"
    refuse_roles(fed, part, method, dict.fromkeys(("window", "proximal", "control", "order"), why))


def refuse_roles(fed: Federation, part: Part, method: str, reasons: Mapping[str, str]) -> None:
    """Refuse other parts that have one of these roles. reasons: for each role, why it is refused."""
    for other in fed.parts:
        for role in sorted(other.roles & reasons.keys()):
            if other is not part:
                raise ArnoError(f"{method} with {type(other).__name__}", reasons[role], "leave one of them out")


def refuse_private(fed: Federation, part: Part, method: str, why: str) -> None:
    """Refuse other parts that keep coordinates at the clients."""
    for other in fed.parts:
        if other is not part and type(other).private is not Part.private:
            raise ArnoError(f"{method} with {type(other).__name__}", why, "leave one of them out")
