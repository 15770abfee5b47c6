"""What a network computes is recorded; its program has the outputs and gradients of autograd, or is not used."""

import random
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from arno.core.layout import flatten
from arno.kernels.checked_program import Written, program_of
from arno.kernels.choose_kernel import choose, for_training
from arno.kernels.dense import Dense
from arno.kernels.kernel import Autograd
from arno.kernels.program import with_fewer_views, with_linear
from arno.kernels.record import record
from arno.kernels.rules.shapes import RESHAPES
from arno.kernels.stacked import Batch, StackedProgram, refusal, stacked_program
from arno.tasks.classification import Classification
from arno.tasks.regression import Regression

SAME = {torch.float32: 1e-5, torch.float64: 1e-10}
POINTS = [
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.Softplus,
    nn.Hardtanh,
    nn.Mish,
]
POINTS += [nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Identity, nn.CELU]


def near(a, b, times=1):
    return float((a - b).abs().max()) <= times * SAME[b.dtype] * max(float(b.abs().max()), 1e-3)


class Block(nn.Module):
    """Layers with a sum around them."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


class Attends(nn.Module):
    """Attention over rows of numbers, written out or torch's."""

    def __init__(self, width, own):
        super().__init__()
        self.norm, self.own = nn.LayerNorm(width), own
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.all(self.norm(x)).view(n, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        if self.own:
            z = (q @ k.transpose(-1, -2) / width**0.5).softmax(-1) @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(z.transpose(1, 2).reshape(n, length, width))


@st.composite
def networks(draw):
    """A network over known layers, and the shape of its inputs."""
    point = lambda: draw(st.sampled_from(POINTS))()  # noqa: E731
    width, some = draw(st.integers(2, 9)), st.booleans()
    kind = draw(st.sampled_from(["vectors", "images", "rows"]))
    if kind == "vectors":
        layers = [nn.Linear(6, width, bias=draw(some))]
        for _ in range(draw(st.integers(0, 3))):
            inner = [nn.Linear(width, width, bias=draw(some)), point()]
            inner += [nn.LayerNorm(width, elementwise_affine=draw(some))] if draw(some) else []
            inner += [nn.Dropout(draw(st.sampled_from([0.1, 0.5])))] if draw(some) else []
            layers += [Block(*inner)] if draw(some) else inner
        return nn.Sequential(*layers, point(), nn.Linear(width, 3)), (6,)
    if kind == "images":
        channels = 4 * draw(st.integers(1, 2))
        layers = [
            nn.Conv2d(2, channels, draw(st.sampled_from([1, 3])), padding=draw(st.integers(0, 1)), bias=draw(some))
        ]
        layers += [nn.GroupNorm(draw(st.sampled_from([1, 2, 4])), channels)] if draw(some) else []
        layers += [point(), draw(st.sampled_from([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1)]))]
        layers += [Block(nn.Conv2d(channels, channels, 3, padding=1), point())] if draw(some) else []
        layers += [nn.Dropout2d(0.3)] if draw(some) else []
        layers += [nn.Conv2d(channels, channels, 3, 2, 1)] if draw(some) else []
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)), (2, 8, 9)
    layers = [nn.Linear(5, 4), Attends(4, draw(some)), point(), nn.LayerNorm(4)]
    layers += [nn.Dropout(0.2)] if draw(some) else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 3)), (6, 5)


