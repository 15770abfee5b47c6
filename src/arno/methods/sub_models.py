"""Clients that train a part of the network (a window): the part of FedRolex, Federated Dropout, HeteroFL, FedSCAVAR.

    client k:  trains the network of its units I_k, from w on I_k; I_k has ⌊β_k n⌋ of the n units of a layer, at least 1
    server:    w_i ← w_i + η_s (Σ_{k: i∈I_k} p_k Δ_{k,i}) / (Σ_{k: i∈I_k} p_k);  coordinates that no client trained stay

If a unit is left out, its weights, its bias, its norm parameters and the inputs of the next layer from this unit are
left out, too. Inputs, classes and the last bias are never left out.

Deviations: outputs are not rescaled (HeteroFL's scaler, Dropout's 1/β). `normalize=all` divides by Σ_{k∈S} p_k = 1
for every coordinate. With a part that has the role `mean` (FedVARP), the divisor of that part is used. The number of
groups of a GroupNorm becomes its greatest common divisor with the number of remaining channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import torch

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.per_client import PerClient
from ..core.seeds import stream
from ..core.work import Result, SubModel, Vec, Work
from ..errors import ArnoError
from . import parts

Mode = Literal["extract", "mask"]
Normalize = Literal["coverage", "all"]
Rule = Literal["rolling", "random", "static"]

#: How the server averages coordinates that only some clients trained.
MEAN = "w_i ← w_i + η_s Σ_{k: i∈I_k} p_k Δ_{k,i} / Σ_{k: i∈I_k} p_k"


@parts.register("window")
@dataclass
class Window(Part):
    """Which units each client trains, and the mean over the clients that trained a coordinate."""

    beta: PerClient = 0.5
    rule: Rule = "rolling"
    mode: Mode = "extract"
    normalize: Normalize = "coverage"
    roles: ClassVar[frozenset[str]] = frozenset({"window"})

    def start(self, fed: Federation) -> None:
        """Draw β_k, and find out whether the network has units that can be left out."""
        self._beta = fed.per_client(self.beta, "method.beta", above=0, most=1)
        self._units, self._seed = fed.layout.units, fed.seed
        cuts = self._beta.smallest < 1
        if cuts and not fed.layout.annotated:
            raise ArnoError(
                f"method.beta = {self._beta.smallest:g}",
                "this network does not declare its units, so no unit can be left out",
                "give it a method units() (see docs/methods.md), or use method.beta=1",
            )
        self._cuts = cuts and bool(self._units)
        if cuts and not self._units:
            fed.advice.append(
                f"method.beta = {self._beta.smallest:g} has no effect: this network has no hidden units, "
                "so every client trains the whole model"
            )
        divides = any("mean" in part.roles for part in fed.parts)
        self._coverage = self.normalize == "coverage" and self._cuts and not divides
        self._index = lru_cache(maxsize=64)(fed.layout.index_of)  # once per (β, round mod n)

    def begin(self, t: int) -> None:
        """In this round, no client has trained a coordinate yet."""
        self._cover: Vec | None = None

    def send(self, work: Work) -> Work:
        """Give every client its window."""
        if not self._cuts:
            return work
        pairs = zip(self._beta.at(work.clients, work.round).tolist(), work.clients.tolist(), strict=True)
        return replace(work, windows=tuple(self._window(beta, k, work.round) for beta, k in pairs))

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """Add up Σ_{k: i∈I_k} p_k for every coordinate i."""
        if self._coverage:
            self._cover = torch.zeros_like(v) if self._cover is None else self._cover
            for window, weight in zip(work.windows or (), work.weight, strict=True):
                self._cover[window.index] += weight
        return v

    def finish(self, t: int, v: Vec) -> Vec:
        """Divide by Σ_{k: i∈I_k} p_k; coordinates that no client trained do not change."""
        return v if self._cover is None else torch.where(self._cover > 0, v / self._cover, 0)

    def _window(self, beta: float, client: int, t: int) -> SubModel:
        kept = []
        for group, n in self._units.items():
            count = max(1, int(beta * n + 1e-9))
            if self.rule == "random":
                draw = torch.randperm(n, generator=stream(self._seed, f"window/{group}", t, client))[:count]
                kept.append((group, tuple(draw.sort().values.tolist())))
            else:
                first = t % n if self.rule == "rolling" else 0
                kept.append((group, tuple((first + i) % n for i in range(count))))
        sizes = tuple((group, len(units)) for group, units in kept)
        return SubModel(self._index(tuple(kept)), sizes, self.mode == "extract")
