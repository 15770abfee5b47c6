"""Quadratic clients F_k(w) = ½ wᵀH_k w − e_kᵀw + ½ e_kᵀH_k⁻¹e_k: where the laws of federated methods are checked."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from ..core.layout import Layout
from ..core.work import Job, SubModel, Vec
from ..errors import ArnoError


class Quadratic:
    """N quadratics with curvature h_k (a number, or a symmetric positive definite matrix) and linear term e_k.

    The minimiser of F = Σ p_k F_k is w* = (Σ p_k H_k)⁻¹ Σ p_k e_k; p is uniform unless given.

    >>> problem = Quadratic(h=torch.tensor([1.0, 3.0]), e=torch.tensor([[2.0], [0.0]]))
    >>> problem.star.item(), problem.losses(problem.star, torch.arange(2)).tolist()
    (0.5, [1.125, 0.375])
    """

    def __init__(self, h: Tensor, e: Tensor, p: Tensor | None = None, start: Vec | None = None) -> None:
        self.n, d = e.shape
        self.device, self.dtype = e.device, e.dtype
        self.h, self.e = h, e
        self.p = e.new_full((self.n,), 1 / self.n) if p is None else p / p.sum()
        self.sizes = self.p
        self.layout = Layout.plain(d)
        self._start = e.new_zeros(d) if start is None else start
        H = h if h.ndim == 3 else h[:, None, None] * torch.eye(d, dtype=e.dtype, device=e.device)
        if not (torch.linalg.eigvalsh(H) > 0).all():
            raise ArnoError(
                f"smallest curvature {float(torch.linalg.eigvalsh(H).min()):g}",
                "every H_k must be positive definite, or F_k has no minimum",
                "draw h_k above 0",
            )
        self._constant = 0.5 * (e * torch.linalg.solve(H, e)).sum(1)
        self.star = torch.linalg.solve(torch.einsum("k,kij->ij", self.p, H), self.p @ e)

    def init(self, seed: int) -> Vec:
        """The given start; zero by default."""
        return self._start

    def learner(self, window: SubModel | None = None) -> QuadraticLearner:
        """A learner with its own buffers."""
        if window is not None:
            raise ArnoError(
                "a quadratic has no units", "a window needs hidden units", "use a network with hidden layers"
            )
        return QuadraticLearner(self)

    def apply(self, w: Vec, clients: Tensor) -> Tensor:
        """H_k w for each client."""
        h = self.h[clients]
        out: Tensor = torch.einsum("kij,j->ki", h, w) if h.ndim == 3 else h[:, None] * w
        return out

    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """F_k(w) for each client."""
        return 0.5 * self.apply(w, clients) @ w - self.e[clients] @ w + self._constant[clients]

    def evaluate(self, w: Vec, split: str) -> dict[str, float]:
        """The gap F(w) − F(w*) and the distance ‖w − w*‖; a quadratic has no splits."""
        everybody = torch.arange(self.n)
        gap = self.p @ (self.losses(w, everybody) - self.losses(self.star, everybody))
        return {"gap": float(gap), "distance": float((w - self.star).norm())}

    def report(self, w: Vec, clients: bool = False) -> dict[str, float]:
        """The gap and the distance."""
        return self.evaluate(w, "")

    def describe(self) -> str:
        """The problem in a few words."""
        return f"quadratics in {self.layout.d} dimensions: {self.n} clients"

    def fingerprint(self) -> str:
        """A digest of the curvatures, linear terms and weights."""
        parts = (tensor.cpu().numpy().tobytes() for tensor in (self.h, self.e, self.p))
        return blake2b(b"".join(parts), digest_size=16).hexdigest()

    def steps(self, clients: Tensor, epochs: Tensor, batch_size: Tensor) -> Tensor:
        """One exact gradient step an epoch."""
        return epochs


class QuadraticLearner:
    """Exact gradients H_k w − e_k."""

    def __init__(self, problem: Quadratic) -> None:
        self.problem, self.d = problem, problem.layout.d
        self.w, self.g = torch.zeros_like(problem.e[0]), torch.zeros_like(problem.e[0])

    def batches(self, job: Job) -> Iterator[Any]:
        """The client itself, once an epoch."""
        for _ in range(job.epochs):
            yield torch.tensor([job.client])

    def gradient(self, batch: Any, job: Job) -> Tensor:
        """∇F_k(w) into `g`; returns F_k(w)."""
        torch.sub(self.problem.apply(self.w, batch)[0], self.problem.e[batch][0], out=self.g)
        return self.problem.losses(self.w, batch)[0]
