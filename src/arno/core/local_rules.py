"""Named rules of local training, for papers that change the step itself. A method chooses a rule and its numbers.

sgd       SGD (`core/local_sgd.py`)
sam       SGD with the gradient at w_k + ρ ∇ℓ/‖∇ℓ‖
svrg      SGD with ∇f_k(w_k; b) − ∇f_k(start; b) + drift
gradient  no step: Δ_k is the gradient of the client's whole objective at its start
apfl      APFL: a global and a personal model are trained together
pfedme    pFedMe: a personal model near w_k is computed, then w_k moves towards it
meta      Per-FedAvg: steps along the gradient of f(w − α ∇f(w))
adapt     Per-FedAvg's personal model: steps with the gradient over all samples
ala       FedALA: a mixture of the global and the client's own model is learned, and training starts from it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .local_sgd import descend, sgd, weight_decay
from .problem import Learner
from .seeds import key, seeded
from .work import Job, Vec

#: What a rule returns: the mean loss over the steps, and vectors by name for `Result.extra`.
Answer = tuple[float, dict[str, Tensor]]


def train(learner: Learner, job: Job, delta: Vec) -> tuple[float, dict[str, Tensor]]:
    """Train one client. Write Δ_k into `delta`; return the mean loss over its steps, and further results by name."""
    with torch.inference_mode(not learner.autograd(job)):
        loss, extra = RULES[job.rule.name](learner, job, delta)
    return loss, extra if job.probe is None else extra | job.probe(learner, job)


def sam(learner: Learner, job: Job, delta: Vec) -> Answer:
    """Sharpness-aware minimisation: ε = ρ a/‖a‖ with a = ∇ℓ(w_k; b); the step uses ∇ℓ(w_k + ε; b).

    Both passes use the same batch and the same random draws; the buffers are those after the first pass. In a window of
    mode `mask`, a is zero outside the window.
    """
    rho, window = job.rule.numbers["rho"], job.window
    still = None
    if window is not None and not window.extract:
        still = torch.ones_like(learner.w, dtype=torch.bool).index_fill_(0, window.index, False)[: len(learner.g)]

    def gradient(batch: Any, job: Job) -> Tensor:
        draws = torch.get_rng_state()
        loss = learner.gradient(batch, job)
        if still is not None:
            learner.g[still] = 0
        norm = learner.g.norm()
        if not rho or not norm > 0:
            return loss
        here = learner.w.clone()
        learner.p.add_(learner.g, alpha=rho / float(norm))
        torch.set_rng_state(draws)
        learner.gradient(batch, job)
        learner.w.copy_(here)
        return loss

    return descend(learner, job, delta, gradient), {}


def svrg(learner: Learner, job: Job, delta: Vec) -> Answer:
    """Variance-reduced gradients: ∇f_k(w_k; b) − ∇f_k(start; b) + drift. The drift is a mean gradient at the start.

    f_k includes weight decay: this function subtracts the weight decay at the start from the drift, and `descend` adds
    the weight decay at w_k. Both passes use the same batch and the same random draws. Clipping limits the norm of the
    difference of the loss gradients.
    """
    window, inside = job.window, None
    if window is not None and window.extract:
        inside = window.index.to(job.start.device)
    start = job.start if inside is None else job.start[inside]
    decayed = torch.zeros_like(start)
    decayed[: len(learner.p)] = weight_decay(learner, job) * start[: len(learner.p)]
    if inside is not None:
        decayed = torch.zeros_like(job.start).index_copy_(0, inside, decayed)

    def gradient(batch: Any, job: Job) -> Tensor:
        draws, here = torch.get_rng_state(), learner.w.clone()
        learner.w.copy_(start)
        learner.gradient(batch, job)
        there = learner.g.clone()
        learner.w.copy_(here)
        torch.set_rng_state(draws)
        loss = learner.gradient(batch, job)
        learner.g.sub_(there)
        return loss

    drift = -decayed if job.drift is None else job.drift - decayed
    return descend(learner, replace(job, drift=drift), delta, gradient), {}


def whole_gradient(learner: Learner, job: Job, delta: Vec) -> Answer:
    """Write ∇f_k(start; D_k) into `delta`: the mean gradient over all samples, not augmented, plus weight decay."""
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
    whole[: len(total)] = total / samples + weight_decay(learner, job) * start[: len(total)]
    if inside is None:
        delta.copy_(whole)
    else:
        delta.zero_().index_copy_(0, inside, whole if len(whole) == len(inside) else whole[inside])
    return losses / samples, {}


def apfl(learner: Learner, job: Job, delta: Vec) -> Answer:
    """APFL: a global model w_k and a personal model v are trained on the same batches; v̄ = α v + (1 − α) w_k.

    w_k ← w_k − η ∇f(w_k; b);   v ← v − η α ∇f(v̄; b);   on the first batch: α ← clip(α − η ⟨v − w_k, ∇f(v̄; b)⟩)
    """
    p, g, decay, lr = learner.p, learner.g, weight_decay(learner, job), job.lr
    w, v, alpha = job.start.clone(), job.given["v"].clone(), job.numbers["alpha"]
    losses = []
    for i, batch in enumerate(learner.batches(job)):
        p.copy_(w)
        losses.append(float(learner.gradient(batch, job)))
        ours = g + decay * w
        mixed = alpha * v + (1 - alpha) * w
        p.copy_(mixed)
        learner.gradient(batch, job)
        theirs = g + decay * mixed
        adapted = alpha
        if i == 0 and job.rule.numbers["adaptive"]:
            adapted = min(1.0, max(0.0, alpha - lr * float((v - w) @ theirs)))
        w, v, alpha = w - lr * ours, v - lr * alpha * theirs, adapted
    torch.sub(w, job.start, out=delta)
    return sum(losses) / len(losses), {"v": v, "alpha": torch.tensor(alpha, dtype=torch.float64)}


def pfedme(learner: Learner, job: Job, delta: Vec) -> Answer:
    """pFedMe: on each batch, K steps of θ on f(θ; b) + λ/2 ‖θ − w_k‖², then w_k ← w_k − η λ (w_k − θ)."""
    numbers, p, g, decay = job.rule.numbers, learner.p, learner.g, weight_decay(learner, job)
    lam, rate = numbers["lam"], numbers["inner_lr"]
    w, theta = job.start.clone(), job.start.clone()
    losses = []
    for batch in learner.batches(job):
        for _ in range(int(numbers["inner_steps"])):
            p.copy_(theta)
            losses.append(float(learner.gradient(batch, job)))
            theta = theta - rate * (g + decay * theta + lam * (theta - w))
        w = w - job.lr * lam * (w - theta)
    torch.sub(w, job.start, out=delta)
    return sum(losses) / len(losses), {"theta": theta}


def meta(learner: Learner, job: Job, delta: Vec) -> Answer:
    """Per-FedAvg: steps along the gradient of w ↦ f(w − α ∇f(w)).

    Step i of an epoch uses its batches i, i + 1 and i + 2; the first batch follows the last one.
    curvature: 0: the Hessian is left out (first order); 1: a difference of gradients; 2: the exact product.
    """
    numbers, p, g, decay = job.rule.numbers, learner.p, learner.g, weight_decay(learner, job)
    alpha, delta_, kind = numbers["alpha"], numbers["delta"], int(numbers["curvature"])
    batches = list(learner.batches(job))
    q = len(batches) // job.epochs
    losses = []

    def gradient(at: Vec, batch: Any) -> Vec:
        p.copy_(at)
        losses.append(float(learner.gradient(batch, job)))
        return g + decay * at

    def step(w: Vec, b: Any, b1: Any, b2: Any) -> Vec:
        s = gradient(w - alpha * gradient(w, b), b1)
        h = torch.zeros_like(s)
        if kind == 1:
            h = (gradient(w + delta_ * s, b2) - gradient(w - delta_ * s, b2)) / (2 * delta_)
        elif kind == 2:
            p.copy_(w)
            h = learner.curvature(b2, job, s) + decay * s
        return w - job.lr * (s - alpha * h)

    w = job.start.clone()
    with seeded(key(job.seed, "network", job.round, job.client)):  # `batches` sets this stream only while it yields
        for first in range(0, len(batches), q):
            for i in range(q):
                w = step(w, *(batches[first + (i + j) % q] for j in range(3)))
    torch.sub(w, job.start, out=delta)
    return sum(losses) / len(losses), {}


def adapt(learner: Learner, job: Job, delta: Vec) -> Answer:
    """Per-FedAvg's personal model: steps u ← u − α ∇f_k(u), each with the gradient over all samples."""
    moved, u, loss = torch.empty_like(delta), job.start.clone(), 0.0
    for _ in range(int(job.rule.numbers["steps"])):
        loss, _ = whole_gradient(learner, replace(job, start=u), moved)
        u = u - job.rule.numbers["alpha"] * moved
    torch.sub(u, job.start, out=delta)
    return loss, {}


