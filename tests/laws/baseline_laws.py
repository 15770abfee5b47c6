"""The laws of the baselines for label skew and client drift; `method_laws.py` says what laws are."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from small import HALF, federate, make, network, quadratic, same
from torch.nn import functional as F

from arno.client_selection.schedule import Fixed
from arno.core.work import SGD
from arno.methods.fedacg import LookAhead
from arno.methods.fedcm import ClientMomentum
from arno.methods.feddc import DriftCorrection
from arno.methods.feddecorr import Correlation
from arno.methods.fedexp import Extrapolation
from arno.methods.fedlc import Calibrated
from arno.methods.fedntd import Distillation


def law_fedlc_without_margins_is_cross_entropy_over_the_clients_classes() -> None:
    z, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 2, 0, 2, 0])
    counts = torch.tensor([3, 0, 16, 0])
    view = SimpleNamespace(
        outputs=z, y=y, job=SimpleNamespace(client=0), learner=SimpleNamespace(label_counts=lambda k: counts)
    )
    plain = F.cross_entropy(z[:, [0, 2]], (y == 2).long())
    same(Calibrated(0.0, others=False)(view).detach(), plain.detach())  # type: ignore[arg-type]
    a = z[:, [0, 2]] - 1.5 * torch.tensor([3.0, 16.0], dtype=torch.float64) ** -0.25
    loss = Calibrated(1.5, others=False)(view)  # type: ignore[arg-type]
    same(loss.detach(), F.cross_entropy(a, (y == 2).long()).detach())
    (g,) = torch.autograd.grad(loss, z)
    assert not g[:, [1, 3]].any()
    wrong = a[torch.arange(6), (y != 2).long()]
    right = a[torch.arange(6), (y == 2).long()]
    same(Calibrated(1.5, others=True)(view).detach(), (wrong - right).mean().detach())  # type: ignore[arg-type]


def law_fedntd_pulls_the_other_classes_to_the_received_model() -> None:
    g = torch.Generator().manual_seed(0)
    z, received = (torch.randn(5, 4, generator=g, dtype=torch.float64) for _ in range(2))
    z.requires_grad_()
    y, beta, tau = torch.tensor([0, 1, 2, 3, 1]), 0.7, 2.0
    view = SimpleNamespace(outputs=z, y=y, job=SimpleNamespace(sent=None), frozen_outputs=lambda w: received)
    (gradient,) = torch.autograd.grad(Distillation(beta, tau)(view), z)  # type: ignore[arg-type]
    for i, true in enumerate(y.tolist()):
        others = [c for c in range(4) if c != true]
        mine, theirs = ((logits[i, others] / tau).softmax(0) for logits in (z.detach(), received))
        same(gradient[i, others], beta * tau * (mine - theirs) / 5)
        assert gradient[i, true] == 0
    view.frozen_outputs = lambda w: z.detach()  # as at the first step of a round
    term = Distillation(beta, tau)(view)  # type: ignore[arg-type]
    same(torch.stack([term, torch.autograd.grad(term, z)[0].abs().max()]).detach(), torch.zeros(2))


def law_feddecorr_scales_differ_by_the_factor_of_the_released_program() -> None:
    g = torch.Generator().manual_seed(1)
    z = torch.randn(6, 3, generator=g, dtype=torch.float64)
    view = SimpleNamespace(embedding=z)
    u = (z - z.mean(0)) / ((z - z.mean(0)).square().sum(0) / 5 + 1e-8).sqrt()
    k = u.T @ u / 5
    printed, released = (float(Correlation(0.1, paper)(view)) for paper in (True, False))  # type: ignore[arg-type]
    assert abs(printed - 0.1 * float(k.square().sum()) / 9) < 1e-12
    apart = float(k.square().sum() - k.diagonal().square().sum())
    assert abs(released - 0.1 * apart * 25 / 6 / 6) < 1e-12
    assert float(Correlation(0.1, False)(SimpleNamespace(embedding=z[:1]))) == 0  # type: ignore[arg-type]


def law_sam_takes_the_gradient_at_the_worst_point_nearby() -> None:
    problem, decay = quadratic(), 0.1
    fed = federate(problem, [Fixed([[3]]), *make("fedsam", rho=0.3)], 1, epochs=1, lr=0.1, sgd=SGD(weight_decay=decay))
    w = problem.init(0)
    a = problem.h[3] @ w - problem.e[3]
    worst = w + 0.3 * a / a.norm()
    same(fed.w, w - 0.1 * (problem.h[3] @ worst - problem.e[3] + decay * w))


def law_fedacg_steps_from_its_look_ahead() -> None:
    problem = quadratic()
    fed = federate(problem, [Fixed(HALF), part := LookAhead(0.5, 0.2)], 1, server_lr=0.8)
    w, m = fed.w.clone(), part.m.clone()
    ahead = w + 0.8 * 0.5 * m
    deltas = [federate(problem, [Fixed([[k]]), *make("fedprox", mu=0.2)], 1, w=ahead).w - ahead for k in HALF[1]]
    fed.round()
    same(fed.w, ahead + 0.8 * torch.stack(deltas).mean(0))
    same(
        federate(problem, [Fixed(HALF), *make("fedacg", momentum=0.0, mu=0.2)], 3).w,
        federate(problem, [Fixed(HALF), *make("fedprox", mu=0.2)], 3).w,
    )


def law_fedexp_extrapolates_by_how_much_updates_disagree() -> None:
    problem = quadratic()
    fed = federate(problem, [Fixed([[0, 3, 5]]), part := Extrapolation(1e-3)], 1, lr=0.2)
    deltas = torch.stack([federate(problem, [Fixed([[k]])], 1, lr=0.2).w - problem.init(0) for k in (0, 3, 5)])
    mean = deltas.mean(0)
    step = float(deltas.square().sum(1).mean() / (2 * (mean @ mean + 1e-3)))
    assert step > 1.05, "the example must extrapolate"
    assert abs(part.step - step) < 1e-12
    same(fed.w - problem.init(0), step * mean)
    alone = federate(problem, [Fixed([[2]]), part := Extrapolation(1e-3)], 3)
    assert part.step == 1, "one participant is never extrapolated"
    same(alone.w, federate(problem, [Fixed([[2]])], 3).w)
    two = federate(problem, [Fixed(HALF), part := Extrapolation(1e-3, "mean_of_two")], 2)
    last = two.w.clone()
    two.round()
    same(two.evaluated(), (last + two.w) / 2)
    plain = federate(problem, [Fixed(HALF), Extrapolation(1e-3)], 3)
    same(plain.w, two.w)
    same(plain.evaluated(), plain.w)


def law_fedcm_mixes_in_the_mean_gradient_of_the_last_round() -> None:
    problem = quadratic()
    first = federate(problem, [Fixed(HALF), part := ClientMomentum(0.3)], 1, epochs=1, lr=0.1)
    same(first.w, federate(problem, [Fixed(HALF)], 1, epochs=1, lr=0.03).w)
    w0 = problem.init(0)
    same(part.m, 0.3 * torch.stack([problem.h[k] @ w0 - problem.e[k] for k in HALF[0]]).mean(0))
    w, m = first.w.clone(), part.m.clone()
    first.round()
    gradients = torch.stack([problem.h[k] @ w - problem.e[k] for k in HALF[1]])
    same(first.w, w - 0.1 * (0.3 * gradients + 0.7 * m).mean(0))


def law_feddc_moves_twice_in_its_first_round() -> None:
    problem, start = quadratic(), quadratic().init(0)
    once = federate(problem, [Fixed(HALF)], 1).w - start
    for drift, factor in (("cohort", 2.0), ("all", 1.5)):  # four of eight clients
        same(federate(problem, [Fixed(HALF), DriftCorrection(0.0, drift)], 1).w - start, factor * once)  # type: ignore[arg-type]


def law_feddc_corrects_with_drift_and_last_updates() -> None:
    problem, alpha, lr = quadratic(), 0.4, 0.05
    fed = federate(problem, [Fixed([[0, 1], [1, 2]]), part := DriftCorrection(alpha)], 1, epochs=1, lr=lr)
    w, h, g = fed.w.clone(), part.h[torch.arange(8)], part.g[torch.arange(8)]
    fed.round()
    moved = {}
    for k in (1, 2):
        gradient = problem.h[k] @ w - problem.e[k] + alpha * h[k] + (g[k] - g.mean(0)) / lr
        moved[k] = -lr * gradient
    same(fed.w - w, sum(moved[k] + (h[k] + moved[k]) for k in (1, 2)) / 2)  # type: ignore[arg-type]


def law_mime_with_everybody_and_one_full_step_is_momentum_sgd() -> None:
    problem, beta = network(), 0.6
    sgd = SGD(weight_decay=0.1)
    fed = federate(problem, make("mime", beta=beta), 3, epochs=1, batch_size=1000, lr=0.2, sgd=sgd, weighting="samples")
    w, m = problem.init(0).requires_grad_(), torch.zeros(problem.layout.d, dtype=torch.float64)
    for _ in range(3):
        views = problem.layout.views(w)
        loss = F.cross_entropy(torch.func.functional_call(problem.module, views, (problem.x,)), problem.y)
        (g,) = torch.autograd.grad(loss, w)
        step = (1 - beta) * (g + 0.1 * w.detach()) + beta * m
        w, m = (w.detach() - 0.2 * step).requires_grad_(), step
    same(fed.w, w.detach())


def law_mime_corrects_every_batch_with_the_gradient_at_the_servers_model() -> None:
    problem = quadratic()
    fed = federate(problem, [Fixed([[0, 4]]), *make("mime", beta=0.0)], 1, epochs=2, lr=0.1)
    w0 = problem.init(0)
    mean = sum(problem.h[k] @ w0 - problem.e[k] for k in (0, 4)) / 2
    ends = []
    for k in (0, 4):
        w = w0
        for _ in range(2):
            w = w - 0.1 * (problem.h[k] @ (w - w0) + mean)
        ends.append(w)
    same(fed.w, sum(ends) / 2)  # type: ignore[arg-type]


def law_baselines_that_are_switched_off_are_fedavg() -> None:
    base = federate(network(), [Fixed(HALF)], 4).w
    off = {
        "fedntd": {"beta": 0.0},
        "feddecorr": {"beta": 0.0},
        "fedsam": {"rho": 0.0},
        "fedacg": {"momentum": 0.0, "mu": 0.0},
        "fedexp": {"epsilon": 1e12},
        "fedcm": {"alpha": 1.0},
        "mimelite": {"beta": 0.0},
    }
    for name, settings in off.items():
        same(federate(network(), [Fixed(HALF), *make(name, **settings)], 4).w, base)


def law_label_skew_baselines_without_anything_to_correct_are_fedavg() -> None:
    two = network(classes=2)
    base = federate(two, [Fixed(HALF)], 3).w
    same(federate(two, [Fixed(HALF), *make("fedntd", beta=3.0, tau=2.0)], 3).w, base)
    even = network(balanced=True)
    plain = federate(even, [Fixed(HALF)], 3).w
    same(federate(even, [Fixed(HALF), *make("fedlc", tau=2.0)], 3).w, plain)
    uneven = federate(network(), [Fixed(HALF), *make("fedlc", tau=2.0)], 3).w
    assert float((uneven - federate(network(), [Fixed(HALF)], 3).w).norm()) > 1e-3


def law_feddc_of_one_client_has_no_gradient_correction() -> None:
    problem, alpha, lr = quadratic(n=1), 0.4, 0.05
    fed = federate(problem, [part := DriftCorrection(alpha)], 1, epochs=1, lr=lr)
    w, h = fed.w.clone(), part.h[torch.tensor([0])][0]
    fed.round()
    moved = -lr * (problem.h[0] @ w - problem.e[0] + alpha * h)
    same(fed.w - w, moved + h + moved)
