"""ClusterFedVARP: FedVARP with one stored update per cluster of clients, for servers that cannot store N updates.

    y_q = 0 for all K clusters; c_k is client k's cluster
    server:  v ← (1/m) Σ_{k∈S} (Δ_k − y_{c_k}) + (1/N) Σ_j y_{c_j}
             w ← w + η_s v
             y_q ← mean of Δ_i over the i ∈ S in cluster q;  clusters without a participant keep their y_q

Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP. UAI 2022, arXiv:2207.14130, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.seeds import key, stream
from ..core.work import Result, Vec, Work
from ..errors import ArnoError
from . import methods, parts

#: The number of clusters, or every client's cluster (ids from 0).
Clusters = int | Sequence[int]


@methods.register(
    "cluster_fedvarp",
    family="variance-reduction",
    paper="Jhunjhunwala et al., UAI 2022, arXiv:2207.14130",
    formula="v ← (1/m) Σ_{k∈S} (Δ_k − y_{c_k}) + (1/N) Σ_j y_{c_j};  y_q ← mean of Δ_i over S ∩ cluster q",
    tune={"clusters": "int(2, 50)"},
)
def cluster_fedvarp(*, clusters: Clusters = 10, by: Literal["random", "labels"] = "random") -> list[Part]:
    """FedVARP with one stored update per cluster of clients.

    Helps: in the same cases as FedVARP, if the server cannot store an update of every client.
    Hurts: if the clients of a cluster hold different data.

    clusters: the number of clusters, or a list with every client's cluster.
    by: how clients are put into clusters: at random (of nearly equal size), or by k-means on label histograms.

    >>> cluster_fedvarp(clusters=3)
    [ClusterVarp(clusters=3, by='random')]
    """
    return [ClusterVarp(clusters, by)]


@parts.register("cluster_varp")
@dataclass
class ClusterVarp(Part):
    """The stored updates y_q of the clusters, and the mean that they correct."""

    clusters: Clusters = 10
    by: Literal["random", "labels"] = "random"
    roles: ClassVar[frozenset[str]] = frozenset({"mean"})

    def start(self, fed: Federation) -> None:
        """Put every client into a cluster; all y_q are zero."""
        self.cluster = self._assign(fed).to(fed.w.device)
        k = int(self.cluster.max()) + 1
        self._share = torch.bincount(self.cluster, minlength=k).to(fed.w) / fed.n
        self.y = fed.w.new_zeros((k, len(fed.w)))

    def begin(self, t: int) -> None:
        """(1/N) Σ_j y_{c_j}, before this round's updates."""
        self._mean = self._share @ self.y
        self._sum, self._count = torch.zeros_like(self.y), torch.zeros_like(self._share)

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """(1/m) Σ (Δ_k − y_{c_k}); `finish` sets the new y_q."""
        q, count = self.cluster[work.clients], work.count.to(self._count)
        self._sum.index_add_(0, q, count[:, None] * out.delta)
        self._count.index_add_(0, q, count)
        return work.share @ (out.delta - work.masked(self.y[q]))

    def finish(self, t: int, v: Vec) -> Vec:
        """Add (1/N) Σ_j y_{c_j}; then set y_q to the mean of the updates of its participants."""
        seen = self._count > 0
        self.y[seen] = self._sum[seen] / self._count[seen, None]
        return v + self._mean

    def _assign(self, fed: Federation) -> Tensor:
        if not isinstance(self.clusters, int):
            given = torch.tensor(list(self.clusters))
            if len(given) != fed.n or given.is_floating_point() or int(given.min()) < 0:
                raise ArnoError(
                    f"method.clusters has {len(given)} entries",
                    f"it needs a cluster id (from 0) for each of {fed.n} clients",
                    "give such a list, or the number of clusters",
                )
            return given
        if not 1 <= self.clusters <= fed.n:
            raise ArnoError(
                f"method.clusters = {self.clusters}",
                f"it must be between 1 and {fed.n}, the number of clients",
                "try method.clusters=2",
            )
        if self.by == "random":
            return torch.randperm(fed.n, generator=stream(fed.seed, "clusters")) % self.clusters
        counts = fed.problem.label_counts()
        if counts is None:
            raise ArnoError("method.by = labels", "this problem has no labels", "use method.by=random")
        shares = counts.double() / counts.sum(1, keepdim=True)
        from sklearn.cluster import KMeans

        kmeans = KMeans(self.clusters, n_init=4, random_state=key(fed.seed, "clusters") % 2**32)
        found = torch.from_numpy(kmeans.fit_predict(shares.numpy())).long()
        used: Tensor = found.unique(return_inverse=True)[1]  # k-means may leave a cluster empty
        return used
