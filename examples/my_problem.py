"""A problem in one file: the place with the smallest mean distance to the points of all clients, without a network.

F_k(w) = mean over the points a of client k of sqrt(‖w − a‖² + ε²)

    arno run problem=custom problem.target=examples/my_problem.py:factory problem.spread=3 clients=10 local.lr=0.5

Arno calls the factory with the configuration and the settings. A problem says who the clients are, what the vector of a
model is, how a gradient of a client is computed (by a learner), and what a round records. All methods work with it that
need neither classes nor a network. `data`, `partition`, `model` and `task` are not used.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from arno.core.layout import Layout
from arno.core.metric import TRAIN_LOSS, Metric
from arno.core.problem import Clients, Learner, Problem
from arno.core.seeds import stream
from arno.core.work import Job, SubModel, Vec


def factory(config: dict[str, Any], *, dim: int = 2, points: int = 20, spread: float = 1.0, seed: int = 0) -> Problem:
    """dim: of the place. points: of a client. spread: how far the clients are from each other. seed: of the points."""
    random, n = stream(seed, "places"), config["clients"]
    centers = spread * torch.randn(n, 1, dim, generator=random)
    return Places(centers + torch.randn(n, points, dim, generator=random))


class Places(Problem):
    """points: [clients, points, dim]. epsilon: keeps the distance smooth where a point is."""

    metrics = (Metric("distance", "mean distance", "less", low=0), TRAIN_LOSS)

    def __init__(self, points: Tensor, epsilon: float = 0.01) -> None:
        self.points, self.epsilon = points, epsilon
        self.device, self.dtype = points.device, points.dtype
        n, each, dim = points.shape
        self.clients, self.layout = Clients(torch.full((n,), each)), Layout.plain(dim)

    def init(self, seed: int) -> Vec:
        """A random place."""
        return 10 * torch.randn(self.layout.d, generator=stream(seed, "init"))

    def learner(self, window: SubModel | None = None) -> Learner:
        """Gradients of one client."""
        return PlacesLearner(self)

    def distances(self, w: Vec, points: Tensor) -> Tensor:
        """sqrt(‖w − a‖² + ε²) of each point."""
        return ((points - w).square().sum(-1) + self.epsilon**2).sqrt()

    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """F_k(w) of each client."""
        return self.distances(w, self.points[clients]).mean(1)

    def tally(self, w: Vec, split: str, first: int, last: int) -> Tensor:
        """The sum of all distances and the number of points; there are no splits."""
        all_distances = self.distances(w, self.points)
        return torch.tensor([float(all_distances.double().sum()), all_distances.numel()], dtype=torch.float64)

    def scores(self, tally: Tensor) -> dict[str, float]:
        """The mean distance."""
        return {"distance": float(tally[0] / tally[1])}

    def describe(self) -> str:
        """For the first line of a run."""
        return f"places in {self.layout.d} dimensions: {self.clients.n} clients"

    def fingerprint(self) -> str:
        """A digest of the points: a run continues only with the same ones."""
        return blake2b(self.points.numpy().tobytes(), digest_size=16).hexdigest()


class PlacesLearner:
    """w: all numbers of the model. p: those that train, here the same. g: the gradient."""

    def __init__(self, problem: Places) -> None:
        self.problem, self.layout = problem, problem.layout
        self.w = self.p = torch.zeros(problem.layout.d)
        self.g = torch.zeros_like(self.p)

    def batches(self, job: Job) -> Iterator[Tensor]:
        """The points of the client in a new order every epoch."""
        random = job.stream("batches")
        for _ in range(job.epochs):
            points = self.problem.points[job.client]
            yield from points[torch.randperm(len(points), generator=random)].split(job.batch_size)

    def gradient(self, batch: Tensor, job: Job) -> Tensor:
        """∇F of the batch into `g`; returns F."""
        distances = self.problem.distances(self.w, batch)
        torch.mean((self.w - batch) / distances[:, None], dim=0, out=self.g)
        return distances.mean()

    def curvature(self, batch: Tensor, job: Job, direction: Vec) -> Vec:
        """∇²F of the batch · direction, for methods that need it."""
        distances = self.problem.distances(self.w, batch)[:, None]
        off = (self.w - batch) / distances
        return ((direction - off * (off @ direction)[:, None]) / distances).mean(0)

    def size(self, batch: Tensor) -> int:
        """Points in a batch."""
        return len(batch)

    def autograd(self, job: Job) -> bool:
        """The gradient is written out."""
        return False
