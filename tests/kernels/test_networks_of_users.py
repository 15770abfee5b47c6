"""Networks that users write, none of which the kernels were made for: equal to autograd, and computed as recorded."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arno.core.layout import flatten
from arno.kernels.checked_program import program_of
from arno.kernels.choose_kernel import choose, for_training
from arno.kernels.kernel import Autograd
from arno.kernels.program import Program
from arno.kernels.stacked import Batch, StackedProgram, stacked_program
from arno.tasks.classification import Classification

SAME = {torch.float32: 1e-5, torch.float64: 1e-10}


class Net(nn.Module):
    """Layers by name, and a function of them and of the input."""

    def __init__(self, computes, **layers):
        super().__init__()
        self.computes = computes
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.computes(self, x)


def weight(*shape):
    return nn.Parameter(0.3 * torch.randn(shape))


def linear(*sizes):
    return {f"l{i}": nn.Linear(*pair) for i, pair in enumerate(pairwise(sizes))}


def gated(net, x):
    g, h = torch.sigmoid(net.l0(x)), torch.tanh(net.other(x))
    return net.l1((1 - g) * h + 0.5 * g.pow(2) - h / 2)


def experts(net, x):
    of_each = torch.stack([each(x) for each in net.each], 1)
    return (net.gate(x).softmax(-1).unsqueeze(-1) * of_each).sum(1)


def normalised(net, x):
    h = net.l0(x)
    h = (h - h.mean(-1, keepdim=True)) / torch.sqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-5)
    return net.l1(h / (1 + h.std(1, keepdim=True)))


def on_a_sphere(net, x):
    return net.scale * net.l1(F.normalize(net.l0(x)))


def leaky(net, x):
    h = net.l0(x)
    return net.l1(torch.where(h > 0, h, 0.1 * h).clamp(-2, 3).clamp(max=2.5))


def without_padding(net, x):
    there = (x != 0).to(net.l0.weight.dtype).unsqueeze(-1)
    return net.l0((net.table(x) * there).sum(1) / there.sum(1).clamp(min=1))


def attends(net, x):
    h = net.table(x) + net.places(torch.arange(x.shape[1]))
    q, k, v = net.all(net.norm(h)).chunk(3, -1)
    free = torch.tril(torch.ones(x.shape[1], x.shape[1]))
    return net.l0((h + (q @ k.mT / 2).masked_fill(free == 0, -torch.inf).softmax(-1) @ v)[:, -1])


def attends_to_tokens(net, x):
    h = net.table(x)
    return net.l0(((h @ h.mT).masked_fill((x == 0)[:, None], -1e9).softmax(-1) @ h).mean(1))


def vision(net, x):
    h = net.patches(x).flatten(2).transpose(1, 2)
    h = torch.cat([net.first.expand(len(x), -1, -1), h], 1) + net.places
    return net.l0(net.blocks(h)[:, 0])


def mixes(net, x):
    h = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 16, 12)
    h = net.l0(h)
    return net.l1((h + net.mixed(net.norm(h).transpose(1, 2)).transpose(1, 2)).amax(1))


def einsums(net, x):
    return torch.einsum("nhk,hkc->nc", torch.tanh(torch.einsum("nd,dhk->nhk", x, net.w)), net.v) + net.b


def in_place(net, x):
    h = F.relu(net.l0(x), inplace=True)
    y = net.l1(h)
    y += h
    return net.l2(F.silu(y, inplace=True))


def residual(net, x):
    h = net.l0(x)
    for block in net.blocks:
        h = h + block(h)
    return net.l1(F.gelu(h))


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))


def encoder(**more):
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **more)


def table(**more):
    return nn.Embedding(9, 4, **more)


DENSE = {
    "gated": lambda: Net(gated, **linear(6, 8, 3), other=nn.Linear(6, 8)),
    "experts": lambda: Net(experts, gate=nn.Linear(6, 2), each=nn.ModuleList(nn.Linear(6, 3) for _ in range(2))),
    "maxout": lambda: Net(
        lambda net, x: net.l1(net.l0(x).view(-1, 4, 2).max(-1).values), **linear(6, 8), l1=nn.Linear(4, 3)
    ),
    "log sum exp": lambda: Net(lambda net, x: net.l0(x).view(-1, 3, 4).logsumexp(-1), **linear(6, 12)),
    "normalised": lambda: Net(normalised, **linear(6, 8, 3)),
    "on a sphere": lambda: Net(on_a_sphere, **linear(6, 8, 3), scale=nn.Parameter(torch.tensor(2.0))),
    "leaky": lambda: Net(leaky, **linear(6, 8, 3)),
    "einsum": lambda: Net(einsums, w=weight(6, 2, 4), v=weight(2, 4, 3), b=weight(3)),
    "in place": lambda: Net(in_place, **linear(6, 8, 8, 3)),
    "residual": lambda: Net(
        residual, **linear(6, 8), blocks=nn.ModuleList(block(8) for _ in range(2)), l1=nn.Linear(8, 3)
    ),
    "products": lambda: Net(
        lambda net, x: (x @ net.w + net.b).relu() @ net.v, w=weight(6, 8), b=weight(8), v=weight(8, 3)
    ),
    "PReLU": lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 8), nn.PReLU(8), nn.Linear(8, 3)),
    "GLU": lambda: nn.Sequential(nn.Linear(6, 8), nn.GLU(), nn.Linear(4, 3)),
    "RMSNorm": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.RMSNorm(8), nn.Hardshrink(), nn.Linear(8, 3), nn.LogSoftmax(1)
    ),
    "alpha dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(8, 3)),
}
ROWS = {
    "encoder": lambda: nn.Sequential(encoder(dropout=0.1, norm_first=True), nn.Flatten(), nn.Linear(40, 3)),
    "attention": lambda: Net(
        lambda net, x: net.l0(net.a(x, x, x)[0].mean(1)),
        a=nn.MultiheadAttention(8, 2, 0.1, batch_first=True),
        **linear(8, 3),
    ),
    "softmax of axes": lambda: nn.Sequential(
        nn.Softmax(1), nn.Linear(8, 8), nn.Softmax(2), nn.Flatten(), nn.Linear(40, 3)
    ),
}
TOKENS = {
    "mean": lambda: Net(lambda net, x: net.l0(net.table(x).mean(1)), table=table(), **linear(4, 3)),
    "padding": lambda: Net(lambda net, x: net.l0(net.table(x).mean(1)), table=table(padding_idx=2), **linear(4, 3)),
    "without padding": lambda: Net(without_padding, table=table(), **linear(4, 3)),
    "causal": lambda: Net(
        attends, table=table(), places=nn.Embedding(7, 4), all=nn.Linear(4, 12), norm=nn.LayerNorm(4), **linear(4, 3)
    ),
    "tokens as mask": lambda: Net(attends_to_tokens, table=table(), **linear(4, 3)),
}
IMAGES = {
    "vision": lambda: Net(
        vision,
        patches=nn.Conv2d(3, 8, 4, 4),
        first=weight(1, 1, 8),
        places=weight(1, 5, 8),
        blocks=encoder(dropout=0.0),
        **linear(8, 3),
    ),
    "mixer": lambda: Net(mixes, l0=nn.Linear(12, 8), norm=nn.LayerNorm(8), mixed=nn.Linear(16, 16), l1=nn.Linear(8, 3)),
}
ALL = {
    **{name: (make, (6,)) for name, make in DENSE.items()},
    **{name: (make, (5, 8)) for name, make in ROWS.items()},
    **{f"tokens: {name}": (make, (7,)) for name, make in TOKENS.items()},
    **{name: (make, (3, 8, 8)) for name, make in IMAGES.items()},
}


def inputs(name, shape, dtype, n=6):
    return torch.randint(9, (n, *shape)) if name.startswith("tokens") else torch.randn(n, *shape, dtype=dtype)


def near(a, b, times=1):
    return float((a - b).abs().max()) <= times * SAME[b.dtype] * max(float(b.abs().max()), 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_one_model_and_many_have_the_gradient_of_autograd(name, dtype):
    make, shape = ALL[name]
    torch.manual_seed(3)
    module, x, y, task = make().to(dtype).train(), inputs(name, shape, dtype), torch.arange(6) % 3, Classification(3)
    choice = choose(module, shape, None, x)
    assert (choice.name, choice.small, choice.channels_last) == ("program", True, False), choice.reason
    kernel, plain = for_training(deepcopy(module), shape, task, False, x), Autograd(deepcopy(module), task)
    for n in (6, 1):
        for each in (kernel, plain):
            each.w.copy_(flatten(module))
        kernel.g.fill_(torch.nan)
        torch.manual_seed(4)
        with torch.inference_mode():
            loss = kernel.gradient(x[:n], y[:n])
        torch.manual_seed(4)
        assert near(loss, plain.gradient(x[:n], y[:n]))
        assert near(kernel.g, plain.g)
    stack = stacked_program(module, task, x)
    assert isinstance(stack, StackedProgram), stack
    many(stack, module, x, y)


def many(stack, module, x, y):
    """Three models at once, the last with fewer samples, are three models alone."""
    sizes, task = (6, 6, 4), Classification(3)
    models = torch.stack([flatten(module) * (1 + 0.1 * k) for k in range(3)])
    w = [piece.contiguous() for piece in models.split(stack.sizes, 1)]
    g = [torch.full_like(piece, torch.nan) for piece in w]
    shares = torch.stack([(torch.arange(6) < n).to(models) / n for n in sizes])
    streams = [torch.Generator().manual_seed(k) for k in range(3)]
    with torch.no_grad():
        given = Batch(x.expand(3, *x.shape), y.expand(3, -1), shares, sizes, streams)
        stack.gradient(stack.views(w), stack.views(g), given)
    for k, n in enumerate(sizes):
        plain = Autograd(deepcopy(module), task)
        plain.w.copy_(models[k])
        torch.manual_seed(k)
        plain.gradient(x[:n], y[:n])
        assert near(torch.cat([piece[k] for piece in g]), plain.g, times=10)


def crosses(net, x):
    h = F.relu(net.a(x), inplace=True)
    d = F.relu(net.b(F.max_pool2d(h, 2)))
    return net.l0(net.c(torch.cat([h, net.up(d)], 1)).mean((2, 3)))


def excites(net, x):
    h = F.hardswish(net.a(x))
    return net.l0((h * torch.sigmoid(net.f(h.mean((2, 3))))[:, :, None, None]).amax((2, 3)))


CONVOLUTIONS = {
    "depthwise": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Conv2d(4, 8, 3, groups=4),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 3),
    ),
    "one axis": lambda: nn.Sequential(
        nn.Flatten(2),
        nn.Conv1d(3, 4, 5, dilation=2),
        nn.GELU(),
        nn.MaxPool1d(2),
        nn.AdaptiveAvgPool1d(5),
        nn.Flatten(),
        nn.Linear(20, 3),
    ),
    "transposed": lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 4, 2, 2), nn.LeakyReLU(), nn.Conv2d(4, 2, 5, 3), nn.Flatten(), nn.Linear(32, 3)
    ),
    "crossing": lambda: Net(
        crosses,
        a=nn.Conv2d(3, 4, 3, padding=1),
        b=nn.Conv2d(4, 6, 3, padding=1),
        up=nn.ConvTranspose2d(6, 4, 2, 2),
        c=nn.Conv2d(8, 5, 1),
        **linear(5, 3),
    ),
    "excited": lambda: Net(excites, a=nn.Conv2d(3, 4, 3), f=nn.Linear(4, 4), **linear(4, 3)),
    "BatchNorm": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [None, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_the_gradient_of_autograd(name, layout, dtype):
    torch.manual_seed(3)
    module, x, task = CONVOLUTIONS[name]().to(dtype).train(), torch.randn(6, 3, 8, 8, dtype=dtype), Classification(3)
    choice, y = choose(module, (3, 8, 8), layout, x), torch.arange(6) % 3
    assert not choice.small
    assert choice.reason
    kernel, plain = for_training(deepcopy(module), (3, 8, 8), task, choice.channels_last, x), Autograd(module, task)
    plain.w.copy_(torch.randn_like(plain.w) / 4)
    kernel.w.copy_(plain.w)
    inputs = x.contiguous(memory_format=torch.channels_last) if choice.channels_last else x
    with torch.inference_mode(kernel.written_out):
        loss = kernel.gradient(inputs, y)
    assert near(loss, plain.gradient(x, y))
    assert near(kernel.g, plain.g)


def functional(net, x):
    h = F.max_pool2d(F.conv2d(x, net.w, net.b).relu(), 2)
    return net.l0(h.flatten(1))


def test_the_layout_of_images_follows_from_what_is_computed():
    net = Net(functional, w=weight(4, 3, 3, 3), b=weight(4), **linear(36, 3))
    assert choose(net, (3, 8, 8), None).channels_last
    patches = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(), nn.Linear(16, 3))
    assert not choose(patches, (3, 8, 8), None).channels_last
    assert choose(patches, (3, 9, 9), None).channels_last
    grouped = Net(lambda net, x: net.l0(F.group_norm(net.c(x), 2).flatten(1)), c=nn.Conv2d(3, 4, 3), **linear(144, 3))
    assert not choose(grouped, (3, 8, 8), None).channels_last


def test_convolutions_that_are_no_chain_are_left_to_autograd_unchecked(monkeypatch):
    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Linear(4 * 36, 3)

        def forward(self, x):
            z = torch.relu(self.norm(self.first(x)))
            return self.head((z + x).flatten(1))

    def compare(*given):
        raise AssertionError("a program was checked that is not used")

    monkeypatch.setattr("arno.kernels.checked_program._compare", compare)
    choice = choose(Shortcut(), (1, 6, 6), None)
    assert (choice.name, choice.channels_last, choice.graph) == ("autograd", False, None)
    assert "convolutions" in choice.reason
    assert program_of(nn.Linear(6, 3), torch.randn(2, 6)) == (None, "its recording failed: AssertionError")


def by_deviation(net, x):
    h = net.l0(x)
    return net.l1(h / (1 + h.std(1, keepdim=True)))


def test_numbers_that_are_all_equal_have_the_gradient_of_autograd():
    torch.manual_seed(3)
    net = Net(by_deviation, l0=nn.Linear(6, 8, bias=False), l1=nn.Linear(8, 3))
    x, y, task = torch.randn(4, 6).index_fill(0, torch.tensor([1]), 0), torch.arange(4) % 3, Classification(3)
    kernel, plain = for_training(deepcopy(net), (6,), task, False), Autograd(deepcopy(net), task)
    assert kernel.name == "program"
    for each in (kernel, plain):
        each.w.copy_(flatten(net))
        each.gradient(x, y)
    assert near(kernel.g, plain.g)


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("first", [nn.ReLU, nn.Identity])
def test_the_first_of_equal_numbers_in_a_window_gets_the_gradient(first, side):
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 4, 1, bias=False), first(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)]
    net, x, y = nn.Sequential(*layers), torch.randint(-1, 2, (40, 2, side, side)).float(), torch.arange(40) % 3
    kernel, plain = (make(deepcopy(net), Classification(3)) for make in (written, Autograd))
    with torch.no_grad():
        net[0].weight.copy_(torch.randint(-1, 2, (4, 2, 1, 1)))
    for each in (kernel, plain):
        each.w.copy_(flatten(net))
        each.gradient(x, y)
    assert near(kernel.g, plain.g)


def written(net, task):
    kernel = for_training(net, (2, 8, 8), task, channels_last=False)
    assert kernel.name == "program"
    return kernel


def test_relu_moves_behind_the_pooling_that_alone_reads_it():
    both = Net(
        lambda net, x: net.l0((F.max_pool2d(h := net.c(x).relu(), 2) + h[:, :, ::2, ::2]).flatten(1)),
        c=nn.Conv2d(2, 4, 3, padding=1),
        **linear(64, 3),
    )
    alone = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))
    found = []
    for net in (both, alone):
        graph, _ = program_of(net, torch.randn(3, 2, 8, 8))
        program = Program(graph, [name for name, _ in net.named_parameters()])
        found.append([step.rule.step.name for step in program.steps][:3])
    assert found == [
        ["convolution", "relu", "max_pool2d_with_indices"],
        ["convolution", "max_pool2d_with_indices", "relu"],
    ]


def test_pooling_in_the_default_layout_has_a_program():
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3))
    assert choose(net, (1, 6, 6), None).name == "program"
    assert choose(nn.Sequential(layers[0], nn.Sigmoid(), layers[3], *net[4:]), (1, 6, 6), None).name == "autograd"