def tasked(kind, n, dtype):
    if kind == "classes":
        return Classification(3), torch.randint(3, (n,))
    return Regression(torch.zeros(3), torch.ones(3)), torch.randn(n, 3, dtype=dtype)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(networks(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from(["classes", "numbers"]))
def test_a_program_has_the_gradient_of_autograd(drawn, dtype, kind):
    module, shape = drawn
    torch.manual_seed(1)
    module, x = module.to(dtype).train(), torch.randn(5, *shape, dtype=dtype)
    task, y = tasked(kind, 5, dtype)
    graph, why = program_of(module, x)
    assert graph is not None, why
    written, plain = Written(deepcopy(module), task, graph), Autograd(deepcopy(module), task)
    for kernel in (written, plain):
        kernel.w.copy_(flatten(module))
    for n in (5, 2):
        written.g.fill_(torch.nan)
        torch.manual_seed(2)
        with torch.inference_mode():
            loss = written.gradient(x[:n], y[:n])
        torch.manual_seed(2)
        assert near(loss, plain.gradient(x[:n], y[:n]))
        assert near(written.g, plain.g)
    if len(shape) < 3:
        of_many(module, task, x, y)


def of_many(module, task, x, y):
    """Three models at once, the last with fewer samples, are three models alone, with the same draws."""
    stack = stacked_program(module, task, x)
    assert isinstance(stack, StackedProgram), stack
    sizes, one = (5, 5, 3), flatten(module)
    models = torch.stack([one * (1 + 0.1 * k) for k in range(3)])
    weight = torch.stack([(torch.arange(5) < n).to(x) / n for n in sizes])
    streams = [torch.Generator().manual_seed(k) for k in range(3)]
    w = [piece.contiguous() for piece in models.split(stack.sizes, 1)]
    g = [torch.full_like(piece, torch.nan) for piece in w]
    with torch.no_grad():
        given = Batch(x.expand(3, *x.shape), y.expand(3, *y.shape), weight, sizes, streams)
        losses = stack.gradient(stack.views(w), stack.views(g), given)
    for k, n in enumerate(sizes):
        plain = Autograd(deepcopy(module), task)
        plain.w.copy_(models[k])
        torch.manual_seed(k)
        assert near(losses[k].to(x), plain.gradient(x[:n], y[:n]))
        # LayerNorm of nearly equal numbers enlarges rounding errors
        assert near(torch.cat([piece[k] for piece in g]), plain.g, times=10)


class Views(nn.Module):
    """New shapes in a row, around linear layers, read twice, and of the outputs."""

    def __init__(self, twice):
        super().__init__()
        self.a, self.b, self.c, self.twice = nn.Linear(4, 6), nn.Linear(3, 5), nn.Linear(10, 3), twice

    def forward(self, x):
        n = len(x)
        wide = x.view(n, 12).view(n * 3, 4)
        h = self.a(wide).view(n, 3, 6).unsqueeze(1)
        h = torch.relu(self.b(h.reshape(n, 1, 6, 3)).squeeze(1))
        h = h.view(n, 3, 10)
        y = self.c(h)
        return (y.view(n, 9) + y.reshape(n, 9).tanh() * (wide.view(n, 12).sum(1, True) if self.twice else 1)).view(n, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("twice", [False, True])
def test_views_around_linear_layers(dtype, twice):
    torch.manual_seed(0)
    module, x = Views(twice).to(dtype), torch.randn(5, 2, 6, dtype=dtype)
    of_many(module, Classification(9), x, torch.randint(9, (5,)))
    operations = with_linear(record(module, x).operations, {name for name, _ in module.named_parameters()})
    fewer = with_fewer_views(operations, (len(operations) - 1, 0))
    counts = [sum(step.name in RESHAPES for step in some) for some in (operations, fewer)]
    assert 2 * counts[1] <= counts[0]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("n", [2, 3, 40])
def test_the_first_step_of_many_clients_starts_from_one_model(own, n):
    torch.manual_seed(0)
    rows = 4
    module = nn.Sequential(nn.Linear(5, 8), Attends(8, own), nn.GELU(), nn.LayerNorm(8), nn.Flatten(), nn.Linear(48, 3))
    task, x, y = Classification(3), torch.randn(rows, n, 6, 5), torch.randint(3, (rows, n))
    stack, one, rate = stacked_program(module, task, x[0]), flatten(module), torch.full((rows, 1), 0.1)
    w = [piece.expand(rows, -1) for piece in one.split(stack.sizes)]
    to = [torch.full_like(piece, torch.nan).contiguous() for piece in w]
    with torch.no_grad():
        given = Batch(x, y, torch.full((rows, n), 1 / n), (n,) * rows)
        stack.descend(stack.views(w), stack.views(to), given, rate)
    for k in range(rows):
        plain = Autograd(deepcopy(module), task)
        plain.w.copy_(one)
        plain.gradient(x[k], y[k])
        assert near(torch.cat([piece[k] for piece in to]), one - 0.1 * plain.g)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(6, 6), nn.Linear(6, 3), 0
        self.scale, self.log, self.random = torch.ones(1), [], random.Random(0)


class Viewed(Body):
    def forward(self, x):
        return self.b(F.relu(self.a(x.view(x.size(0), -1))))


class Reshaped(Body):
    def forward(self, x):
        batch, *_ = x.shape
        return F.linear(self.a(x.reshape(batch, -1)).relu_(), self.b.weight, self.b.bias)


class Asks(Body):
    def forward(self, x):
        if x.ndim > 2:
            x = torch.flatten(x, 1)
        return self.b(self.a(x).clamp_min(0) if len(x) == 0 else torch.relu(self.a(x)))


@pytest.mark.parametrize("kind", [Viewed, Reshaped, Asks])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_it_does_not_matter_how_a_chain_is_written(kind, shape):
    assert choose(kind(), shape, channels_last=False).name == "dense"


class Lenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(self.c1(x).relu(), (2, 2))
        x = F.max_pool2d(F.relu(self.c2(x), inplace=True), 2, stride=2)
        x = x.view(x.size(0), 16 * 4 * 4)
        return self.f3(F.relu(self.f2(F.relu(self.f1(x)))))


def test_a_lenet_is_a_lenet():
    assert choose(Lenet(), (1, 28, 28), channels_last=True).name == "strips"


# Networks that compute something else than their operations say


class Counts(Body):
    def forward(self, x):
        self.calls += 1
        return self.b(torch.relu(self.a(x)))


class Keeps(Body):
    def forward(self, x):
        self.log.append(h := self.a(x))
        return self.b(torch.relu(h))


class Skips(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(h if random.random() < 0.001 else torch.relu(h))


class SkipsAlone(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(h if self.random.random() < 0.001 else torch.relu(h))


DICE = np.random.default_rng(0)


class SkipsByNumpy(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(h if DICE.random() < 0.001 else torch.relu(h))


class ScalesItself(Body):
    def forward(self, x):
        self.scale.mul_(0.9)
        return self.b(torch.relu(self.a(x * self.scale)))


class Looks(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(torch.relu(h) if float(h.mean()) < 1e9 else h)


class AsNumpy(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(torch.relu(h) + torch.from_numpy(h.detach().numpy()))


class InPlace(Body):
    def forward(self, x):
        h = self.a(x)
        first = h[:, :1]
        h.relu_()
        return self.b(h + first)


class ChangesInput(Body):
    def forward(self, x):
        return self.b(torch.relu(self.a(x.mul_(2))))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.relu(x)

    @staticmethod
    def backward(ctx, delta):
        return delta


class StraightThrough(Body):
    def forward(self, x):
        return self.b(Straight.apply(self.a(x)))


class NoGradient(Body):
    def forward(self, x):
        with torch.no_grad():
            h = self.a(x)
        return self.b(torch.relu(h))


class HooksAlong(Body):
    def forward(self, x):
        h = self.a(x)
        h.register_hook(lambda delta: 2 * delta)
        return self.b(torch.relu(h))


class Noisy(Body):
    def forward(self, x):
        return self.b(torch.relu(self.a(x + torch.randn_like(x))))


class Autocast(Body):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.b(torch.relu(self.a(x))).float()


class Pair(Body):
    def forward(self, x):
        return self.b(self.a(x)), x


class Normed(Body):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.a)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Whole(Body):
    """Every sample depends on all samples of the batch."""

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.relu(h - h.mean(0)))


class Lists(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(h if h.abs().max().tolist() > 1e3 else torch.relu(h))


class ReadsByNumpy(Body):
    def forward(self, x):
        return self.b(self.a(x) if np.asarray(x).max() > 1e3 else torch.relu(self.a(x)))


class ByData(Body):
    def forward(self, x):
        return self.b(torch.relu(self.a(x) / self.a.weight.data.norm()))


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, delta):
        return delta.clamp(-1e3, 1e3)


class Clips(Body):
    def forward(self, x):
        return self.b(torch.relu(Clip.apply(self.a(x))))


class ClipsByHook(Body):
    def forward(self, x):
        h = self.a(x)
        h.register_hook(lambda delta: delta.clamp(-1e3, 1e3))
        return self.b(torch.relu(h))


class OwnStream(Body):
    def forward(self, x):
        h = self.a(x)
        return self.b(h * torch.bernoulli(torch.full_like(h, 0.5), generator=STREAM))


STREAM = torch.Generator()


class CountsInTheClass(Body):
    calls_of_all = 0

    def forward(self, x):
        type(self).calls_of_all += 1
        return self.b(self.a(x) if self.calls_of_all > 10_000 else torch.relu(self.a(x)))


def coin():
    return DICE.random()


class SkipsByAFunction(Body):
    def forward(self, x):
        return self.b(self.a(x) if coin() > 0.9999 else torch.relu(self.a(x)))


class SkipsByAMethod(Body):
    def coin(self):
        return DICE.random()

    def forward(self, x):
        return self.b(self.a(x) if self.coin() > 0.9999 else torch.relu(self.a(x)))


def turns():
    yield from range(10)


TURNS = turns()


class Iterates(Body):
    def forward(self, x):
        return self.b(self.a(x) if next(TURNS, 0) > 100 else torch.relu(self.a(x)))


class Buffered(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.rand(6))

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) * self.mask)


def tied():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3))
    net[2].weight = net[0].weight
    return net


def hooked():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    net[1].register_full_backward_hook(lambda layer, below, above: None)
    return net


def frozen():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    net[0].requires_grad_(False)
    return net


def pruned():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    net[0].weight.register_hook(lambda delta: delta * 0)
    return net


OTHERS = [Counts, Keeps, Skips, SkipsAlone, SkipsByNumpy, ScalesItself, Looks, AsNumpy, InPlace, ChangesInput]
OTHERS += [Lists, ReadsByNumpy, ByData, Clips, ClipsByHook, OwnStream, CountsInTheClass, SkipsByAFunction]
OTHERS += [SkipsByAMethod, Iterates, Buffered]
OTHERS += [StraightThrough, NoGradient, HooksAlong, Noisy, Autocast, Pair, tied, hooked, frozen, pruned]


@pytest.mark.parametrize("make", OTHERS)
def test_a_network_that_is_more_than_its_operations_runs_as_it_is(make):
    module = make()
    before = random.getstate(), torch.get_rng_state()
    choice = choose(module, (6,), channels_last=False)
    assert choice.name == "autograd"
    assert choice.reason.startswith("the network runs as it is: ")
    assert torch.equal(torch.get_rng_state(), before[1])
    assert random.getstate() == before[0]
    if make not in (Pair, pruned):  # a copy of a parameter has no hooks
        task = Classification(3)
        assert type(for_training(deepcopy(module), (6,), task, channels_last=False)) is Autograd


def test_weight_norm_is_computed_as_it_is_written():
    assert choose(Normed(), (6,), channels_last=False).name in ("program", "autograd")


def test_samples_that_depend_on_each_other_are_not_filled_up():
    module, x = Whole(), torch.randn(4, 6)
    assert choose(module, (6,), channels_last=False).name == "program"
    assert stacked_program(module, Classification(3), x) == "its samples depend on each other"


class ByCount(Body):
    """Another factor on large batches."""

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) * (1.0 if len(x) < 10 else 2.0))


