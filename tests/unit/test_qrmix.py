"""QR-Mix: eigenpairs against a dense Hessian, the server's rules, the part within a round, and its advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from arno.client_selection.schedule import Fixed
from arno.core.federation import Federation, Local
from arno.core.method_part import Part
from arno.core.work import SGD, Result, Vec, Work
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.errors import ArnoError
from arno.methods import qrmix as module
from arno.methods.fedavgm import ServerMomentum
from arno.methods.fedrcl import fedrcl
from arno.methods.panels import Chart, messages, panels
from arno.methods.qrmix import (
    Eigenpairs,
    QRMix,
    eigenpairs,
    halving,
    hessian_product,
    hessian_trace,
    last_layer,
    mix,
    qrmix,
)
from arno.methods.sub_models import Window
from arno.models.linear import MLP
from arno.pictures.draw import write_panels
from arno.problems.supervised import Supervised

F64 = torch.float64


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(hidden: tuple[int, ...] = (5,), clients: int = 3, build: Any = None) -> Supervised:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(20 * clients) % 3
    x = torch.randn(len(y), 4, generator=random, dtype=F64) + 2 * torch.eye(4, dtype=F64)[y]
    return Supervised(
        x,
        y,
        Partition(torch.arange(len(y)), torch.arange(clients + 1) * 20),
        build or (lambda: MLP(4, hidden, 3, "tanh")),
        transform=Transform((0.0,), (1.0,), 1.0),
        splits={"test": (x, y)},
        dtype=F64,
    )


def federation(*parts: Part, task: Supervised | None = None, **settings: Any) -> Federation:
    local = Local(epochs=2, batch_size=5, lr=0.2, sgd=SGD(shuffle=False))
    return Federation(task or problem(), parts, **{"local": local, "weighting": "uniform", **settings})


def dense(f: Tensor, y: Tensor, w: Tensor, classes: int) -> Tensor:
    """The Hessian in (bias, weight) by automatic differentiation."""

    def loss(w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(f @ w[classes:].view(classes, -1).T + w[:classes], y)

    return torch.func.hessian(loss)(w)  # type: ignore[no-any-return]


class Spy(Part):
    """Keeps what came back; acts last."""

    roles: ClassVar[frozenset[str]] = frozenset({"rate"})

    def start(self, fed: Federation) -> None:
        self._seen: list[tuple[Work, Result]] = []

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        self._seen.append((work, out))
        return v


@pytest.mark.parametrize("at", ["local", "global"])
def test_a_clients_pairs_are_those_of_the_dense_hessian_of_its_model(at: str) -> None:
    task, spy = problem(), Spy()
    fed = federation(QRMix(rank_k=4, oversampling=6, power_iters=60, at=at), spy, task=task)  # type: ignore[arg-type]
    fed.round()
    start = fed.w.clone()
    fed.round()
    work, out = spy._seen[-1]
    for j, k in enumerate(work.clients.tolist()):
        w = start + (out.delta[j] if at == "local" else 0)
        rows = task.partition[k]
        network = task.model(w)
        f = network.embed(task.x[rows]).detach()  # type: ignore[operator]
        head = torch.cat([network.head.bias, network.head.weight.flatten()]).detach()  # type: ignore
        h = dense(f, task.y[rows], head, 3)
        evals, evecs = torch.linalg.eigh(h)
        evals, evecs = evals.flip(0)[:4], evecs.flip(1)[:, :4]
        mine = out.extra[j]
        assert torch.allclose(mine["evals"], evals, rtol=1e-5, atol=0)
        cosines = torch.linalg.svdvals(evecs.T @ mine["evecs"])
        assert float(cosines.min()) > 1 - 1e-8  # the largest angle between the subspaces is small
        assert float(mine["energy"]) == pytest.approx(float(evals.sum() / h.trace()))


def test_float32_agrees_with_the_dense_hessian_too() -> None:
    random = torch.Generator().manual_seed(2)
    f = torch.randn(60, 8, generator=random) * torch.logspace(0.5, -1, 8)
    w = torch.randn(27, generator=random) / 3
    p = (f @ w[3:].view(3, 8).T + w[:3]).softmax(1)
    y = torch.randint(3, (60,), generator=random)
    exact = torch.linalg.eigvalsh(dense(f.double(), y, w.double(), 3)).flip(0)[:5]
    evals, _ = eigenpairs(lambda v: hessian_product(f, p, v), 27, 5, 10, 30, random, like=f)
    assert torch.allclose(evals.double(), exact, rtol=1e-5)
    assert float(hessian_trace(f, p)) == pytest.approx(float(dense(f.double(), y, w.double(), 3).trace()), rel=1e-5)


def test_blocks_of_samples_change_nothing() -> None:
    random = torch.Generator().manual_seed(3)
    f, v = torch.randn(17, 4, generator=random, dtype=F64), torch.randn(15, 6, generator=random, dtype=F64)
    p = torch.randn(17, 3, generator=random, dtype=F64).softmax(1)
    whole = hessian_product(f, p, v, 17)
    for block in (1, 4, 16, 100):
        assert torch.allclose(hessian_product(f, p, v, block), whole, atol=1e-14)


def test_more_columns_than_parameters_are_cut() -> None:
    h = torch.diag(torch.arange(1.0, 6.0, dtype=F64))
    evals, evecs = eigenpairs(lambda v: h @ v, 5, 4, 50, 1, torch.Generator(), like=h)
    assert torch.allclose(evals, torch.tensor([5.0, 4.0, 3.0, 2.0], dtype=F64))
    evals, evecs = eigenpairs(lambda v: h @ v, 5, 9, 0, 1, torch.Generator(), like=h)
    assert evals.shape == (5,)
    assert evecs.shape == (5, 5)


def test_adaptive_rank_keeps_the_share_asked_for() -> None:
    h = torch.diag(torch.tensor([60.0, 30.0, 6.0, 3.0, 1.0, 0.0], dtype=F64))

    def kept(share: float) -> int:
        return len(eigenpairs(lambda v: h @ v, 6, 2, 4, 3, torch.Generator(), like=h, adaptive=share)[0])

    assert [kept(share) for share in (0.5, 0.61, 0.9, 0.95, 0.97, 1.0)] == [1, 2, 2, 3, 4, 5]


def test_the_random_start_is_the_clients_own_and_repeats() -> None:
    a, b = Spy(), Spy()
    for spy in (a, b):
        federation(QRMix(rank_k=2, oversampling=0, power_iters=0), spy, seed=5).round()
    first, second = (spy._seen[0][1].extra for spy in (a, b))
    assert all(torch.equal(x["evecs"], y["evecs"]) for x, y in zip(first, second, strict=True))
    spaces = [row["evecs"] @ row["evecs"].T for row in first]  # without iterations: the random start's own
    assert not torch.allclose(spaces[0], spaces[1], atol=1e-2)
    later = federation(QRMix(rank_k=2, oversampling=0, power_iters=0), third := Spy(), seed=5)
    later.t = 1
    later.round()
    again = third._seen[0][1].extra[0]["evecs"]
    assert not torch.allclose(again @ again.T, spaces[0], atol=1e-2)


def test_features_are_those_of_the_whole_client_in_evaluation_mode() -> None:
    task = problem(build=lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)))
    learner = task.learner()
    learner.w.copy_(task.init(1))
    before = learner.w.clone()
    f, p = last_layer(learner, 1)
    again, _ = last_layer(learner, 1)
    assert f.shape == (20, 6)
    assert torch.equal(f, again)
    assert torch.equal(before, learner.w)  # running statistics too
    assert learner.module.training
    assert torch.allclose(p, task.model(before)(task.x[task.partition[1]]).softmax(1).detach())
    federation(QRMix(), task=task).round()


def head(fed: Federation, v: Tensor) -> Tensor:
    weight, bias = fed.problem.head  # type: ignore[attr-defined]
    return torch.cat([v[bias], v[weight]])


def rest(fed: Federation, v: Tensor) -> Tensor:
    v = v.clone()
    for span in fed.problem.head:  # type: ignore[attr-defined]
        v[span] = 0
    return v


@pytest.mark.parametrize("rule", ["seed", "lsq"])
@pytest.mark.parametrize("backbone", ["average", "freeze"])
@pytest.mark.parametrize("hidden", [(5,), ()])
def test_a_round_steps_by_the_rule_on_the_head_and_as_told_elsewhere(
    rule: str, backbone: str, hidden: tuple[int, ...]
) -> None:
    task, spy = problem(hidden), Spy()
    part = QRMix(rank_k=3, beta=0.2, gamma=0.7, rule=rule, backbone=backbone)  # type: ignore[arg-type]
    fed = federation(part, spy, task=task)
    start = fed.w.clone()
    row = fed.round().numbers
    step = fed.w - start
    _, out = spy._seen[0]
    mean = out.delta.mean(0)
    assert torch.allclose(rest(fed, step), rest(fed, mean) if backbone == "average" else 0 * step, atol=1e-12)

    # the head, from the definition with dense matrices
    deltas = torch.stack([head(fed, d) for d in out.delta])
    hs = [e["evecs"] @ torch.diag(e["evals"]) @ e["evecs"].T for e in out.extra]
    eye, average = torch.eye(len(hs[0]), dtype=F64), sum(hs) / 3
    b = sum(h @ d for h, d in zip(hs, deltas, strict=True)) / 3
    left = torch.linalg.inv(average + 0.2 * eye)
    wanted = 0.2 * left @ b if rule == "seed" else left @ (b + 0.2 * deltas.mean(0))
    assert torch.allclose(head(fed, step), 0.7 * wanted, atol=1e-12)

    assert row["qrmix_update_norm"] == pytest.approx(float(head(fed, step).norm()))
    assert row["qrmix_mean_norm"] == pytest.approx(float(deltas.mean(0).norm()))
    assert row["qrmix_pairs"] == 9
    assert row["qrmix_dropped"] == 0
    assert row["qrmix_eigenvalue_1"] == pytest.approx(float(sum(e["evals"][0] for e in out.extra)) / 3)
    assert 0 < row["qrmix_energy"] <= 1


def test_a_client_drawn_twice_counts_twice() -> None:
    task, spy = problem(), Spy()
    fed = federation(Fixed([[0, 0, 1]]), QRMix(rank_k=2, rule="lsq", beta=1e6), spy, task=task)
    start = fed.w.clone()
    fed.round()
    _, out = spy._seen[0]
    assert torch.allclose(fed.w - start, (2 * out.delta[0] + out.delta[1]) / 3, atol=1e-6)  # τ → ∞ is the mean


def test_a_subset_of_clients_and_every_nth_round() -> None:
    spy = Spy()
    part = QRMix(rank_k=2, every_client=2, every_round=2, rule="lsq", gamma=0.5)
    fed = federation(part, spy)
    row = fed.round().numbers
    assert [bool(e) for e in spy._seen[0][1].extra] == [True, False, True]
    assert row["qrmix_pairs"] == 4
    start = fed.w.clone()
    row = fed.round().numbers
    assert spy._seen[1][1].extra == ()
    assert row["qrmix_pairs"] == 0
    mean = spy._seen[1][1].delta.mean(0)
    assert torch.allclose(head(fed, fed.w - start), 0.5 * head(fed, mean), atol=1e-12)
    assert torch.allclose(rest(fed, fed.w - start), rest(fed, mean), atol=1e-12)
    assert not any("no eigenpair" in line for line in messages(part))  # nothing went wrong: none were asked for


@pytest.mark.parametrize("backbone", ["average", "freeze"])
def test_the_plain_mean_asks_for_no_eigenpairs(backbone: str) -> None:
    part, spy = QRMix(rule="mean", gamma=0.5, backbone=backbone), Spy()  # type: ignore[arg-type]
    fed = federation(part, spy)
    start = fed.w.clone()
    fed.round()
    _, out = spy._seen[0]
    step, mean = fed.w - start, out.delta.mean(0)
    assert out.extra == ()
    assert messages(part) == []
    assert torch.allclose(head(fed, step), 0.5 * head(fed, mean), atol=1e-12)
    assert torch.allclose(rest(fed, step), rest(fed, mean) if backbone == "average" else 0 * step, atol=1e-12)


def test_clients_without_pairs_still_count() -> None:
    v, deltas = torch.eye(3, dtype=F64), torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]], dtype=F64)
    pairs = [(torch.tensor([2.0], dtype=F64), v[:, :1]), None]
    half = torch.full((2,), 0.5, dtype=F64)
    seed = mix(pairs, deltas, half, rule="seed", beta=0.5).update
    assert seed.tolist() == pytest.approx([0.5 / (1 + 0.5) * 1.0, 0, 0])  # λ/C = 1, b = 1·1
    lsq = mix(pairs, deltas, half, rule="lsq", beta=0.5).update
    assert lsq.tolist() == pytest.approx([(1 + 0.5 * 3) / 1.5, 4, 5])


def test_pairs_that_are_negative_or_not_finite_are_dropped_and_counted() -> None:
    v, delta = torch.eye(4, dtype=F64), torch.arange(1.0, 5.0, dtype=F64)[None]
    evals = torch.tensor([3.0, -1.0, torch.nan, torch.inf], dtype=F64)
    one = torch.ones(1, dtype=F64)
    dropped = mix([(evals, v)], delta, one, rule="seed", beta=0.1)
    clean = mix([(evals[:1], v[:, :1])], delta, one, rule="seed", beta=0.1)
    assert torch.equal(dropped.update, clean.update)
    assert (dropped.used, dropped.negative, dropped.broken) == (1, 1, 2)
    crooked = v.clone()
    crooked[2, 1] = torch.nan
    assert mix([(evals.abs()[:2], crooked[:, :2])], delta, one, rule="seed", beta=0.1).broken == 1
    none = mix([(-one, v[:, :1])], delta, one, rule="seed", beta=0.1, gamma=0.3)
    assert none.used == 0
    assert torch.allclose(none.update, 0.3 * delta[0])


def test_a_zero_eigenvalue_stays() -> None:
    v, delta, one = torch.eye(3, dtype=F64), torch.ones(1, 3, dtype=F64), torch.ones(1, dtype=F64)
    assert mix([(0 * one, v[:, :1])], delta, one, rule="lsq", beta=1.0).used == 1
    assert torch.allclose(mix([(0 * one, v[:, :1])], delta, one, rule="lsq", beta=1.0).update, delta[0])
    assert torch.equal(mix([(0 * one, v[:, :1])], delta, one, rule="seed", beta=1.0).update, 0 * delta[0])


def test_a_diverged_client_gives_pairs_that_are_dropped() -> None:
    learner = problem().learner()
    learner.w.fill_(torch.nan)
    fed, spy = federation(Fixed([[0]]), QRMix(rank_k=2), (spy := Spy())), spy
    fed.round()
    job = next(spy._seen[0][0].jobs())
    found = Eigenpairs(rank_k=2)(learner, job)
    assert found["evals"].isnan().all()
    assert found["evecs"].shape == (18, 2)


def test_memory_that_runs_out_halves_the_block_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    honest = hessian_product

    def tight(f: Tensor, p: Tensor, v: Tensor, block: int) -> Tensor:
        asked.append(block)
        if block > 5:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return honest(f, p, v, block)

    monkeypatch.setattr(module, "hessian_product", tight)
    part = QRMix(rank_k=2, power_iters=1, block=20)
    federation(part).round()
    assert asked[:4] == [20, 10, 5, 5]
    (line,) = [line for line in messages(part) if "memory" in line]
    assert "block=5" in line
    with pytest.raises(RuntimeError, match="shapes"):
        halving(lambda block: (_ for _ in ()).throw(RuntimeError("shapes differ")), 8)
    with pytest.raises(MemoryError):
        halving(lambda block: (_ for _ in ()).throw(MemoryError()), 8)


class Spoil(Part):
    """Spoils the pairs on their way to the server; acts before QR-Mix."""

    roles: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __init__(self, value: float) -> None:
        self._value = value

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        for row in out.extra:
            row["evals"][:] = self._value
        return v


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1.0, ("negative eigenvalue", "stage 1")), (float("nan"), ("NaN", "raise beta"))],
)
def test_spoiled_pairs_lead_to_the_plain_mean_and_to_advice_said_once(value: float, words: tuple[str, str]) -> None:
    part, spy = QRMix(rank_k=2), Spy()
    fed = federation(Spoil(value), part, spy)
    start = fed.w.clone()
    row = fed.round().numbers
    assert row["qrmix_dropped"] == 6
    assert torch.allclose(fed.w - start, spy._seen[0][1].delta.mean(0), atol=1e-12)
    lines = messages(part)
    assert any(all(word in line for word in words) for line in lines)
    assert any("plain mean" in line for line in lines)
    fed.round()
    assert not any(word in line for line in messages(part) for word in words)


def test_a_step_that_shrinks_to_nothing_and_a_loss_that_stands_still_are_reported() -> None:
    part = QRMix(rank_k=2, beta=1e-7, backbone="freeze")
    fed = federation(part, local=Local(lr=1e-6, batch_size=20))
    fed.round()
    assert any("rule=lsq" in line and "raise beta" in line for line in messages(part))
    for _ in range(module.PATIENCE):
        assert not any("has not fallen" in line for line in messages(part))
        fed.round()
    assert any("has not fallen" in line for line in messages(part))


def test_momentum_acts_on_what_qrmix_made() -> None:
    both, plain = federation(ServerMomentum(0.5), QRMix()), federation(QRMix())
    step = torch.zeros_like(plain.w)
    for _ in range(3):
        before = plain.w = both.w.clone()
        both.round()
        plain.round()
        step = 0.5 * step + (plain.w - before)
        assert torch.allclose(both.w, before + step, atol=1e-12)
        assert float(head(both, step).norm()) > 0


def test_it_works_with_fedrcl_and_what_it_shows_is_drawn(tmp_path: Path) -> None:
    fed = federation(*fedrcl(), *qrmix(rank_k=2))
    (part,) = [part for part in fed.parts if isinstance(part, QRMix)]
    shown = panels(part, SimpleNamespace(rows=[{"round": t + 1, **fed.round().numbers} for t in range(3)]))
    assert [panel.title for panel in shown] == ["Eigenvalues", "Curvature kept", "Step"]
    for panel, names in zip(shown, (["λ1", "λ2"], None, ["QR-Mix", "plain mean"]), strict=True):
        assert isinstance(panel, Chart)
        assert names is None or [line.name for line in panel.lines] == names
        assert all(list(line.x) == [1, 2, 3] for line in panel.lines)
    write_panels(shown, tmp_path)
    for name in ("eigenvalues", "curvature-kept", "step"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_state_is_plain_and_comes_back() -> None:
    fed, other = federation(QRMix()), federation(QRMix())
    fed.round()
    other.restore(fed.state())
    fed.round()
    other.round()
    assert torch.equal(fed.w, other.w)
    assert fed.state()["QRMix.lowest_at"] == other.state()["QRMix.lowest_at"]


@pytest.mark.parametrize(
    "settings",
    [
        {"rank_k": 0},
        {"oversampling": -1},
        {"power_iters": -1},
        {"beta": 0.0},
        {"beta": float("nan")},
        {"adaptive": 1.5},
        {"every_client": 0},
        {"every_round": 0},
        {"block": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ArnoError, match=next(iter(settings))):
        federation(QRMix(**settings))


def test_what_has_no_last_layer_of_its_own_is_refused() -> None:
    with pytest.raises(ArnoError, match="sub-models"):
        federation(Window(0.5), QRMix())
    with pytest.raises(ArnoError, match="last linear layer"):
        federation(QRMix(), task=problem(build=lambda: nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1))))
    with pytest.raises(ArnoError, match="no bias"):
        federation(QRMix(), task=problem(build=lambda: nn.Sequential(nn.Linear(4, 3, bias=False))))
    with pytest.raises(ArnoError, match="linear layer"):
        federation(QRMix(), task=problem(build=lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))))
    spied = replace(work_of(), probe=Eigenpairs())
    with pytest.raises(ArnoError, match="probe"):
        QRMix().send(spied)


def work_of() -> Work:
    spy = Spy()
    federation(spy).round()
    return spy._seen[0][0]
