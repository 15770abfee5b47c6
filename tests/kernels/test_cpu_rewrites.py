"""Networks that do less work are the same functions with the same gradients."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arno.core.layout import flatten
from arno.kernels.choose_kernel import choose, for_scoring, for_training
from arno.kernels.cpu_rewrites import Padded, Unpadded, Wide, lean
from arno.models.convolutional import ConvNet
from arno.tasks.classification import Classification


def network(inplace=False, padding=0, bias=True):
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(inplace), nn.Conv2d(32, 64, 3, padding=padding, bias=bias), nn.ReLU(inplace)]
    layers += [nn.MaxPool2d(2), nn.Conv2d(64, 64, (3, 2)), nn.ReLU(inplace), nn.MaxPool2d(2, 1), nn.Flatten()]
    return nn.Sequential(*layers, nn.LazyLinear(4)).double()


def batch():
    torch.manual_seed(2)
    x = torch.randn(5, 3, 12, 12, dtype=torch.float64)
    return x.contiguous(memory_format=torch.channels_last), torch.tensor([0, 1, 2, 3, 0])


@pytest.mark.parametrize("settings", [{}, {"inplace": True}, {"padding": (2, 1)}, {"bias": False}], ids=str)
def test_a_lean_network_has_the_same_values_and_gradients(settings):
    (x, y), given = batch(), network(**settings)
    given(x)  # fixes the lazy layer's shape
    changed = lean(deepcopy(given), avx512=False)
    assert [type(m).__name__ for m in changed][3:5] == ["MaxPool2d", "ReLU"]
    assert [type(m) is Wide for m in changed].count(True) == 2
    assert not any(type(m) is Wide for m in lean(deepcopy(given), avx512=True))
    losses = [F.cross_entropy(net(x), y) for net in (given, changed)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for p, q in zip(given.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-10, atol=1e-14)


def test_the_gradient_of_the_gradient_is_torchs():
    (x, y), given = batch(), network()
    given(x)
    found = []
    for net in (given, lean(deepcopy(given), avx512=False)):
        (g,) = torch.autograd.grad(F.cross_entropy(net(x), y), [net[2].weight], create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [net[0].weight])[0])
    assert torch.allclose(*found, rtol=1e-9, atol=1e-16)


class Skips(nn.Module):
    """Takes what ReLU leaves out of the middle of its sequence."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x):
        middle = self.block[:2](x)
        return middle.mean() + self.block[2](middle).mean()


def test_only_sequences_are_put_in_another_order():
    x, _ = batch()
    torch.manual_seed(3)
    own = Skips().double()
    assert torch.equal(lean(deepcopy(own))(x), own(x))
    nested = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), nn.Flatten()).double()
    changed = lean(deepcopy(nested))
    assert isinstance(changed[0][1], nn.MaxPool2d)
    assert torch.equal(changed(x), nested(x))


def test_what_does_not_suit_stays():
    odd = [nn.Conv2d(32, 64, 3, stride=2), nn.Conv2d(32, 64, 3, padding="same"), nn.Conv2d(32, 64, 1)]
    odd += [
        nn.Conv2d(64, 64, 3, groups=2),
        nn.Conv2d(16, 64, 3),
        nn.Conv2d(32, 64, 3, padding=1, padding_mode="circular"),
    ]
    net = nn.Sequential(*odd, nn.Tanh(), nn.MaxPool2d(2))
    assert [type(m) for m in lean(deepcopy(net), avx512=False)] == [type(m) for m in net]


@pytest.mark.parametrize(("filters", "padded"), [((6, 16), True), ((5, 3), True), ((8, 8), False)], ids=str)
def test_filters_of_zeros_change_nothing(filters, padded):
    torch.manual_seed(0)
    net = ConvNet((1, 20, 20), 4, filters=filters, kernel=3, padding=0, hidden=(9,), name="x").double()
    changed = lean(deepcopy(net), choose(net, (1, 20, 20), True).chain)
    assert [type(conv) for conv in changed.convs] == ([Padded, Unpadded] if padded else [nn.Conv2d] * 2)
    x, y, levels = torch.randn(7, 1, 20, 20, dtype=torch.float64), torch.arange(7) % 4, []
    outputs = net(x, levels)
    assert [level.shape[1] for level in levels] == [*filters, 9]
    assert torch.allclose(changed(x), outputs, rtol=1e-12)
    for out in (outputs, changed(x)):
        F.cross_entropy(out, y).backward()
    for p, q in zip(net.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-10, atol=1e-14)
    widths = []
    changed.convs[0].register_forward_hook(lambda layer, given, out: widths.append(out.shape[1]))
    changed(x)
    assert widths == [8]


def test_layers_with_hooks_stay_where_they_are():
    x, _ = batch()
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 2)).double()
    net[1].register_forward_hook(lambda layer, given, out: -out)
    for make in (for_training, for_scoring):
        kernel = make(deepcopy(net), (3, 12, 12), Classification(2), channels_last=True, x=x)
        kernel.w.copy_(flatten(net))
        assert torch.equal(kernel.outputs(x), net(x))
