"""FedRCL's term: against a literal loop over anchors, at its edges, and as a part of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arno.config.settings import compose
from arno.core.federation import Federation, Local
from arno.core.work import SGD
from arno.data.dataset import Transform
from arno.data.partition import Partition
from arno.errors import ArnoError
from arno.methods.fedrcl import fedrcl, misalignment, relaxed_contrastive, supervised_contrastive
from arno.models.linear import MLP
from arno.problems.supervised import Supervised


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def literally(
    levels: list[Tensor], labels: list[int], tau: float, lam: float, pos: int, neg: int, a: float, b: float
) -> float:
    """The definition, anchor by anchor, in Python's own arithmetic."""
    total = 0.0
    for features in levels:
        rows = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in features.tolist()]
        sim = [[sum(a * b for a, b in zip(r, q, strict=True)) for q in rows] for r in rows]
        for i, label in enumerate(labels):
            mine = sorted(sim[i][j] for j in range(len(labels)) if labels[j] == label)[:pos]
            theirs = sorted((sim[i][j] for j in range(len(labels)) if labels[j] != label), reverse=True)[:neg]
            if theirs:
                against = sum(math.exp(s / tau) for s in theirs)
                total -= a * sum(math.log(math.exp(p / tau) / (math.exp(p / tau) + against)) for p in mine) / len(mine)
            others = [sim[i][j] for j in range(len(labels)) if labels[j] == label and j != i]
            s = min(others) if others and min(others) >= lam else -1.0
            total -= b * math.log(math.exp(1 / tau) / (math.exp(1 / tau) + math.exp(s / tau)))
    return total / len(levels) / len(labels)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.integers(0, 10**6),
    st.sampled_from([0.05, 0.3]),
    st.sampled_from([-0.2, 0.7]),
    st.integers(1, 3),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_the_term_is_its_definition(
    labels: list[int], seed: int, tau: float, lam: float, positives: int, negatives: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    levels = [torch.randn(len(labels), d, generator=random, dtype=torch.float64) for d in (3, 5)]
    mine = relaxed_contrastive(
        levels,
        torch.tensor(labels),
        temperature=tau,
        threshold=lam,
        positives=positives,
        negatives=negatives,
        weight_contrastive=0.7,
        weight_penalty=1.5,
    )
    wanted = literally(levels, labels, tau, lam, positives, negatives, 0.7, 1.5)
    assert float(mine) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_a_sample_is_its_own_likeness_even_without_features() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])  # each alone in its class: the positive is 1, the negative 0
    assert float(relaxed_contrastive([x], torch.tensor([0, 1]))) < 1e-6


