"""The laws of the methods: what must hold however the code is written. Each `law_…` raises when its law is broken.

They run as tests (`test_laws.py`) and judge broken copies of the code (`broken.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from small import HALF, federate, make, network, quadratic, same
from torch import Tensor
from torch.nn import functional as F

from arno.client_selection.schedule import Fixed
from arno.client_selection.uniform import Uniform
from arno.conform import PACKAGED, implemented, read, replay
from arno.core import federation as rounds
from arno.core.federation import Federation
from arno.core.method_part import Part
from arno.core.work import SGD
from arno.methods.cluster_fedvarp import ClusterVarp
from arno.methods.fedprox import Proximal
from arno.methods.moon import Contrast
from arno.methods.scaffold import Scaffold
from arno.methods.server_lr import ServerSchedule
from arno.methods.sub_models import Window
from arno.problems.quadratic import Quadratic


def gap(fed: Federation) -> float:
    """Distance to the optimum."""
    return float((fed.w - fed.problem.star).norm())  # type: ignore[attr-defined]


def law_fedavg_with_one_step_of_everybody_is_gradient_descent() -> None:
    problem = quadratic()
    fed = federate(problem, make("fedavg"), 3, epochs=1, lr=0.1)
    w = torch.zeros(6, dtype=torch.float64)
    for _ in range(3):
        w = w - 0.1 * (torch.einsum("kij,j->ki", problem.h, w) - problem.e).mean(0)
    same(fed.w, w)


def law_samples_weigh_clients_by_their_data() -> None:
    problem = network()
    moved = federate(problem, make("fedavg"), 1, weighting="samples", epochs=1, batch_size=1000, lr=0.1)
    w0 = problem.init(0).requires_grad_()
    views = moved.layout.views(w0)
    loss = F.cross_entropy(torch.func.functional_call(problem.module, views, (problem.x,)), problem.y)
    (g,) = torch.autograd.grad(loss, w0)
    same(moved.w, w0.detach() - 0.1 * g)  # full batches, weights n_k: one step on the pooled loss


def law_server_lr_scales_the_step() -> None:
    start = quadratic().init(0)
    one, half = (federate(quadratic(), make("fedavg"), 1, server_lr=lr).w - start for lr in (1.0, 0.5))
    same(0.5 * one, half)


def law_a_client_drawn_twice_trains_once_and_counts_twice() -> None:
    problem = quadratic()
    twice = federate(problem, [Fixed([[1, 1, 4]])], 1).w
    a, b = (federate(problem, [Fixed([[k]])], 1).w for k in (1, 4))
    same(twice, (2 * a + b) / 3)
    record = federate(problem, [Fixed([[1, 1, 4]])], 0).round()
    assert record.clients["client"] == [1, 4]
    for name in ("fedvarp", "cluster_fedvarp"):
        settings = {"clusters": list(range(8))} if name == "cluster_fedvarp" else {}
        same(federate(problem, [Fixed([[1, 1, 4]]), *make(name, **settings)], 1).w, twice)


def law_fedavg_stalls_where_scaffold_reaches_the_optimum() -> None:
    stalled = gap(federate(quadratic(), make("fedavg"), 40, lr=0.1))
    assert stalled > 1e-2, f"FedAvg must stall, its gap is {stalled:.2e}"
    reached = gap(federate(quadratic(), make("scaffold"), 40, lr=0.1))
    assert reached < 1e-5, f"SCAFFOLD's gap is {reached:.2e}"
    half = gap(federate(quadratic(), [Fixed(HALF), *make("scaffold")], 60, lr=0.1))
    assert half < 1e-5, f"SCAFFOLD's gap with half of the clients is {half:.2e}"


def law_scaffold_control_is_the_mean_of_the_clients_controls() -> None:
    fed = federate(quadratic(), [Fixed(HALF), part := Scaffold()], 0, server_lr=0.7)
    for _ in range(6):
        fed.round()
        same(part.c, part.ck[torch.arange(8)].mean(0))
        assert float(part.c.norm()) > 1e-3


def law_scaffold_control_of_a_client_is_its_mean_gradient() -> None:
    problem = quadratic()
    fed = federate(problem, [Fixed([[2, 3], [3, 4]]), part := Scaffold()], 0, epochs=1)
    for _ in range(2):  # in the second round c and c_3 are no longer zero
        gradient = problem.h[3] @ fed.w - problem.e[3]
        fed.round()
        same(part.ck[torch.tensor([3])][0], gradient)


def law_fedvarp_with_everybody_is_fedavg() -> None:
    same(federate(quadratic(), make("fedvarp"), 10).w, federate(quadratic(), make("fedavg"), 10).w)


def law_fedvarp_remembers_the_last_update_of_every_client() -> None:
    problem = quadratic()
    fed = federate(problem, [Fixed([[0, 3], [3, 5]]), *make("fedvarp")], 1)
    w, y = fed.w.clone(), {k: federate(problem, [Fixed([[k]])], 1).w for k in (0, 3)}
    fed.round()
    step = {k: federate(problem, [Fixed([[k]])], 1, w=w).w - w for k in (3, 5)}
    same(fed.w - w, (step[3] - y[3] + step[5]) / 2 + (y[0] + y[3]) / 8)


def law_fedvarp_removes_the_noise_of_participation() -> None:
    noisy = gap(federate(quadratic(), [Uniform(0.5)], 200, epochs=1, lr=0.1, seed=1))
    quiet = gap(federate(quadratic(), [Uniform(0.5), *make("fedvarp")], 200, epochs=1, lr=0.1, seed=1))
    assert quiet < 1e-3 < 1e-2 < noisy, f"gap {quiet:.2e} with memory, {noisy:.2e} without"


def law_cluster_fedvarp_with_a_cluster_each_is_fedvarp() -> None:
    own = federate(network(), [Fixed(HALF), *make("cluster_fedvarp", clusters=list(range(8)))], 6)
    same(own.w, federate(network(), [Fixed(HALF), *make("fedvarp")], 6).w)


def law_cluster_memory_is_the_mean_of_its_participants() -> None:
    problem, clusters = quadratic(), [0, 0, 1, 1, 2, 2, 2, 2]
    fed = federate(problem, [Fixed([[0, 1, 4, 4, 5]]), part := ClusterVarp(clusters)], 1)
    deltas = [federate(problem, [Fixed([[k]])], 1).w for k in (0, 1, 4, 5)]
    same(part.y[0], (deltas[0] + deltas[1]) / 2)
    same(part.y[2], (2 * deltas[2] + deltas[3]) / 3)
    assert not part.y[1].any()
    w, y = fed.w.clone(), part.y.clone()
    fed.round()
    steps = [federate(problem, [Fixed([[k]])], 1, w=w).w - w for k in (0, 1, 4, 4, 5)]
    drop = torch.stack([step - y[clusters[k]] for step, k in zip(steps, (0, 1, 4, 4, 5), strict=True)]).mean(0)
    same(fed.w - w, drop + y[torch.tensor(clusters)].mean(0))


def law_parts_that_are_switched_off_change_nothing() -> None:
    base = federate(network(), [Fixed(HALF)], 5).w
    off = {
        "fedprox": {"mu": 0.0},
        "fedrolex": {"beta": 1.0},
        "heterofl": {"beta": 1.0},
        "fedavgm": {"momentum": 0.0},
        "moon": {"mu": 0.0},
    }
    for name, settings in off.items():
        same(federate(network(), [Fixed(HALF), *make(name, **settings)], 5).w, base)


def law_fedscavar_without_its_pieces_is_each_of_its_methods() -> None:
    def w(*parts: Part) -> Tensor:
        return federate(network(), [Fixed(HALF), *parts], 5).w

    clusters = [0, 0, 1, 1, 2, 2, 0, 1]
    same(w(Window(1.0), Proximal(0.0), Scaffold()), w(*make("scaffold")))
    same(w(Window(1.0), Proximal(0.5)), w(*make("fedprox", mu=0.5)))
    same(w(Window(0.5, normalize="all"), Proximal(0.0)), w(*make("fedrolex", beta=0.5, normalize="all")))
    same(w(Window(1.0), ClusterVarp(clusters)), w(*make("cluster_fedvarp", clusters=clusters)))
    whole = federate(network(), make("fedscavar", beta=1.0, mu=0.0, clusters=list(range(8))), 5)
    same(whole.w, federate(network(), make("scaffold"), 5).w)  # everybody takes part: the memories cancel


def law_the_proximal_term_pulls_from_the_second_batch_on() -> None:
    problem, mu, lr = network(), 0.8, 0.1
    fed = federate(problem, [Fixed([[2]]), *make("fedprox", mu=mu)], 0, epochs=1, lr=lr, sgd=SGD(shuffle=False))
    anchor = fed.w.clone()
    fed.round()
    w, rows = anchor.clone(), problem.partition[2]
    for at in rows.split(4):
        u = w.clone().requires_grad_()
        out = torch.func.functional_call(problem.module, fed.layout.views(u), (problem.x[at],))
        (g,) = torch.autograd.grad(F.cross_entropy(out, problem.y[at]), u)
        w = w - lr * (g + mu * (w - anchor))
    same(fed.w, w)


def law_weight_decay_and_learning_rate_decay() -> None:
    problem, sgd = quadratic(), SGD(weight_decay=0.1)
    fed = federate(problem, [Fixed([[2]])], 2, epochs=1, lr=0.1, lr_decay=0.5, sgd=sgd)
    w = problem.init(0)
    for lr in (0.1, 0.05):
        w = w - lr * (problem.h[2] @ w - problem.e[2] + 0.1 * w)
    same(fed.w, w)


def law_momentum_and_clipping_are_those_of_torch() -> None:
    problem = network()
    fed = federate(
        problem, [Fixed([[5]])], 1, sgd=SGD(momentum=0.9, weight_decay=0.01, clip=0.3, shuffle=False), lr=0.2
    )
    module = problem.model(problem.init(0)).train()
    for p in module.parameters():
        p.requires_grad_()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        for at in problem.partition[5].split(4):
            optimiser.zero_grad()
            F.cross_entropy(module(problem.x[at]), problem.y[at]).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
            optimiser.step()
    same(fed.w, torch.cat([p.detach().flatten() for p in module.parameters()]), 1e-9)


def law_extract_is_mask_where_the_outside_is_zero() -> None:
    problem = network(hidden=(6,))
    w = problem.init(0)
    views = problem.layout.views(w)
    views["hidden.0.weight"][3:], views["hidden.0.bias"][3:], views["head.weight"][:, 3:] = 0, 0, 0
    ends = [
        federate(problem, [Fixed([[1, 4]]), *make("heterofl", beta=0.5, mode=mode)], 1, w=w).w
        for mode in ("extract", "mask")
    ]
    same(*ends)
    assert float((ends[0] - w).abs().max()) > 1e-3


def law_a_window_moves_only_its_units_and_rolls_over_all_of_them() -> None:
    problem = network(hidden=(4,))
    moved = torch.zeros(4)
    fed = federate(problem, make("fedrolex", beta=0.5), 0)
    for t in range(4):
        before = problem.layout.views(fed.w.clone())["hidden.0.weight"]
        fed.round()
        change = (problem.layout.views(fed.w)["hidden.0.weight"] - before).abs().sum(1) > 0
        assert change.nonzero()[:, 0].tolist() == sorted({t % 4, (t + 1) % 4})
        moved += change
    assert moved.tolist() == [2, 2, 2, 2]


def law_a_coordinate_is_averaged_over_those_who_hold_it() -> None:
    problem = network(hidden=(4,))
    beta = [1.0, *[0.25] * 7]
    fed = federate(problem, [Fixed([[0, 3]]), *make("fedrolex", beta=beta)], 1)
    alone = federate(problem, [Fixed([[0]]), *make("fedrolex", beta=beta)], 1)
    views, lone = problem.layout.views(fed.w), problem.layout.views(alone.w)
    same(views["hidden.0.weight"][1:], lone["hidden.0.weight"][1:])  # only client 0 holds units 1 to 3
    assert float((views["hidden.0.weight"][0] - lone["hidden.0.weight"][0]).abs().max()) > 1e-6
    by_all = federate(problem, [Fixed([[0, 3]]), *make("fedrolex", beta=beta, normalize="all")], 1)
    start = problem.layout.views(problem.init(0))["hidden.0.weight"][1:]
    same(problem.layout.views(by_all.w)["hidden.0.weight"][1:] - start, (lone["hidden.0.weight"][1:] - start) / 2)


def law_server_momentum_adds_up_past_steps() -> None:
    problem = quadratic()
    fed = federate(problem, make("fedavgm", momentum=0.5), 0, server_lr=0.8)
    w, m = fed.w.clone(), torch.zeros(6, dtype=torch.float64)
    for _ in range(3):
        step = federate(problem, [], 1, w=w).w - w
        w, m = w + 0.8 * (step + 0.5 * m), 0.5 * m + step
        fed.round()
        same(fed.w, w)


def law_adaptive_servers_follow_their_formulas() -> None:
    rules: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "fedadam": lambda v, s: 0.9 * v + 0.1 * s,
        "fedyogi": lambda v, s: v - 0.1 * s * torch.sign(v - s),
        "fedadagrad": lambda v, s: v + s,
    }
    for name, rule in rules.items():
        betas = {"beta1": 0.5} | ({} if name == "fedadagrad" else {"beta2": 0.9})
        problem = quadratic()
        fed = federate(problem, make(name, tau=0.1, **betas), 0, server_lr=0.3)
        w, m, v = fed.w.clone(), torch.zeros(6, dtype=torch.float64), torch.full((6,), 0.01, dtype=torch.float64)
        for _ in range(3):
            step = federate(problem, [], 1, w=w).w - w
            m, v = 0.5 * m + 0.5 * step, rule(v, step**2)
            w = w + 0.3 * m / (v.sqrt() + 0.1)
            fed.round()
            same(fed.w, w)


def law_fednova_is_fedavg_for_equal_steps() -> None:
    same(federate(quadratic(), make("fednova"), 5).w, federate(quadratic(), make("fedavg"), 5).w)


def law_fednova_counts_gradients_per_step() -> None:
    """With constant gradients g_k a client moves by −η a_k g_k, whatever the momentum: FedNova recovers the mean g."""
    h = torch.full((3,), 1e-9, dtype=torch.float64)
    e = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    steps = torch.tensor([2.0, 5.0, 9.0], dtype=torch.float64)
    for rho in (0.0, 0.5):
        sgd = SGD(momentum=rho)
        fed = federate(Quadratic(h, e), make("fednova"), 1, epochs=[2, 5, 9], lr=0.1, sgd=sgd)
        a = sum((1 - rho ** (steps - i).clamp(min=0)) / (1 - rho) for i in range(9)) if rho else steps
        same(fed.w, 0.1 * a.mean() * e.mean(0), 1e-6)
    fed = federate(Quadratic(h, e), [*make("fednova"), Proximal(0.5)], 1, epochs=[2, 5, 9], lr=0.1)
    a = (1 - (1 - 0.05) ** steps) / 0.05
    same(fed.w, 0.1 * a.mean() * e.mean(0), 1e-6)


def law_feddyn_reaches_the_optimum() -> None:
    for selection, times in (([], 60), ([Fixed([[0, 1], [2, 3], [1, 2], [0, 3]])], 120)):
        reached = gap(federate(quadratic(4, 3), [*selection, *make("feddyn", alpha=0.5)], times, epochs=20, lr=0.3))
        assert reached < 1e-5, f"FedDyn's gap is {reached:.2e}"


def law_moon_contrasts_the_global_with_the_last_model() -> None:
    problem, mu, tau, lr = network(), 2.0, 0.5, 0.3
    settings = {"epochs": 1, "batch_size": 1000, "lr": lr}
    fed = federate(problem, [Fixed([[6]]), *make("moon", mu=mu, temperature=tau)], 1, **settings)
    last, sent = fed.w.clone(), fed.w + 0.3
    fed.w = sent.clone()
    fed.round()
    u, rows = sent.clone().requires_grad_(), problem.partition[6]

    def embed(w: Tensor) -> Tensor:
        views = problem.layout.views(w)
        return torch.tanh(problem.x[rows] @ views["hidden.0.weight"].T + views["hidden.0.bias"])

    views, z = problem.layout.views(u), embed(u)
    a = torch.exp(F.cosine_similarity(z, embed(sent).detach()) / tau)
    b = torch.exp(F.cosine_similarity(z, embed(last)) / tau)
    logits = z @ views["head.weight"].T + views["head.bias"]
    loss = F.cross_entropy(logits, problem.y[rows]) + mu * -torch.log(a / (a + b)).mean()
    (g,) = torch.autograd.grad(loss, u)
    same(fed.w, sent - lr * g)
    assert Contrast(mu, tau) == Contrast(2.0, 0.5)


def law_a_server_schedule_scales_the_steps() -> None:
    problem = quadratic()
    for schedule, expected in (("step", [1, 1, 0.5]), ("cosine", [1, 0.75, 0.25]), ("inverse", [1, 1 / 1.5, 0.5])):
        fed = federate(problem, [ServerSchedule(schedule, 0.5, 2)], 0, rounds=3)  # type: ignore[arg-type]
        for factor in expected:
            plain = federate(problem, [], 1, w=fed.w).w - fed.w
            before = fed.w.clone()
            fed.round()
            same(fed.w - before, factor * plain)


EVERY: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedprox", {"mu": 0.3}),
    ("scaffold", {}),
    ("fedvarp", {}),
    ("cluster_fedvarp", {"clusters": [0, 1, 0, 1, 2, 2, 1, 0]}),
    ("fedrolex", {"beta": 0.5}),
    ("fedrolex", {"beta": 0.5, "mode": "mask"}),
    ("federated_dropout", {"beta": 0.5}),
    ("heterofl", {"beta": 0.5}),
    ("fedscavar", {"clusters": [0, 1, 0, 1, 2, 2, 1, 0]}),
    ("fedavgm", {}),
    ("fedadam", {}),
    ("fedyogi", {}),
    ("fedadagrad", {}),
    ("fednova", {}),
    ("feddyn", {"alpha": 0.3}),
    ("moon", {}),
    ("fedavg_schedule", {"schedule": "inverse"}),
    ("fedrcl", {}),
    ("qrmix", {"rank_k": 3, "oversampling": 3}),
    ("qrmix", {"rank_k": 3, "oversampling": 3, "rule": "lsq", "backbone": "freeze"}),
    ("fedlc", {}),
    ("fedntd", {}),
    ("feddecorr", {}),
    ("fedsam", {}),
    ("fedacg", {}),
    ("fedexp", {}),
    ("fedcm", {}),
    ("feddc", {}),
    ("mime", {"beta": 0.5}),
    ("mimelite", {"beta": 0.5}),
    ("local", {}),
    ("fedper", {}),
    ("lg_fedavg", {}),
    ("fedbn", {}),
    ("fedrep", {"head_epochs": 2}),
    ("fedbabu", {}),
    ("ditto", {}),
    ("apfl", {}),
    ("pfedme", {}),
    ("per_fedavg", {}),
    ("fedala", {"start_epochs": 2}),
]


def law_a_streamed_round_is_the_round() -> None:
    """Blocks of one client give what one block of all gives: no part changes in `receive` what `send` still reads."""
    for name, settings in EVERY:
        whole = federate(network(), [Fixed(HALF), *make(name, **settings)], 4, epochs=[1, 2, 3, 1, 2, 3, 1, 2])
        before, rounds.BLOCK = rounds.BLOCK, 1
        try:
            stream = federate(network(), [Fixed(HALF), *make(name, **settings)], 4, epochs=[1, 2, 3, 1, 2, 3, 1, 2])
        finally:
            rounds.BLOCK = before
        same(whole.w, stream.w)


def law_the_order_of_a_cohort_does_not_matter() -> None:
    backwards = [list(reversed(cohort)) for cohort in HALF]
    for name, settings in EVERY:
        a, b = (federate(network(), [Fixed(c), *make(name, **settings)], 3).w for c in (HALF, backwards))
        same(a, b, 0.0)


def law_conformance_cases_hold() -> None:
    for path in sorted(PACKAGED.glob("*.npz")):
        if implemented(path) and read(path, "serial").spec["kind"] == "federated":
            outcome = replay(path)
            assert outcome.ok, f"{outcome.name}: {outcome.error:.2e}"