def test_a_number_that_depends_on_the_batch_is_seen():
    module, x = ByCount(), torch.randn(12, 6)
    task, y = Classification(3), torch.arange(12) % 3
    kernel, plain = for_training(deepcopy(module), (6,), task, False), Autograd(deepcopy(module), task)
    assert type(kernel) is Written
    for each in (kernel, plain):
        each.w.copy_(flatten(module))
    for n in (9, 12):
        assert near(kernel.gradient(x[:n], y[:n]), plain.gradient(x[:n], y[:n]))
        assert near(kernel.g, plain.g)
    stack = stacked_program(module, task, x)
    assert stack.usual(9)
    assert not stack.usual(12)


class Chain(nn.Module):
    """A perceptron that is told of large batches in one of several ways."""

    def __init__(self, large):
        super().__init__()
        self.a, self.b, self.large = nn.Linear(6, 5), nn.Linear(5, 3), large

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) if self.large(x) else torch.relu(self.a(x)))


LARGE = {
    "len": lambda x: len(x) > 9,
    "shape": lambda x: x.shape[0] > 9,
    "size": lambda x: x.size(0) > 9,
    "numel": lambda x: x.numel() > 54,
    "rows": lambda x: sum(1 for _ in x) > 9,
    "unpacked": lambda x: len([*x]) > 9,
    "text": lambda x: str(x).count("],") >= 9,
    "never": lambda x: False,
}


