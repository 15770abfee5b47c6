"""FedRCL: clients learn features that separate the classes without collapsing each class to a point.

    for every feature level: s_ij = cosine of samples i and j of the batch; for every anchor i
        pos = s of i and the least similar sample of i's class (i itself counts)
        neg = s of i and each of the two most similar samples of other classes
        contrastive:  −log( e^{pos/τ} / (e^{pos/τ} + Σ e^{neg/τ}) ),  0 without negatives
        penalty:      −log( e^{1/τ} / (e^{1/τ} + e^{s/τ}) ),  s of i and the least similar *other* sample of i's class;
                      s = −1 if s is below λ, or if there is no such sample
    ℓ ← cross-entropy + mean over levels of mean over anchors of (contrastive + penalty)

Seo, Kim, Kim, Han: Relaxed Contrastive Learning for Federated Learning. CVPR 2024, arXiv:2401.04928.

Deviations: the levels are the outputs of the network's stem and blocks; for a ResNet, the outputs of its stem and
stages. A feature vector of length zero has similarity 0 to every other sample and gets no gradient. The paper's random
crop and flip are `local.augment=true`; they are off by default, because they do not suit every data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.federation import Federation
from ..core.method_part import Part
from ..core.work import Work
from ..errors import ArnoError
from ..models.network import Network
from ..problems.supervised import Supervised, View
from . import methods, parts

Loss = Literal["relaxed", "supcon", "align"]

#: Local training as in the paper; after every round, the learning rate is multiplied by lr_decay.
DEFAULTS = {
    "local.lr": 0.1,
    "local.lr_decay": 0.998,
    "local.weight_decay": 1e-3,
    "local.batch_size": 50,
    "local.epochs": 5,
    "local.clip": 10.0,
}


@methods.register(
    "fedrcl",
    family="label-skew",
    paper="Seo et al., CVPR 2024, arXiv:2401.04928",
    formula="ℓ + mean over levels and anchors of −log( e^{pos/τ} / (e^{pos/τ} + Σ e^{neg/τ}) ) + divergence penalty",
    defaults=DEFAULTS,
    tune={
        "temperature": "log(0.02, 0.5)",
        "threshold": "linear(0.3, 0.95)",
        "weight_contrastive": "log(0.1, 10)",
        "weight_penalty": "log(0.1, 10)",
    },
)
def fedrcl(
    *,
    loss: Loss = "relaxed",
    temperature: float = 0.05,
    threshold: float = 0.7,
    positives: int = 1,
    negatives: int = 2,
    weight_contrastive: float = 1.0,
    weight_penalty: float = 1.0,
    levels: tuple[int, ...] = (),
) -> list[Part]:
    """A contrastive term with a penalty separates the classes in each client's features.

    Helps: on images with label skew, with deep networks that have several feature levels.
    Hurts: with small batches, because they hold few pairs of samples of a class; and in time.

    loss: relaxed (as the paper), supcon (supervised contrastive), align (features stay near those of the global model).
    temperature: τ.
    threshold: λ; the penalty applies if the similarity within a class is above it.
    positives, negatives: how many of the hardest samples count.
    weight_contrastive, weight_penalty: weights of the two terms; the first is also the weight of supcon and align.
    levels: the feature levels that count, as numbers from 0; empty: all levels.

    >>> fedrcl(threshold=0.6)[0].threshold
    0.6
    """
    return [
        RelaxedContrast(
            loss, temperature, threshold, positives, negatives, weight_contrastive, weight_penalty, tuple(levels)
        )
    ]


@parts.register("rcl")
@dataclass
class RelaxedContrast(Part):
    """Adds the contrastive term to every client's loss; it does not change the server."""

    loss: Loss = "relaxed"
    temperature: float = 0.05
    threshold: float = 0.7
    positives: int = 1
    negatives: int = 2
    weight_contrastive: float = 1.0
    weight_penalty: float = 1.0
    levels: tuple[int, ...] = ()
    roles: ClassVar[frozenset[str]] = frozenset({"loss"})

    def start(self, fed: Federation) -> None:
        """Refuse settings and networks for which the term is not defined."""
        if not self.temperature > 0:
            raise ArnoError(f"method.temperature = {self.temperature:g}", "τ must be positive", "the paper uses 0.05")
        if self.positives < 1 or self.negatives < 1:
            given = f"method.positives = {self.positives}, method.negatives = {self.negatives}"
            raise ArnoError(given, "each must be at least 1", "the paper uses 1 and 2")
        count = count_levels(fed)
        if self.loss != "align" and isinstance(fed.problem, Supervised) and not fed.problem.task.classes:
            raise ArnoError(
                f"FedRCL on task {fed.problem.task.name}", "it contrasts classes", "use method.loss=align, or MOON"
            )
        if self.loss != "align" and not count:
            raise ArnoError("FedRCL on this model", "it has no feature levels", "try model=mlp, or method.loss=align")
        if wrong := [level for level in self.levels if not 0 <= level < count]:
            raise ArnoError(
                f"method.levels = {list(self.levels)}", f"there is no level {wrong[0]}", f"use 0 to {count - 1}"
            )

    def send(self, work: Work) -> Work:
        """Add the term to the loss."""
        settings = {name: getattr(self, name) for name in Contrast.__dataclass_fields__}
        return replace(work, terms=(*work.terms, Contrast(**settings)))


