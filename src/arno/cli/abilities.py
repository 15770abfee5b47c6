"""The engines and tasks with which a method works, found by running the method on tiny problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..core.federation import Federation, Local, refuse_rows
from ..core.method_part import Part
from ..data.dataset import Transform
from ..data.partition import Partition
from ..engines.batched import Batched
from ..errors import ArnoError
from ..methods import methods
from ..models.linear import MLP
from ..models.lstm import lstm
from ..models.network import Shape
from ..problems.supervised import Supervised
from ..tasks.binary import Binary
from ..tasks.classification import Classification
from ..tasks.multilabel import Multilabel
from ..tasks.regression import Regression
from ..tasks.task import Task
from ..tasks.tokens import Tokens

#: The sizes of the tiny problems: clients, samples of each client, inputs and outputs.
CLIENTS, SAMPLES, INPUTS, OUTPUTS = 12, 8, 4, 3
N = CLIENTS * SAMPLES


def engines_of(name: str) -> str:
    """How the engines run a method."""
    parts = methods.get(name)()
    refused = reason(lambda: tried(parts, classification(), batched=True))
    stacked = f"batched refuses it: {refused}" if refused else "batched to rounding"
    sums = "also with engine.reduce=worker" if not reason(lambda: refuse_rows(methods.get(name)())) else ""
    return "; ".join(filter(None, ["serial, processes and ray with the same bits", sums, stacked]))


def tasks_of(name: str) -> str:
    """The tasks with which a method works, and the tasks that it refuses with the reasons."""
    refused = {task: reason(lambda make=make: tried(methods.get(name)(), make())) for task, make in TINY.items()}  # type: ignore[misc]
    fine = ", ".join(task for task, why in refused.items() if not why)
    reasons: dict[str, list[str]] = {}
    for task, why in refused.items():
        reasons.setdefault(why, []).append(task)
    return "; ".join([fine, *(f"not {', '.join(tasks)}: {why}" for why, tasks in reasons.items() if why)])


def tried(parts: Sequence[Part], problem: Supervised, batched: bool = False) -> None:
    """Run two rounds of a method, and compute the models that clients would use."""
    engine = Batched(problem) if batched else None
    fed = Federation(problem, parts, engine=engine, local=Local(batch_size=4, lr=0.01), rounds=2)
    for _ in range(2):
        fed.round()
    fed.personal(torch.arange(CLIENTS))


def reason(attempt: Callable[[], None]) -> str:
    """The reason why a call is refused; empty if it is not refused."""
    try:
        attempt()
    except ArnoError as error:
        rule: str = error.args[1]
        return rule
    return ""


def classification() -> Supervised:
    """A tiny problem with classes."""
    return _problem(torch.arange(N) % OUTPUTS, Classification(OUTPUTS), MLP(INPUTS, (4,), OUTPUTS, "relu"))


def binary() -> Supervised:
    """A tiny problem with two classes and one output for both."""
    return _problem(torch.arange(N) % 2, Binary(), MLP(INPUTS, (4,), 1, "relu"))


def multilabel() -> Supervised:
    """A tiny problem with several labels for each sample."""
    y = (torch.arange(N * OUTPUTS).view(N, OUTPUTS) % 2).float()
    return _problem(y, Multilabel(OUTPUTS), MLP(INPUTS, (4,), OUTPUTS, "relu"))


def regression() -> Supervised:
    """A tiny problem with numbers as targets."""
    return _problem(
        torch.linspace(-1, 1, N), Regression(torch.zeros(1), torch.ones(1)), MLP(INPUTS, (4,), 1, "relu")
    )  # fmt: skip


def tokens() -> Supervised:
    """A tiny problem with a token after every position of a sequence."""
    x = torch.arange(N * INPUTS).view(N, INPUTS) % OUTPUTS
    shape = Shape((INPUTS,), vocabulary=OUTPUTS, positions=True)
    return _problem(x.roll(-1, 1), Tokens(OUTPUTS), lstm(shape, OUTPUTS, embedding=2, hidden=4), x)


def _problem(y: Tensor, task: Task, network: nn.Module, x: Tensor | None = None) -> Supervised:
    x = torch.randn(N, INPUTS, generator=torch.Generator().manual_seed(0)) if x is None else x
    held = Partition(torch.arange(N), torch.arange(0, N + 1, SAMPLES))
    plain = Transform((0.0,), (1.0,), 1.0)
    return Supervised(x, y, held, lambda: network, task=task, transform=plain, splits={"val": (x, y)})


#: A tiny problem of every task.
TINY = {
    "classification": classification,
    "binary": binary,
    "multilabel": multilabel,
    "regression": regression,
    "tokens": tokens,
}
