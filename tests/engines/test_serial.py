"""The reference engine: errors name the client and the round; a diverged client stops the run or is dropped."""

import pytest
import torch
from torch.nn import functional as F

from arno.core.federation import Federation, Local
from arno.core.layout import bind, flatten
from arno.engines.pieces import order, pieces
from arno.engines.serial import Serial, serial
from arno.errors import ArnoError
from arno.methods.fedvarp import Varp
from arno.methods.scaffold import Scaffold
from arno.models.linear import MLP, Backprop
from arno.problems.quadratic import Quadratic
from arno.selection import Fixed


def problem(**changes):
    h = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    e = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    return Quadratic(h, e, **changes)


def test_an_exception_names_the_client_and_the_round(monkeypatch):
    made = problem()
    fed = Federation(made, [Fixed([[0], [2]])], local=Local(lr=0.1))
    fed.round()

    def burst(self, batch, job):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(type(made.learner()), "gradient", burst)
    with pytest.raises(ZeroDivisionError) as caught:
        fed.round()
    assert caught.value.__notes__ == ["while training client 2 in round 2"]


def test_a_diverged_client_stops_the_run():
    fed = Federation(problem(), local=Local(lr=[0.1, 1e200, 0.1], epochs=3))
    with pytest.raises(ArnoError, match=r"client 1 diverged in round 1.*local\.lr"):
        fed.round()


@pytest.mark.parametrize("parts", [[], [Scaffold()], [Varp()]], ids=["fedavg", "scaffold", "fedvarp"])
def test_a_diverged_client_is_dropped_and_leaves_no_trace(parts):
    fed = Federation(problem(), parts, local=Local(lr=[0.1, 1e200, 0.1], epochs=3), on_divergence="drop")
    for _ in range(3):
        record = fed.round()
        assert record.dropped == 1
        assert record.clients["client"] == [0, 2]
    assert torch.isfinite(fed.w).all()
    for part in parts:
        table = part.ck if isinstance(part, Scaffold) else part.y
        assert not table[torch.tensor([1])].any()


def test_threads_must_be_positive():
    with pytest.raises(ArnoError, match=r"engine\.threads = 0"):
        serial(problem(), threads=0)
    assert isinstance(serial(problem(), threads=1), Serial)


def test_an_empty_round_changes_nothing():
    fed = Federation(problem(), [Fixed([[0, 1], []]), Varp()], local=Local(lr=0.1))
    fed.round()
    before = fed.w.clone()
    record = fed.round()
    assert record.clients == {}
    assert torch.equal(before, fed.w)
    assert fed.t == 2


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (7,), (6, 5)], ids=str)
def test_the_written_out_gradient_is_autograds(hidden, activation):
    torch.manual_seed(0)
    net = MLP(12, hidden, 4, activation).double()
    w = flatten(net)
    written, automatic = torch.full_like(w, torch.nan), torch.zeros_like(w)
    backprop = Backprop(net, w, written)
    for n in (9, 1, 9):
        x, y = torch.randn(n, 12, dtype=torch.float64), torch.randint(4, (n,))
        bind(net, w, automatic.zero_())
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        assert torch.allclose(backprop(x, y), loss, rtol=1e-12)
        assert torch.allclose(written, automatic, rtol=1e-12, atol=1e-14)
        w.sub_(written)


@pytest.mark.parametrize("steps", [[3] * 100, [40, 7, 30, 7, 6, 5, 5, 2, 1, 1], [1], [0, 0], [5, 0, 0]], ids=str)
def test_pieces_hold_every_row_once_and_no_crumbs(steps):
    found = pieces(torch.tensor(steps), 2)
    assert sorted(torch.cat(found).tolist()) == list(range(len(steps)))
    assert all(len(piece) == 1 or sum(steps[j] for j in piece.tolist()) <= sum(steps) / 4 for piece in found)
    assert len(found) <= 16


@pytest.mark.parametrize("least", [1, 7, 30, 60, 140, 299, 601, 5000])
def test_no_piece_is_less_than_is_worth_sending(least):
    steps = torch.full((100,), 3)
    found = pieces(steps, 4, least)
    assert sorted(torch.cat(found).tolist()) == list(range(100))
    assert (len(found) == 1) == (least >= 2 * 300)
    assert len(found) == 1 or len(found) % 4 == 0  # as many for each worker
    if least <= 300 / 4:  # where there is enough for everybody
        assert min(int(steps[piece].sum()) for piece in found) >= least * 2 / 3 - 3


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_pieces_end_no_later_than_longest_first(workers):
    def end(sequence):
        free = [0] * workers
        for i in sequence:
            free[free.index(min(free))] += loads[i]
        return max(free)

    draw = torch.Generator().manual_seed(workers)
    better = 0
    for _ in range(50):
        loads = sorted((torch.rand(4 * workers, generator=draw) * 40).int().add(1).tolist(), reverse=True)
        found = order(loads, workers)
        assert sorted(found) == list(range(len(loads)))
        assert end(found) <= end(range(len(loads)))
        better += end(found) < end(range(len(loads)))
    assert better > 10 or workers == 1
