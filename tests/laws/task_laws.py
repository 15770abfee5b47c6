"""The laws of tasks: gradients are those of the loss, statistics add up, scores are those of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from small import federate, same
from torch import Tensor, nn

from arno.core.metric import Metric
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.engines.batched import Batched
from arno.problems.supervised import Supervised
from arno.tasks.classification import Classification
from arno.tasks.regression import Regression
from arno.tasks.task import Reduction, Task

F64 = torch.float64


class Counts(Task):
    """A task of its own: the outputs are logarithms of the means of Poisson counts."""

    name = "counts"
    outputs = 2
    metrics = (Metric("surprise", "negative log-likelihood", "less"),)

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        each = (outputs.exp() - targets * outputs).sum(1)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([self.loss(outputs, targets, "sum").double(), torch.tensor(len(targets), dtype=F64)])

    def scores(self, tally: Tensor) -> dict[str, float]:
        return {"surprise": float(tally[0] / tally[1])}


def draw(task: Task, *shape: int) -> tuple[Tensor, Tensor]:
    """Outputs and targets."""
    g = torch.Generator().manual_seed(7)
    outputs = torch.randn(*shape, task.outputs, generator=g, dtype=F64)
    if task.classes:
        return outputs, torch.randint(0, task.classes, shape, generator=g)
    return outputs, torch.randint(0, 9, (*shape, task.outputs), generator=g).double()


def tasks() -> Iterator[Task]:
    yield Classification(4)
    yield Regression(torch.tensor([3.0]), torch.tensor([0.7]))
    yield Regression(torch.tensor([3.0, -1.0, 5.0]), torch.tensor([0.7, 2.0, 1.3]))
    yield Counts()


def law_a_written_out_gradient_is_that_of_the_loss() -> None:
    for task in tasks():
        outputs, targets = draw(task, 11)
        z = outputs.clone().requires_grad_()
        loss = task.loss(z, targets)
        (wanted,) = torch.autograd.grad(loss, z)
        for found, delta in (task.gradient(outputs.clone(), targets), Task.gradient(task, outputs, targets)):
            same(found, loss.detach())
            same(delta, wanted)
        with torch.inference_mode():
            same(task.gradient(outputs.clone(), targets)[1], wanted)


def law_gradients_of_many_models_are_those_of_each() -> None:
    for task in tasks():
        outputs, targets = draw(task, 3, 8)
        weight = torch.rand(3, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
        weight[1, 5:] = 0  # a smaller batch
        z = outputs.clone().requires_grad_()
        rows = [(task.loss(z[k], targets[k], "none") * weight[k]).sum() for k in range(3)]
        (wanted,) = torch.autograd.grad(torch.stack(rows).sum(), z)
        written, default = task.row_gradients(outputs.clone(), targets, weight), None
        default = Task.row_gradients(task, outputs, targets, weight)
        for losses, delta in (written, default):
            same(losses, torch.stack(rows).detach())
            same(delta, wanted)


def law_statistics_add_up_over_batches() -> None:
    for task in tasks():
        outputs, targets = draw(task, 23)
        whole = task.tally(outputs, targets)
        assert whole.dtype == F64
        parts = [task.tally(a, b) for a, b in zip(outputs.split(5), targets.split(5), strict=True)]
        same(whole, torch.stack(parts).sum(0), 1e-10)
        assert task.scores(whole).keys() == {metric.name for metric in task.metrics}
        each = task.loss(outputs, targets, "none")
        assert each.shape == (23,)
        same(task.loss(outputs, targets, "sum"), each.sum(), 1e-10)
        same(task.loss(outputs, targets), each.mean())


def law_scores_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, mean_squared_error, r2_score

    def near(scores: dict[str, float], name: str, wanted: float, tolerance: float = 1e-10) -> None:
        assert abs(scores[name] - wanted) < tolerance, f"{name} = {scores[name]}, scikit-learn: {wanted}"

    for task in tasks():
        outputs, targets = draw(task, 57)
        scores = task.scores(task.tally(outputs, targets))
        if isinstance(task, Classification):
            guess = outputs.argmax(1)
            near(scores, "accuracy", accuracy_score(targets, guess), 1e-7)
            near(scores, "f1", f1_score(targets, guess, average="weighted"))
            near(scores, "loss", log_loss(targets, outputs.softmax(1)))
        if isinstance(task, Regression):
            guess = outputs * task.std + task.mean
            near(scores, "rmse", mean_squared_error(targets, guess) ** 0.5)
            near(scores, "mae", mean_absolute_error(targets, guess))
            near(scores, "r2", r2_score(targets, guess))
            near(scores, "loss", mean_squared_error((targets - task.mean) / task.std, outputs))


def law_the_sign_of_a_metric_makes_more_better() -> None:
    """The declared direction is the true one: exact outputs are better than random ones by every metric."""
    for task in tasks():
        outputs, targets = draw(task, 40)
        if isinstance(task, Classification):
            exact = 9 * torch.eye(task.classes, dtype=F64)[targets]
        elif isinstance(task, Regression):
            exact = (targets - task.mean) / task.std
        else:
            exact = targets.clamp(min=1e-3).log()
        good, bad = (task.scores(task.tally(z, targets)) for z in (exact, outputs))
        for metric in task.metrics:
            assert metric.sign * good[metric.name] > metric.sign * bad[metric.name], metric
            assert metric.low <= good[metric.name] <= metric.high


class Halted(nn.Sequential):
    """The same function as its layers, with control flow that depends on data: autograd computes it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.isfinite().all() else x


def counted(kind: type[nn.Sequential]) -> Supervised:
    """Counts that depend on the inputs, on three clients."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(30, 4, generator=g, dtype=F64)
    y = torch.poisson((x[:, :2] + 0.5).exp(), generator=g)
    return Supervised(
        x,
        y,
        Partition(torch.arange(30), torch.tensor([0, 7, 16, 30])),
        lambda: kind(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        task=Counts(),
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"test": (x, y)},
        dtype=F64,
    )


def law_a_task_of_ones_own_trains_through_every_kernel() -> None:
    written, other = counted(nn.Sequential), counted(Halted)
    assert (written.kernel, other.kernel) == ("dense", "autograd")
    ends = [
        federate(written, [], 5, lr=0.1),
        federate(written, [], 5, lr=0.1, engine=Batched(written)),
        federate(other, [], 5, lr=0.1),
    ]
    first, last = (written.scores(written.total(w, "test"))["surprise"] for w in (written.init(0), ends[0].w))
    assert last < first - 0.1
    for end in ends[1:]:
        same(ends[0].w, end.w, 1e-9)
    assert written.selects is None
    assert [metric.name for metric in written.metrics] == ["test_surprise", "train_loss"]