@pytest.mark.parametrize("how", LARGE)
def test_a_chain_that_knows_the_number_of_samples_is_recorded_on_every_number(how, monkeypatch):
    module, x = Chain(LARGE[how]), torch.randn(12, 6)
    task, y = Classification(3), torch.arange(12) % 3
    kernel, plain = for_training(deepcopy(module), (6,), task, False), Autograd(deepcopy(module), task)
    for each in (kernel, plain):
        each.w.copy_(flatten(module))
    asked = []
    monkeypatch.setattr("arno.kernels.kernel.record", lambda module, x: asked.append(len(x)) or record(module, x))
    for n in (9, 12, 5, 12, 1):
        assert near(kernel.gradient(x[:n], y[:n]), plain.gradient(x[:n], y[:n]))
        assert near(kernel.g, plain.g)
    if how == "never":
        assert type(kernel) is Dense
        assert asked == [2, 1]
    elif type(kernel) is Dense:
        assert asked == [2, 9, 12, 5, 1]


def test_vmap_refuses_samples_that_depend_on_each_other():
    y = torch.tensor([0, 1])
    assert refusal(Whole(), Classification(3), torch.randn(2, 6), y) == "its samples depend on each other"
    assert refusal(Viewed(), Classification(3), torch.randn(2, 6), y) == ""


