"""Local training: the one kernel that every method and every engine runs.

    w_k ← start
    repeat E_k epochs, over batches b of D_k:
        g ← ∇ℓ(w_k; b) + wd·w_k + μ_k (w_k − anchor) + drift
        w_k ← w_k − η_k (scale · g + push)
    Δ_k ← w_k − start

The anchor is the start, scale is 1 and push is 0 unless a method says otherwise. With a window only its coordinates
exist (`extract`) or move (`mask`); a phase may move one group of coordinates. Options off by default: the gradient of
the loss is clipped to a norm before the other terms are added (as `clip_grad_norm_` before `torch.optim.SGD`), and
momentum smooths g. Methods whose paper changes the step itself name a rule in `core/local_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .problem import Learner
from .work import Job, Vec

#: Writes ∇ℓ(w; batch) into the learner's `g` and returns the loss.
Gradient = Callable[[Any, Job], Tensor]


def sgd(learner: Learner, job: Job, delta: Vec) -> tuple[float, dict[str, Tensor]]:
    """SGD, in one phase or several: Δ_k goes into `delta`; returns the mean loss, and what the client keeps."""
    if not job.phases:
        return descend(learner, job, delta), {}
    losses, kept, here = [], dict[str, Tensor](), job.start
    for phase in job.phases:
        start = job.given[phase.start] if phase.start else here
        moved = torch.empty_like(delta)
        now = replace(
            job if not phase.keep else replace(job, drift=None, push=None, scale=1.0),
            start=start,
            received=job.start,
            anchor=job.start if phase.pulled else None,
            epochs=int(job.numbers[phase.epochs]) if phase.epochs else job.epochs,
            mu=job.numbers[phase.mu] if phase.mu else job.mu,
            moves=phase.moves,
        )
        loss = descend(learner, now, moved)
        if phase.keep:
            kept[phase.keep] = start + moved
        else:
            here = start + moved
            losses.append(loss)
    torch.sub(here, job.start, out=delta)
    return sum(losses) / max(1, len(losses)), kept


def descend(learner: Learner, job: Job, delta: Vec, gradient: Gradient | None = None) -> float:
    """SGD with this gradient (the learner's by default): Δ_k goes into `delta`; returns the mean loss of all steps."""
    w, p, g = learner.w, learner.p, learner.g
    window, gradient = job.window, gradient or learner.gradient
    inside = None if window is None else window.index.to(w.device)
    cut = inside if window is not None and window.extract else None

    start = job.start if cut is None else job.start[cut]
    w.copy_(start)
    d = len(p)
    drift, push = (x if x is None else (x if cut is None else x[cut])[:d] for x in (job.drift, job.push))
    anchor = (start if job.anchor is None else job.anchor if cut is None else job.anchor[cut])[:d]
    mask = None
    if inside is not None and cut is None:
        mask = torch.zeros_like(w).index_fill_(0, inside, 1)[:d]
    moving = None if job.moves == "full" else learner.layout.mask(job.moves).to(w)
    if moving is not None:
        mask = moving[:d] if mask is None else mask * moving[:d]

    sgd, velocity, decay = job.sgd, None, weight_decay(learner, job)
    losses: list[Tensor] = []
    for batch in learner.batches(job):
        losses.append(gradient(batch, job))
        if sgd.clip is not None:
            g.mul_((sgd.clip / (g.norm() + 1e-6)).clamp(max=1.0))
        if isinstance(decay, Tensor):
            g.addcmul_(p, decay)
        elif decay:
            g.add_(p, alpha=decay)
        if job.mu:
            g.add_(p - anchor, alpha=job.mu)
        if drift is not None:
            g.add_(drift)
        if push is not None:
            torch.add(push, g, alpha=job.scale, out=g)
        if mask is not None:
            g.mul_(mask)
        if sgd.momentum:
            velocity = g.clone() if velocity is None else velocity.mul_(sgd.momentum).add_(g)
        p.add_(g if velocity is None else velocity, alpha=-job.lr)

    if moving is not None:  # running statistics outside the group do not change either
        w[d:].copy_(torch.where(moving[d:] > 0, w[d:], start[d:]))
    if cut is None:
        torch.sub(w, start, out=delta)
    else:
        delta.zero_().index_copy_(0, cut, w - start)
    return sum(torch.stack(losses).tolist()) / len(losses) if losses else 0.0


def weight_decay(learner: Learner, job: Job) -> float | Tensor:
    """The weight decay of the parameters; one number each where the network does not train all of them."""
    decay, trained = job.sgd.weight_decay, learner.layout.trained if job.sgd.weight_decay else None
    return decay if trained is None else decay * trained.to(learner.p)
