"""Laws of QR-Mix: what must hold whatever the numbers are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arno.methods.qrmix import Pairs, eigenpairs, hessian_product, mix

F64 = torch.float64
seeds = st.integers(0, 10**6)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def basis(q: int, k: int, seed: int) -> Tensor:
    return torch.linalg.qr(randn(q, k, seed=seed)).Q


def shares(n: int) -> Tensor:
    return torch.full((n,), 1 / n, dtype=F64)


def objective(d: Tensor, pairs: list[tuple[Tensor, Tensor]], deltas: Tensor, tau: float) -> Tensor:
    """Σ_i ½ (d − Δ_i)ᵀ H_i (d − Δ_i) / C + τ/2 ‖d − Δ̄‖²."""
    total = tau / 2 * (d - deltas.mean(0)).square().sum()
    for (evals, v), delta in zip(pairs, deltas, strict=True):
        total = total + (evals * (v.T @ (d - delta)).square()).sum() / 2 / len(pairs)
    return total


@given(seeds, st.integers(1, 12), st.integers(1, 5), st.integers(2, 4), st.floats(0, 30))
@settings(max_examples=60, deadline=None)
def test_the_hessian_product_is_symmetric_and_positive_semi_definite(
    seed: int, n: int, d: int, c: int, scale: float
) -> None:
    f, p = randn(n, d, seed=seed), (scale * randn(n, c, seed=seed + 1)).softmax(1)
    q = c * (d + 1)
    h = hessian_product(f, p, torch.eye(q, dtype=F64), block=5)
    x, y = randn(q, 1, seed=seed + 2), randn(q, 1, seed=seed + 3)
    assert torch.allclose(h, h.T, atol=1e-12)
    assert torch.allclose(x.T @ hessian_product(f, p, y), hessian_product(f, p, x).T @ y, atol=1e-11)
    assert float(torch.linalg.eigvalsh(h).min()) >= -1e-12 * (1 + float(h.trace()))
    assert float(x.T @ hessian_product(f, p, x)) >= -1e-12
    # adding one number to every class's score changes nothing: such directions do not curve
    flat = torch.cat([torch.ones(c, 1, dtype=F64), torch.ones(c * d, 1, dtype=F64)])
    assert torch.allclose(hessian_product(f, p, flat), torch.zeros_like(flat), atol=1e-12)


@given(seeds, st.integers(2, 10), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_eigenvectors_are_orthonormal_and_eigenvalues_fall(seed: int, q: int, k: int, s: int) -> None:
    root = randn(q, q, seed=seed)
    h = root @ root.T
    evals, v = eigenpairs(lambda x: h @ x, q, k, s, 3, torch.Generator().manual_seed(seed), like=h)
    assert len(evals) == min(k, q)
    assert torch.allclose(v.T @ v, torch.eye(len(evals), dtype=F64), atol=1e-10)
    assert (evals.diff() <= 1e-10).all()
    assert float(evals[0]) <= float(torch.linalg.eigvalsh(h)[-1]) * (1 + 1e-10)  # Ritz values never exceed the largest


@given(seeds, st.integers(1, 5), st.integers(2, 8), st.integers(1, 6), st.sampled_from([1e-12, 1e-6, 0.1]))
@settings(max_examples=60, deadline=None)
def test_identical_participants_get_their_common_delta(seed: int, n: int, q: int, k: int, tau: float) -> None:
    pair = (randn(min(k, q), seed=seed).abs(), basis(q, min(k, q), seed + 1))
    delta = randn(q, seed=seed + 2)
    mixed = mix([pair] * n, delta.expand(n, -1), shares(n), rule="lsq", beta=tau)
    assert torch.allclose(mixed.update, delta, atol=1e-9)


@given(seeds, st.integers(1, 3), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_orthogonal_eigenspaces_each_get_their_own_clients_delta(seed: int, k: int, n: int) -> None:
    q = n * k + 2
    whole, deltas = basis(q, q, seed), randn(n, q, seed=seed + 1)
    spaces = whole[:, : n * k].split(k, dim=1)
    pairs: list[Pairs] = [(0.5 + randn(k, seed=seed + 2 + i).abs(), own) for i, own in enumerate(spaces)]
    update = mix(pairs, deltas, shares(n), rule="lsq", beta=1e-12).update
    for i, own in enumerate(spaces):
        assert torch.allclose(own.T @ update, own.T @ deltas[i], atol=1e-9)
    outside = whole[:, n * k :]
    assert torch.allclose(outside.T @ update, outside.T @ deltas.mean(0), atol=1e-9)


@given(seeds, st.integers(1, 4), st.integers(2, 7), st.integers(1, 7), st.sampled_from([1e-4, 0.05, 3.0]))
@settings(max_examples=60, deadline=None)
def test_lsq_is_the_minimiser_even_with_dependent_or_too_many_columns(
    seed: int, n: int, q: int, k: int, tau: float
) -> None:
    k = min(k, q)
    shared = basis(q, k, seed)  # half of the clients share a basis; n·k may exceed q
    pairs = [(randn(k, seed=seed + i).abs(), shared if i % 2 else basis(q, k, seed + 10 + i).clone()) for i in range(n)]
    deltas = randn(n, q, seed=seed + 5)
    d = mix(pairs, deltas, shares(n), rule="lsq", beta=tau).update.requires_grad_()
    (gradient,) = torch.autograd.grad(objective(d, pairs, deltas, tau), d)
    assert float(gradient.abs().max()) < 1e-9


@given(seeds, st.integers(1, 4), st.integers(2, 7), st.integers(1, 7), st.sampled_from([1e-6, 0.01, 3.0]))
@settings(max_examples=60, deadline=None)
def test_the_seeds_rule_is_tau_over_curvature_plus_tau_times_b(seed: int, n: int, q: int, k: int, tau: float) -> None:
    k = min(k, q)
    pairs = [(randn(k, seed=seed + i).abs(), basis(q, k, seed + 10 + i)) for i in range(n)]
    deltas = randn(n, q, seed=seed + 5)
    hs = [v @ torch.diag(e) @ v.T for e, v in pairs]
    b = sum(h @ d for h, d in zip(hs, deltas, strict=True)) / n
    wanted = tau * torch.linalg.solve(sum(hs) / n + tau * torch.eye(q, dtype=F64), b)
    assert torch.allclose(mix(pairs, deltas, shares(n), rule="seed", beta=tau).update, wanted, atol=1e-8)


def test_the_seeds_rule_vanishes_with_tau_and_lsq_tends_to_the_mean_without_limit() -> None:
    pairs = [(randn(3, seed=i).abs() + 0.1, basis(6, 3, 10 + i)) for i in range(2)]
    deltas = randn(2, 6, seed=5)
    sizes = [float(mix(pairs, deltas, shares(2), rule="seed", beta=t).update.norm()) for t in (1e-1, 1e-4, 1e-8)]
    assert sizes[0] > 100 * sizes[1] > 1e5 * sizes[2]
    far = mix(pairs, deltas, shares(2), rule="lsq", beta=1e9).update
    assert torch.allclose(far, deltas.mean(0), atol=1e-8)


@pytest.mark.parametrize("rule", ["seed", "lsq"])
def test_gamma_scales_and_the_order_of_clients_does_not_matter(rule: str) -> None:
    pairs: list[Pairs] = [(randn(2, seed=i).abs(), basis(5, 2, 10 + i)) for i in range(3)]
    deltas = randn(3, 5, seed=5)
    one = mix(pairs, deltas, shares(3), rule=rule, beta=0.1).update  # type: ignore[arg-type]
    half = mix(pairs, deltas, shares(3), rule=rule, beta=0.1, gamma=0.5).update  # type: ignore[arg-type]
    turned = mix(pairs[::-1], deltas.flip(0), shares(3), rule=rule, beta=0.1).update  # type: ignore[arg-type]
    assert torch.allclose(half, one / 2)
    assert torch.allclose(turned, one, atol=1e-12)
