"""The written-out gradient of narrow convolutional networks is autograd's."""

import pytest
import torch
from torch.nn import functional as F

from arno.core.layout import bind, flatten
from arno.kernels.strips import FEW, ConvBackprop, suits
from arno.models.convolutional import ConvNet, lenet5, simple5layercnn


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def both(net, x, y):
    """The two gradients, and the two losses."""
    w = flatten(net).double()
    written, automatic = torch.full_like(w, torch.nan), torch.zeros_like(w)
    net = net.double()
    backprop = ConvBackprop(net, x.shape[1:], w, written)
    bind(net, w, automatic)
    found = []
    for n in (len(x), 1, len(x)):  # a smaller batch in between
        automatic.zero_()
        loss = F.cross_entropy(net(x[:n]), y[:n])
        loss.backward()
        found.append((backprop(x[:n], y[:n]), loss.detach(), written.clone(), automatic.clone()))
        w.sub_(written, alpha=0.1)
    return found


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 20, 28)], ids=str)
def test_the_gradient_is_autograds(shape):
    torch.manual_seed(0)
    net, x, y = lenet5(shape, 5), last(torch.randn(7, *shape, dtype=torch.float64)), torch.randint(5, (7,))
    assert suits(net, shape)
    for loss, expected, written, automatic in both(net, x, y):
        assert torch.allclose(loss, expected, rtol=1e-12)
        assert torch.allclose(written, automatic, rtol=1e-9, atol=1e-13)


def test_logits_are_the_networks_own():
    torch.manual_seed(0)
    net, x = lenet5((1, 28, 28), 5).double(), last(torch.randn(2 * FEW + 3, 1, 28, 28, dtype=torch.float64))
    logits = ConvBackprop(net, (1, 28, 28), flatten(net)).logits(x)
    assert torch.allclose(logits, net(x), rtol=1e-12, atol=1e-13)


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

    def narrow(kind=ConvNet, filters=(6, 16), padding=0):
        return kind((1, 28, 28), 10, filters=filters, kernel=5, padding=padding, hidden=(), name="")

    assert suits(narrow(), (1, 28, 28))
    assert not suits(narrow(Derived), (1, 28, 28))
    assert not suits(narrow(filters=(6, 33)), (1, 28, 28))
    assert not suits(narrow(padding=1), (1, 28, 28))
    assert not suits(narrow(), (1, 29, 28))  # a row is left over by pooling
    assert not suits(simple5layercnn((3, 32, 32), 10), (3, 32, 32))
