"""Named rules: how a client trains where a paper changes the step itself. A method chooses a rule by name and numbers.

sgd       the kernel of `core/local.py`
sam       the gradient at w_k + ρ ∇ℓ/‖∇ℓ‖
svrg      ∇f_k(w_k; b) − ∇f_k(start; b) + drift
gradient  no step: Δ_k is the gradient of the client's whole objective at its start
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .contracts import Learner
from .local import descend
from .work import Job, Vec


def train(learner: Learner, job: Job, delta: Vec) -> tuple[float, dict[str, Tensor]]:
    """Train one client: Δ_k goes into `delta`; returns the mean loss over its steps and what the probe made."""
    with torch.inference_mode(not learner.autograd(job)):
        loss = RULES[job.rule.name](learner, job, delta)
    return loss, {} if job.probe is None else job.probe(learner, job)


def sam(learner: Learner, job: Job, delta: Vec) -> float:
    """Sharpness-aware minimisation: ε = ρ a/‖a‖ with a = ∇ℓ(w_k; b); the step uses ∇ℓ(w_k + ε; b).

    Both passes see the same batch and the same random draws; running statistics come from the first pass.
    """
    rho = job.rule.numbers["rho"]

    def gradient(batch: Any, job: Job) -> Tensor:
        draws = torch.get_rng_state()
        loss = learner.gradient(batch, job)
        norm = learner.g.norm()
        if not rho or not norm > 0:
            return loss
        here = learner.w.clone()
        learner.p.add_(learner.g, alpha=rho / float(norm))
        torch.set_rng_state(draws)
        learner.gradient(batch, job)
        learner.w.copy_(here)
        return loss

    return descend(learner, job, delta, gradient)


def svrg(learner: Learner, job: Job, delta: Vec) -> float:
    """Variance-reduced gradients: ∇f_k(w_k; b) − ∇f_k(start; b); the mean at the start comes as drift.

    f_k includes weight decay, so that of the start is subtracted here, and that of w_k is added by the kernel.
    """
    decay, window = job.sgd.weight_decay, job.window
    start = job.start[window.index] if window is not None and window.extract else job.start

    def gradient(batch: Any, job: Job) -> Tensor:
        here = learner.w.clone()
        learner.w.copy_(start)
        learner.gradient(batch, job)
        there = learner.g + decay * learner.p
        learner.w.copy_(here)
        loss = learner.gradient(batch, job)
        learner.g.sub_(there)
        return loss

    return descend(learner, job, delta, gradient)


def whole_gradient(learner: Learner, job: Job, delta: Vec) -> float:
    """∇f_k(start; D_k) into `delta`: the mean over all samples, without augmentation, plus weight decay."""
    job, window = replace(job, epochs=1, sgd=replace(job.sgd, shuffle=False, augment=False)), job.window
    inside = None if window is None else window.index.to(delta.device)
    start = job.start[inside] if window is not None and window.extract else job.start
    learner.w.copy_(start)
    total, samples, losses = torch.zeros_like(learner.g), 0, 0.0
    for batch in learner.batches(job):
        size = learner.size(batch)
        losses += size * float(learner.gradient(batch, job))
        total.add_(learner.g, alpha=size)
        samples += size
    whole = torch.zeros_like(start)
    whole[: len(total)] = total / samples + job.sgd.weight_decay * start[: len(total)]
    if inside is None:
        delta.copy_(whole)
    else:
        delta.zero_().index_copy_(0, inside, whole if len(whole) == len(inside) else whole[inside])
    return losses / samples


RULES: dict[str, Callable[[Learner, Job, Vec], float]] = {
    "sgd": descend,
    "sam": sam,
    "svrg": svrg,
    "gradient": whole_gradient,
}
