"""What methods refuse: tasks, networks and other parts that they cannot work with."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.federation import Federation
from ..core.part import Part
from ..errors import ArnoError
from ..problems.supervised import Supervised


def need_classes(fed: Federation, method: str) -> Supervised:
    """The problem, if its task is classification."""
    problem = fed.problem
    if not isinstance(problem, Supervised) or not problem.task.classes:
        what = problem.task.name if isinstance(problem, Supervised) else "a problem without a network"
        raise ArnoError(f"{method} on {what}", "its loss is defined for classes", "use a classification task")
    return problem


def no_momentum(fed: Federation, method: str, why: str) -> None:
    """Refuse momentum on the clients."""
    if fed.local.sgd.momentum:
        raise ArnoError(f"{method} with local.momentum = {fed.local.sgd.momentum:g}", why, "set local.momentum=0")


def refuse_roles(fed: Federation, part: Part, method: str, reasons: Mapping[str, str]) -> None:
    """Refuse other parts that have these roles, each with its reason."""
    for other in fed.parts:
        for role in sorted(other.roles & reasons.keys()):
            if other is not part:
                raise ArnoError(f"{method} with {type(other).__name__}", reasons[role], "leave one of them out")
