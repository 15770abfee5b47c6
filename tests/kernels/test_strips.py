"""The written-out gradient of narrow convolutional networks is autograd's."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from arno.core.layout import flatten
from arno.kernels.choose_kernel import choose, for_scoring, for_training
from arno.kernels.kernel import Autograd
from arno.kernels.strips import FEW, suits
from arno.models.convolutional import ConvNet, lenet5, simple5layercnn
from arno.tasks.classification import Classification


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def both(net, x, y):
    """The two gradients, and the two losses."""
    net, task = net.double(), Classification(5)
    strips, plain = for_training(deepcopy(net), x.shape[1:], task, channels_last=True), Autograd(deepcopy(net), task)
    assert strips.name == "strips"
    strips.g.fill_(torch.nan)
    for kernel in (strips, plain):
        kernel.w.copy_(flatten(net))
    found = []
    for n in (len(x), 1, len(x)):  # a smaller batch in between
        losses = [kernel.gradient(x[:n], y[:n]) for kernel in (strips, plain)]
        found.append((*losses, strips.g.clone(), plain.g.clone()))
        for kernel in (strips, plain):
            kernel.w.data.sub_(plain.g, alpha=0.1)
    return found


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 20, 28)], ids=str)
def test_the_gradient_is_autograds(shape):
    torch.manual_seed(0)
    net, x, y = lenet5(shape, 5), last(torch.randn(7, *shape, dtype=torch.float64)), torch.randint(5, (7,))
    for loss, expected, written, automatic in both(net, x, y):
        assert torch.allclose(loss, expected, rtol=1e-12)
        assert torch.allclose(written, automatic, rtol=1e-9, atol=1e-13)


def test_logits_are_the_networks_own():
    torch.manual_seed(0)
    net, x = lenet5((1, 28, 28), 5).double(), last(torch.randn(2 * FEW + 3, 1, 28, 28, dtype=torch.float64))
    scorer = for_scoring(net, (1, 28, 28), Classification(5), channels_last=True)
    assert scorer.name == "strips"
    scorer.w.copy_(flatten(net))
    assert torch.allclose(scorer.outputs(x), net(x), rtol=1e-12, atol=1e-13)


def test_of_equal_pixels_the_first_is_the_largest():
    torch.manual_seed(0)
    net = ConvNet((1, 28, 28), 4, filters=(3, 5), kernel=5, padding=0, hidden=(6,), name="small")
    with torch.no_grad():
        for conv in net.convs:  # whole numbers: sums are exact in any order, and many are equal
            conv.weight.copy_(torch.randint(-1, 2, conv.weight.shape))
            conv.bias.copy_(torch.randint(-1, 2, conv.bias.shape))
    x, y = last(torch.randint(0, 2, (6, 1, 28, 28)).double()), torch.randint(4, (6,))
    _, _, written, automatic = both(net, x, y)[0]
    assert torch.allclose(written, automatic, rtol=1e-9, atol=1e-13)


def test_other_networks_are_left_to_autograd():
    class Derived(ConvNet):
        pass

    class Doubled(ConvNet):
        def forward(self, x, levels=None):
            return super().forward(2 * x, levels)

    def fits(net, shape=(1, 28, 28)):
        chain = choose(net, shape, True).chain
        return chain is not None and suits(net, chain, shape)

    def narrow(kind=ConvNet, filters=(6, 16), padding=0):
        return kind((1, 28, 28), 10, filters=filters, kernel=5, padding=padding, hidden=(), name="")

    assert fits(narrow())
    assert fits(narrow(Derived))  # what a network computes counts, not its class
    assert not fits(narrow(Doubled))
    assert not fits(narrow(filters=(6, 33)))
    assert not fits(narrow(padding=1))
    assert not fits(narrow(), (1, 29, 28))  # a row is left over by pooling
    assert not fits(simple5layercnn((3, 32, 32), 10), (3, 32, 32))
    assert not fits(nn.Sequential(nn.Conv2d(1, 4, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 3)))