@dataclass(frozen=True)
class Contrast:
    """The term of one batch."""

    loss: Loss
    temperature: float
    threshold: float
    positives: int
    negatives: int
    weight_contrastive: float
    weight_penalty: float
    levels: tuple[int, ...]

    def __call__(self, view: View) -> Tensor:
        """The term that is added to the cross-entropy."""
        if self.loss == "align":
            return self.weight_contrastive * misalignment(view.embedding, view.frozen(view.job.sent))
        chosen = [view.levels[i] for i in self.levels] if self.levels else view.levels
        if self.loss == "supcon":
            return self.weight_contrastive * supervised_contrastive(chosen, view.y, self.temperature)
        return relaxed_contrastive(
            chosen,
            view.y,
            temperature=self.temperature,
            threshold=self.threshold,
            positives=self.positives,
            negatives=self.negatives,
            weight_contrastive=self.weight_contrastive,
            weight_penalty=self.weight_penalty,
        )


def relaxed_contrastive(
    levels: Sequence[Tensor],
    labels: Tensor,
    *,
    temperature: float = 0.05,
    threshold: float = 0.7,
    positives: int = 1,
    negatives: int = 2,
    weight_contrastive: float = 1.0,
    weight_penalty: float = 1.0,
) -> Tensor:
    """The mean over levels and anchors of contrastive term and penalty; a level is [B, D_l], `labels` are [B].

    >>> apart = [torch.eye(2)[[0, 0, 1, 1]]]
    >>> mixed = [torch.eye(2)[[0, 1, 0, 1]]]
    >>> y = torch.tensor([0, 0, 1, 1])
    >>> bool(relaxed_contrastive(apart, y, threshold=2) < 1e-6), bool(relaxed_contrastive(mixed, y) > 19)
    (True, True)
    """
    sim = similarities(levels)  # levels × anchors × samples
    same = labels[:, None] == labels
    other = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)

    pos = sim.masked_fill(~same, torch.inf).topk(min(positives, len(labels)), largest=False).values
    neg = sim.masked_fill(same, -torch.inf).topk(min(negatives, len(labels))).values
    against = _logsumexp(neg / temperature) - torch.where(pos.isinf(), 0, pos / temperature)
    contrast = F.softplus(against)  # −log(e^p / (e^p + Σ e^n)) = log(1 + Σ e^n / e^p)
    contrast = contrast.masked_fill(pos.isinf(), 0).sum(-1) / (~pos.isinf()).sum(-1)

    far = sim.masked_fill(~other, torch.inf).amin(-1)
    far = torch.where(far.isinf() | (far < threshold), -1, far)
    penalty = F.softplus((far - 1) / temperature)
    return (weight_contrastive * contrast + weight_penalty * penalty).mean()


def supervised_contrastive(levels: Sequence[Tensor], labels: Tensor, temperature: float) -> Tensor:
    """The mean over levels and anchors of −(1/|P|) Σ_{p∈P} log( e^{s_ip/τ} / Σ_{a≠i} e^{s_ia/τ} ), P = i's class.

    An anchor without another sample of its class counts 0. Khosla et al., NeurIPS 2020, arXiv:2004.11362 (L_out).
    """
    sim = similarities(levels) / temperature
    self = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    same = (labels[:, None] == labels) & ~self
    log_share = sim - _logsumexp(sim.masked_fill(self, -torch.inf), fill=0.0)
    return -(log_share.masked_fill(~same, 0).sum(-1) / same.sum(-1).clamp(min=1)).mean()


def misalignment(features: Tensor, wanted: Tensor) -> Tensor:
    """The mean over the batch of 1 − cosine; a vector of length zero has cosine 0."""
    return 1 - (_unit(features) * _unit(wanted)).sum(-1).mean()


def similarities(levels: Sequence[Tensor]) -> Tensor:
    """Cosines between the samples of a batch, levels × B × B; a sample's cosine to itself is 1."""
    sim = torch.stack([(unit := _unit(features)) @ unit.T for features in levels])
    return sim.masked_fill(torch.eye(sim.shape[-1], dtype=torch.bool, device=sim.device), 1)


def count_levels(fed: Federation) -> int:
    """How many feature levels the network has."""
    problem = fed.problem
    if not isinstance(problem, Supervised) or not isinstance(problem.module, Network):
        raise ArnoError(
            "FedRCL on this model", "it needs the feature levels of a Network", "derive the model from arno's Network"
        )
    found: list[Tensor] = []
    with torch.no_grad():
        network = problem.model(fed.w)
        assert isinstance(network, Network)
        network.embed(problem.inputs(problem.x[:1]), found)
    return len(found)


def _unit(features: Tensor) -> Tensor:
    length = features.norm(dim=-1, keepdim=True)
    some = length > 1e-12
    return torch.where(some, features / length.where(some, 1), 0)


def _logsumexp(x: Tensor, fill: float = -torch.inf) -> Tensor:
    """logsumexp over the last axis, which gets length 1. Where all entries are −∞: `fill`, without a gradient."""
    some = ~x.isneginf().all(-1, keepdim=True)
    return torch.where(some, torch.where(some, x, 0).logsumexp(-1, keepdim=True), fill)
