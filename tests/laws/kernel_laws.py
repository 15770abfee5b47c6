"""The laws of kernels: whatever computes a network has the outputs and the gradient of autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from small import same
from torch import Tensor, nn
from torch.nn import functional as F

from arno.core.layout import flatten
from arno.kernels import products
from arno.kernels.choose_kernel import choose, for_scoring, for_training
from arno.kernels.kernel import Autograd
from arno.kernels.stacked import Batch, StackedProgram, Vmapped, stack_for
from arno.models.convolutional import lenet5
from arno.models.linear import MLP
from arno.tasks.classification import Classification
from arno.tasks.regression import Regression
from arno.tasks.task import Task

F64 = torch.float64
IMAGE = (1, 20, 20)


class Own(nn.Module):
    """A network of one's own, with functions in place of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(torch.flatten(x, 1))))


class Nested(nn.Module):
    """A network within a network, with a method of tensors and an option."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        z = self.head(self.body(x).tanh())
        return z if scale is None else z * scale


class OwnConv(nn.Module):
    """Convolutions of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(1, 4, 5), nn.Conv2d(4, 6, 3), nn.Linear(54, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        x = F.relu(F.max_pool2d(self.two(x), 2))
        return self.head(x.flatten(1))


def chains() -> Iterator[tuple[nn.Module, Sequence[int], str]]:
    """Networks, the shape of their inputs, and the kernel that computes them."""
    yield nn.Sequential(nn.Linear(6, 3)), (6,), "dense"
    yield nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (6,), "dense"
    yield nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (2, 3), "dense"
    yield nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Sequential(nn.Linear(5, 3))), (6,), "dense"
    yield MLP(6, (5, 4), 3, "tanh"), (6,), "dense"
    yield Own(), (2, 3), "dense"
    yield from ((Merges(*dims, **named), (2, 3), "dense") for dims, named in (((1,), {}), ((1,), {"end_dim": -1})))
    yield Nested(), (6,), "dense"
    yield lenet5((1, 28, 28), 3), (1, 28, 28), "strips"
    yield OwnConv(), IMAGE, "strips"
    pools = [
        nn.Conv2d(1, 4, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ]
    yield nn.Sequential(*pools), IMAGE, "strips"


def batch(task: Task, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(9, *shape, generator=g, dtype=F64)
    x = x.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else x
    if task.classes:
        return x, torch.randint(0, task.classes, (9,), generator=g)
    return x, torch.randn(9, task.outputs, generator=g, dtype=F64)


def law_a_kernel_has_the_gradient_of_autograd() -> None:
    for task in (Classification(3), Regression(torch.zeros(3), torch.ones(3))):
        for given, shape, name in chains():
            torch.manual_seed(0)
            module = given.double()
            x, y = batch(task, shape)
            kernel = for_training(deepcopy(module), shape, task, channels_last=len(shape) == 3)
            plain, scorer = Autograd(deepcopy(module), task), for_scoring(module, shape, task, len(shape) == 3)
            assert kernel.name == name, f"{module} is computed by {kernel.name}"
            for each in (kernel, plain, scorer):
                each.w.copy_(flatten(module))
            kernel.g.fill_(torch.nan)
            with torch.inference_mode():
                loss = kernel.gradient(kernel.arranged(x), y)
                outputs, scored = kernel.outputs(x), scorer.outputs(x)
            same(loss, plain.gradient(x, y), 1e-12)
            same(kernel.g, plain.g, 1e-12)
            wanted = plain.outputs(x).detach()
            same(outputs, wanted, 1e-12)
            same(scored, wanted, 1e-12)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.head(torch.relu(self.second(h)) + h)


class Peeks(Residual):
    """A layer's output is used twice without a sum."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        self.seen = torch.relu(h)
        return self.head(torch.relu(self.second(h)))


class Branches(Residual):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.head(torch.relu(self.second(h)) if h.sum() > 0 else h)


class Twice(Residual):
    """The same layer twice, and one layer never."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(torch.relu(self.first(x)))))


class Backwards(Residual):
    """The layers are not used in the order of the vector."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(torch.relu(self.second(x)))))


class Scaled(nn.Module):
    """A parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(1)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    net[0].register_forward_hook(lambda layer, given, out: 2 * out)
    return net


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    net[2].weight = net[0].weight  # type: ignore[assignment]
    return net


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    net[0].weight.requires_grad_(False)
    return net


class Merges(nn.Module):
    """Flattens some dimensions, those of a sample or others."""

    def __init__(self, *dims: int, **named: int) -> None:
        super().__init__()
        self.head, self.dims, self.named = nn.Linear(6, 3), dims, named

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(x, *self.dims, **self.named))


def replaced() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    net[1].forward = lambda x: x.sigmoid()  # type: ignore[method-assign]
    return net


class Seen(nn.Module):
    """Keeps a number of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x if self.calls % 2 else 2 * x)


class Detached(Residual):
    """The outputs of its operations, and other gradients."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(torch.relu(self.second(h)) + h.detach())


class Large(Residual):
    """Something else on large batches."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.head(torch.relu(self.second(h)) if len(x) < 5 else torch.tanh(self.second(h)))


def programs() -> Iterator[nn.Module]:
    """Networks that are no chains, and whose operations are known."""
    yield nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))
    yield nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3))
    yield nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
    yield nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 3), nn.LogSoftmax(1))
    yield nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    yield from (Residual(), Backwards(), replaced(), Large())


def others() -> Iterator[nn.Module]:
    """Networks that only autograd computes."""
    yield nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    yield from (Peeks(), Branches(), Twice(), Scaled(), hooked(), tied(), frozen(), Seen(), Detached(), Merges(0))


def law_a_program_has_the_gradient_of_autograd() -> None:
    task = Classification(3)
    for given in programs():
        module = given.double()
        wanted = "dense" if isinstance(given, Large) else "program"
        assert choose(module, (6,), channels_last=False).name == wanted, f"{module} is not computed by {wanted}"
        x, y = batch(task, (6,))
        kernel, plain = for_training(deepcopy(module), (6,), task, False), Autograd(deepcopy(module), task)
        for each in (kernel, plain):
            each.w.copy_(flatten(module))
        for n in (9, 4, 1):
            kernel.g.fill_(torch.nan)
            torch.manual_seed(7)
            with torch.inference_mode():
                loss = kernel.gradient(x[:n], y[:n])
            torch.manual_seed(7)
            same(loss, plain.gradient(x[:n], y[:n]), 1e-12)
            same(kernel.g, plain.g, 1e-12)


def law_a_network_that_is_more_than_its_operations_is_left_to_autograd() -> None:
    for module in others():
        found = choose(module, (6,), channels_last=False)
        assert found.name == "autograd", f"{module} is computed by {found.name}"
        assert found.reason
    first_on_images = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    assert choose(first_on_images, (2, 6), channels_last=False).name == "program"
    assert choose(first_on_images, (6,), channels_last=False).name == "dense"


def law_stacked_gradients_are_those_of_each_model() -> None:
    for task in (Classification(3), Regression(torch.zeros(3), torch.ones(3))):
        for module in (
            MLP(6, (5,), 3, "tanh").double(),
            MLP(6, (5, 4), 3, "relu").double(),
            Residual().double(),
            Twice().double(),
        ):
            stack = stack_for(module, task, batch(task, (6,))[0])
            assert type(stack) is (Vmapped if isinstance(module, Twice) else StackedProgram)
            g = torch.Generator().manual_seed(5)
            models = torch.randn(4, len(flatten(module)), generator=g, dtype=F64)
            pairs = [batch(task, (6,)) for _ in range(4)]
            x, y = torch.stack([a * (k + 1) for k, (a, _) in enumerate(pairs)]), torch.stack([b for _, b in pairs])
            weight, rate = torch.rand(4, 9, generator=g, dtype=F64), torch.rand(4, 1, generator=g, dtype=F64)
            wanted, losses = torch.zeros_like(models), []
            for k in range(4):
                plain = Autograd(deepcopy(module), task)
                plain.w.copy_(models[k])
                loss = (task.loss(plain.module(x[k]), y[k], "none") * weight[k]).sum()
                loss.backward()
                wanted[k] = plain.g
                losses.append(loss.detach())
            w = [piece.contiguous() for piece in models.split(stack.sizes, 1)]
            found, stepped = ([torch.full_like(piece, torch.nan) for piece in w] for _ in range(2))
            given = Batch(x, y, weight, (9,) * 4)
            with torch.no_grad():
                w, to, into = map(stack.views, (w, found, stepped))
                same(stack.gradient(w, to, given), torch.stack(losses), 1e-12)
                same(torch.cat(found, 1), wanted, 1e-12)
                same(stack.descend(w, into, given, rate), torch.stack(losses), 1e-12)
            same(torch.cat(stepped, 1), models - rate * wanted, 1e-12)


def law_both_libraries_have_the_same_products() -> None:
    found = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # else the same by torch: the law holds everywhere
    linear = found.default if found else lambda x, weight, bias, *_: torch.nn.functional.linear(x, weight, bias)
    large, faster = products.LARGE, products.faster
    a, b, bias = torch.randn(3, 7, 5), torch.randn(3, 5, 4), torch.randn(3, 4)
    other, one = torch.randn(3, 7, 4), torch.randn(1, 4, 5).expand(3, -1, -1)
    wanted = torch.einsum("rnk,rnm->rkm", a, other)
    try:
        products.LARGE, products.faster = 0, lambda: linear
        for k in range(3):
            same(products.product(a[k], b[k]), a[k] @ b[k], 1e-5)
            same(products.affine(a[k], b[k].t(), bias[k]), a[k] @ b[k] + bias[k], 1e-5)
            same(products.affine(a[k], b[k].t(), None), a[k] @ b[k], 1e-5)
            same(products.turned_product(a[k], other[k], torch.empty(5, 4)), wanted[k], 1e-5)
            same(products.turned_product(other[k], a[k], torch.empty(4, 5)), wanted[k].t(), 1e-5)
        same(products.products(a, b), a @ b, 1e-5)
        same(products.affine_of_rows(a, b.mT, bias), a @ b + bias[:, None], 1e-5)
        same(products.affine_of_rows(a, one, None), a @ one.mT, 1e-5)
        to, before = torch.empty(3, 5, 4), torch.randn(3, 5, 4)
        products.turned_products(a, other, to)
        same(to, wanted, 1e-5)
        products.descend(before, a, other, to)
        same(to, before - wanted, 1e-5)
    finally:
        products.LARGE, products.faster = large, faster