def ala(learner: Learner, job: Job, delta: Vec) -> Answer:
    """FedALA: learn how much of the global model each coordinate of the last layers takes, then train from the mixture.

    given: `own`, the client's own model; `chosen`, 1 at the coordinates of the last layers and 0 elsewhere;
        `weights`, W at these coordinates and 0 elsewhere.
    """
    p, g, w, own = learner.p, learner.g, job.start, job.given["own"]
    chosen, weights, eta = job.given["chosen"] > 0, job.given["weights"].clone(), job.rule.numbers["eta"]
    apart = torch.where(chosen, w - own, 0)

    def mixture() -> Vec:
        return torch.where(chosen, own + apart * weights, w)

    start, epochs = mixture(), int(job.numbers["weight_epochs"])
    if epochs:
        some = replace(job, epochs=epochs, sample_share=job.rule.numbers["share"], purpose="ala/")
        for batch in learner.batches(some):
            p.copy_(start[: len(p)])
            learner.gradient(batch, job)
            weights[: len(g)] = (weights[: len(g)] - eta * g * apart[: len(g)]).clamp(0, 1)
            start = mixture()
    moved = torch.empty_like(delta)
    loss = descend(learner, replace(job, start=start, anchor=w, received=w), moved)
    torch.sub(start + moved, w, out=delta)
    return loss, {"weights": torch.where(chosen, weights, 0)}


RULES: dict[str, Callable[[Learner, Job, Vec], Answer]] = {
    "sgd": sgd,
    "sam": sam,
    "svrg": svrg,
    "gradient": whole_gradient,
    "apfl": apfl,
    "pfedme": pfedme,
    "meta": meta,
    "adapt": adapt,
    "ala": ala,
}