def test_the_threshold_is_strict_and_does_not_move_with_rounding() -> None:
    angle = torch.tensor([[1.0, 0.0], [0.8, 0.6]])  # cosine 0.8, of one class: only the penalty is left
    same = torch.tensor([0, 0])
    lam = float((angle / angle.norm(dim=1, keepdim=True) @ (angle / angle.norm(dim=1, keepdim=True)).T)[0, 1])
    at = relaxed_contrastive([angle], same, threshold=lam)
    above = relaxed_contrastive([angle], same, threshold=lam + 1e-6)
    assert float(at) == pytest.approx(math.log1p(math.exp((lam - 1) / 0.05)), rel=1e-4)
    assert float(above) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("labels", [[0], [0, 0], [0, 1], [0, 1, 2, 3], [0, 0, 1, 1, 1]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_even_where_features_vanish(labels: list[int], dtype: torch.dtype) -> None:
    y = torch.tensor(labels)
    for features in (torch.zeros(len(labels), 4), torch.ones(len(labels), 4), torch.eye(5)[: len(labels)] * 1e-30):
        x = features.to(dtype).requires_grad_()
        for loss in (
            relaxed_contrastive([x], y),
            supervised_contrastive([x], y, 0.05),
            misalignment(x, torch.zeros_like(x)),
        ):
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss.isfinite()
            assert gradient.isfinite().all()


def test_a_zero_feature_gets_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    relaxed_contrastive([x], torch.tensor([0, 0, 1])).backward()
    assert x.grad is not None
    assert (x.grad[0] == 0).all()
    assert (x.grad[1:] != 0).any()


def test_plain_supervised_contrastive_is_its_definition() -> None:
    x = torch.nn.functional.normalize(
        torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    y, tau, total = [0, 0, 0, 1, 1, 2], 0.2, 0.0
    s = (x @ x.T / tau).tolist()
    for i in range(6):
        mates = [j for j in range(6) if j != i and y[j] == y[i]]
        if mates:
            whole = sum(math.exp(s[i][a]) for a in range(6) if a != i)
            total -= sum(math.log(math.exp(s[i][j]) / whole) for j in mates) / len(mates)
    assert float(supervised_contrastive([3 * x], torch.tensor(y), tau)) == pytest.approx(total / 6)


def problem(hidden: tuple[int, ...] = (6, 5)) -> Supervised:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 3
    x = torch.randn(24, 4, generator=random, dtype=torch.float64) + 3 * torch.eye(4, dtype=torch.float64)[y]
    return Supervised(
        x,
        y,
        Partition(torch.arange(24), torch.tensor([0, 12, 24])),
        lambda: MLP(4, hidden, 3, "tanh"),
        transform=Transform((0.0,), (1.0,), 1.0),
        dtype=torch.float64,
    )


def gradient(method: dict[str, object], w: Tensor | None = None) -> tuple[Supervised, Tensor, Tensor]:
    """The first step of one client on one full batch: −Δ/lr."""
    task = problem()
    start = task.init(3) if w is None else w
    local = Local(batch_size=12, lr=1e-3, sgd=SGD(shuffle=False))
    fed = Federation(task, fedrcl(**method), local=local, weighting="uniform", w=start)  # type: ignore[arg-type]
    fed.round()
    return task, start, -(fed.w - start) / 1e-3


def test_the_part_adds_the_term_to_every_clients_loss() -> None:
    weights = {"temperature": 0.1, "threshold": 0.5, "weight_contrastive": 0.3, "weight_penalty": 2.0}
    task, start, found = gradient({**weights, "levels": (1,)})
    wanted = torch.zeros_like(found)
    for k in range(2):
        learner = task.learner()
        learner.w.copy_(start)
        x, y = task.x[task.partition[k]], task.y[task.partition[k]]
        levels: list[Tensor] = []
        logits = learner.module(x, levels)
        term = relaxed_contrastive(levels[1:], y, **weights)
        (torch.nn.functional.cross_entropy(logits, y) + term).backward()
        wanted += learner.g / 2
    assert torch.allclose(found, wanted, atol=1e-9)


def test_alignment_pulls_nowhere_at_the_received_model_and_back_later() -> None:
    _, _, plain = gradient({"loss": "align", "weight_contrastive": 0.0})
    _, _, aligned = gradient({"loss": "align", "weight_contrastive": 5.0})
    assert torch.allclose(plain, aligned, atol=1e-9)  # at the first step the features are the global model's

    def drift(weight: float) -> float:
        task = problem()
        local = Local(epochs=20, batch_size=12, lr=0.1, sgd=SGD(shuffle=False))
        start = task.init(3)
        fed = Federation(task, fedrcl(loss="align", weight_contrastive=weight), local=local, w=start)
        fed.round()
        before, after = (task.model(w).embed(task.x) for w in (start, fed.w))  # type: ignore[operator]
        return float(misalignment(after, before).detach())

    assert drift(20.0) < 0.7 * drift(0.0)


def test_its_local_settings_are_the_papers_unless_told_otherwise() -> None:
    config = compose(["method=fedrcl"])
    local = config.local
    assert (local.lr, local.lr_decay, local.weight_decay, local.batch_size, local.epochs, local.clip) == (
        0.1,
        0.998,
        1e-3,
        50,
        5,
        10,
    )
    assert compose(["method=fedrcl", "local.lr=0.01"]).local.lr == 0.01
    assert compose(["method=fedavg"]).local.clip is None


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"positives": 0}, "positives"),
        ({"negatives": 0}, "negatives"),
        ({"levels": (2,)}, "levels"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ArnoError, match=word):
        Federation(problem(), fedrcl(**settings))  # type: ignore[arg-type]


def test_a_model_without_levels_is_refused_but_alignment_is_not() -> None:
    with pytest.raises(ArnoError, match="no feature levels"):
        Federation(problem(hidden=()), fedrcl())
    Federation(problem(hidden=()), fedrcl(loss="align")).round()
