"""Quadratic clients F_k(w) = ½ wᵀH_k w − e_kᵀw + ½ e_kᵀH_k⁻¹e_k. The laws of methods are tested on them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.layout import Layout
from ..core.metric import TRAIN_LOSS
from ..core.problem import Clients, Problem
from ..core.work import Job, SubModel, Vec
from ..errors import ArnoError
from ..quadratic import METRICS, Instance, too_fast


class Quadratic(Problem):
    """N quadratics with curvature h_k (a number, or a symmetric positive definite matrix) and linear term e_k.

    The minimiser of F = Σ p_k F_k is w* = (Σ p_k H_k)⁻¹ Σ p_k e_k. By default p is uniform.

    >>> problem = Quadratic(h=torch.tensor([1.0, 3.0]), e=torch.tensor([[2.0], [0.0]]))
    >>> problem.star.item(), problem.losses(problem.star, torch.arange(2)).tolist()
    (0.5, [1.125, 0.375])
    """

    metrics = (*METRICS, TRAIN_LOSS)

    def __init__(self, h: Tensor, e: Tensor, p: Tensor | None = None, start: Vec | None = None) -> None:
        n, d = e.shape
        self.device, self.dtype = e.device, e.dtype
        self.h, self.e = h, e
        p = e.new_full((n,), 1 / n) if p is None else p
        self.p = p if abs(float(p.sum()) - 1) < 1e-12 else p / p.sum()
        self.clients = Clients(self.p)
        self.layout = Layout.plain(d)
        self._start = e.new_zeros(d) if start is None else start
        spectrum = torch.linalg.eigvalsh(h) if h.ndim == 3 else h
        if not (spectrum > 0).all():
            raise ArnoError(
                f"smallest curvature {float(spectrum.min()):g}",
                "every H_k must be positive definite, otherwise F_k has no minimum",
                "use h_k above 0",
            )
        self.sharpest = float(spectrum.max())
        self.optima = torch.linalg.solve(h, e) if h.ndim == 3 else e / h[:, None]  # w*_k, one row per client
        self._floor = 0.5 * (e * self.optima).sum(1)  # ½ e_kᵀH_k⁻¹e_k
        mean = torch.einsum("k,k...->...", self.p, h)
        self.curvature: Tensor = mean if h.ndim == 3 else mean * torch.eye(d, dtype=e.dtype, device=e.device)
        self.star: Vec = torch.linalg.solve(self.curvature, self.p @ e)

    @classmethod
    def of(
        cls, instance: Instance, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> Quadratic:
        """The problem with the curvatures, terms, weights and start of an instance."""
        return cls(*(torch.from_numpy(a).to(device, dtype) for a in (instance.h, instance.e, instance.p, instance.w0)))

    def init(self, seed: int) -> Vec:
        """The given start; zero by default."""
        return self._start

    def learner(self, window: SubModel | None = None) -> QuadraticLearner:
        """A learner with its own buffers."""
        if window is not None:
            raise ArnoError(
                "sub-models on quadratics", "a quadratic has no hidden units", "use a network with hidden layers"
            )
        return QuadraticLearner(self)

    def apply(self, w: Vec, clients: Tensor) -> Tensor:
        """H_k w for each client."""
        h = self.h[clients]
        out: Tensor = torch.einsum("kij,j->ki", h, w) if h.ndim == 3 else h[:, None] * w
        return out

    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """F_k(w) for each client, computed as ½ (w − w*_k)ᵀH_k(w − w*_k), which cannot be negative."""
        off, h = w - self.optima[clients], self.h[clients]
        return 0.5 * (torch.einsum("ki,kij,kj->k", off, h, off) if h.ndim == 3 else h * (off * off).sum(1))

    def gradient(self, w: Vec) -> Vec:
        """∇F(w) = Σ p_k (H_k w − e_k)."""
        return self.curvature @ w - self.p @ self.e

    def tally(self, w: Vec, split: str, first: int, last: int) -> Tensor:
        """The gap F(w) − F(w*) = ½ (w − w*)ᵀ(Σ p_k H_k)(w − w*) and the distance ‖w − w*‖; there are no splits."""
        off = w - self.star
        return torch.stack([0.5 * off @ self.curvature @ off, off.norm()]).double()

    def scores(self, tally: Tensor) -> dict[str, float]:
        """The gap and the distance."""
        gap, distance = tally.tolist()
        return {"gap": gap, "distance": distance}

    def advice(self, fed: Federation) -> list[str]:
        """A warning if gradient descent of a client diverges with its learning rate."""
        lr = fed.per_client(fed.local.lr, "local.lr").largest
        return too_fast(lr, self.sharpest)

    def describe(self) -> str:
        """The problem in a few words."""
        return f"quadratics in {self.layout.d} dimensions: {self.clients.n} clients"

    def fingerprint(self) -> str:
        """A digest of the curvatures, linear terms and weights."""
        parts = (tensor.cpu().numpy().tobytes() for tensor in (self.h, self.e, self.p))
        return blake2b(b"".join(parts), digest_size=16).hexdigest()


class QuadraticLearner:
    """Exact gradients H_k w − e_k."""

    def __init__(self, problem: Quadratic) -> None:
        self.problem = problem
        self.w = self.p = torch.zeros_like(problem.e[0])
        self.g = torch.zeros_like(self.p)
        self.layout = problem.layout

    def batches(self, job: Job) -> Iterator[int]:
        """One batch per epoch: the index of the client."""
        for _ in range(job.epochs):
            yield job.client

    def gradient(self, batch: int, job: Job) -> Tensor:
        """Write ∇F_k(w) into `g`; return F_k(w) = ½ wᵀ(∇F_k(w) − e_k) + ½ e_kᵀH_k⁻¹e_k."""
        h, e = self.problem.h[batch], self.problem.e[batch]
        torch.sub(h @ self.w if h.ndim == 2 else h * self.w, e, out=self.g)
        return 0.5 * (self.w @ (self.g - e)) + self.problem._floor[batch]

    def curvature(self, batch: int, job: Job, direction: Vec) -> Vec:
        """H_k · direction."""
        h = self.problem.h[batch]
        return h @ direction if h.ndim == 2 else h * direction

    def size(self, batch: int) -> int:
        """A quadratic counts as one sample."""
        return 1

    def autograd(self, job: Job) -> bool:
        """Never: the gradient has a formula."""
        return False