def test_recording_leaves_the_network_and_the_streams_alone():
    module, x = nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 3)), torch.randn(4, 6)
    before, stream = deepcopy(module.state_dict()), torch.get_rng_state()
    program_of(module, x)
    stacked_program(module, Classification(3), x)
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))
    assert all(p.grad is None for p in module.parameters())


class Placed(nn.Module):
    """Tokens with places, a mask and a row of constants: tensors that are the same for all models."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.out = nn.Embedding(9, 4), nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        h = torch.cat([h, torch.ones(len(x), 1, 4)], 1)
        free = torch.tril(torch.ones(7, 7)) == 0
        h = (h @ h.transpose(1, 2)).masked_fill(free, -torch.inf).softmax(-1) @ h
        return self.out(h.mean(1))


def test_constants_are_the_same_for_all_models():
    torch.manual_seed(0)
    module, x = Placed(), torch.randint(9, (5, 6))
    assert choose(module, (6,), channels_last=False, x=x).name == "program"
    stack, task, y = stacked_program(module, Classification(3), x), Classification(3), torch.arange(len(x)) % 3
    assert isinstance(stack, StackedProgram), stack
    models = torch.stack([flatten(module) * (1 + 0.1 * k) for k in range(3)])
    w = [piece.contiguous() for piece in models.split(stack.sizes, 1)]
    g = [torch.full_like(piece, torch.nan) for piece in w]
    weight = torch.full((3, len(x)), 1 / len(x))
    with torch.no_grad():
        given = Batch(x.expand(3, *x.shape), y.expand(3, -1), weight, (len(x),) * 3)
        stack.gradient(stack.views(w), stack.views(g), given)
    for k in range(3):
        plain = Autograd(deepcopy(module), task)
        plain.w.copy_(models[k])
        plain.gradient(x, y)
        assert near(torch.cat([piece[k] for piece in g]), plain.g)
