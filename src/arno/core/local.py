"""Local training: the one kernel that every method and every engine runs.

    w_k ← start
    repeat E_k epochs, over batches b of D_k:
        g ← ∇ℓ(w_k; b) + wd·w_k + μ_k (w_k − start) + drift
        w_k ← w_k − η_k g
    Δ_k ← w_k − start

With a window only its coordinates exist (`extract`) or move (`mask`). Options off by default: the gradient of the
loss is clipped to a norm before the other terms join it (as `clip_grad_norm_` before `torch.optim.SGD`), and
momentum smooths g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .contracts import Learner
from .work import Job, Vec


def train(learner: Learner, job: Job, delta: Vec) -> tuple[float, dict[str, Tensor]]:
    """Train one client: Δ_k goes into `delta`; returns the mean loss over its steps and what the probe made."""
    with torch.inference_mode(not learner.autograd(job)):
        loss = _train(learner, job, delta)
    return loss, {} if job.probe is None else job.probe(learner, job)


def _train(learner: Learner, job: Job, delta: Vec) -> float:
    w, p, g = learner.w, learner.p, learner.g
    window = job.window
    inside = None if window is None else window.index.to(w.device)
    cut = inside if window is not None and window.extract else None

    start = job.start if cut is None else job.start[cut]
    drift = job.drift if job.drift is None or cut is None else job.drift[cut]
    w.copy_(start)
    anchor = start[: len(p)]
    drift = None if drift is None else drift[: len(p)]
    mask = None
    if inside is not None and cut is None:
        mask = torch.zeros_like(w).index_fill_(0, inside, 1)[: len(p)]

    sgd, velocity = job.sgd, None
    losses: list[Tensor] = []
    for batch in learner.batches(job):
        losses.append(learner.gradient(batch, job))
        if sgd.clip is not None:
            g.mul_((sgd.clip / (g.norm() + 1e-6)).clamp(max=1.0))
        if sgd.weight_decay:
            g.add_(p, alpha=sgd.weight_decay)
        if job.mu:
            g.add_(p - anchor, alpha=job.mu)
        if drift is not None:
            g.add_(drift)
        if mask is not None:
            g.mul_(mask)
        if sgd.momentum:
            velocity = g.clone() if velocity is None else velocity.mul_(sgd.momentum).add_(g)
        p.add_(g if velocity is None else velocity, alpha=-job.lr)

    if cut is None:
        torch.sub(w, start, out=delta)
    else:
        delta.zero_().index_copy_(0, cut, w - start)
    return sum(torch.stack(losses).tolist()) / len(losses) if losses else 0.0
