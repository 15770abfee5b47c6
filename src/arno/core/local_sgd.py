"""Local training by SGD: the reference loop.

    w_k ← start
    repeat E_k epochs, over batches b of D_k:
        g ← ∇ℓ(w_k; b) + wd·w_k + μ_k (w_k − anchor) + drift
        w_k ← w_k − η_k (scale · g + push)
    Δ_k ← w_k − start

The anchor is the start, scale is 1 and push is 0 unless a method sets them. A window selects coordinates: with
`extract`, the network has only these coordinates; with `mask`, only these coordinates change. A phase may change only
one group of coordinates. Two options are off by default. Clipping limits the norm of ∇ℓ before the other terms are
added (as `clip_grad_norm_` before `torch.optim.SGD`). Momentum replaces u = scale · g + push by v ← momentum · v + u,
where u is zero at coordinates that must not change.

The engine `batched` computes the same steps for many clients at once. Rules with another step are in
`core/local_rules.py`.
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
    """Train in one or several phases. Write Δ_k into `delta`; return the mean loss, and what the client keeps."""
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
    """SGD with `gradient` (default: that of the learner). Write Δ_k into `delta`; return the mean loss of all steps."""
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

    if moving is not None:  # buffers outside the group keep their values, too
        w[d:].copy_(torch.where(moving[d:] > 0, w[d:], start[d:]))
    if cut is None:
        torch.sub(w, start, out=delta)
    else:
        delta.zero_().index_copy_(0, cut, w - start)
    return sum(torch.stack(losses).tolist()) / len(losses) if losses else 0.0


def weight_decay(learner: Learner, job: Job) -> float | Tensor:
    """The weight decay: one number; or one number per parameter if the network does not train all parameters."""
    decay, trained = job.sgd.weight_decay, learner.layout.trained if job.sgd.weight_decay else None
    return decay if trained is None else decay * trained.to(learner.p)
