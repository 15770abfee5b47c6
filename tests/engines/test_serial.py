"""The reference engine: errors name the client and the round; a diverged client stops the run or is dropped."""

import pytest
import torch

from arno.client_selection.schedule import Fixed
from arno.core.federation import Federation, Local
from arno.core.serial import Serial
from arno.engines.serial import serial
from arno.errors import ArnoError, ClientError
from arno.methods.fedvarp import Varp
from arno.methods.scaffold import Scaffold
from arno.problems.quadratic import Quadratic


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
    with pytest.raises(
        ClientError, match=r"^client 2 in round 2: ZeroDivisionError: boom \(in .*test_serial\.py, line "
    ) as caught:
        fed.round()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


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
