"""The laws of methods with personal models; `method_laws.py` says what laws are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from small import HALF, federate, make, network, quadratic, same
from torch import nn
from torch.nn import functional as F

from arno.client_selection.schedule import Fixed
from arno.core.federation import Federation
from arno.core.method_part import Part
from arno.core.table import ClientTable
from arno.core.work import SGD, Work
from arno.data.dataset import Transform
from arno.errors import ArnoError
from arno.methods.apfl import Mixture
from arno.methods.ditto import PersonalModel
from arno.methods.fedacg import LookAhead
from arno.methods.fedala import LocalAggregation
from arno.methods.fedexp import Extrapolation
from arno.methods.kept_layers import Keep
from arno.methods.sub_models import Window
from arno.problems.quadratic import Quadratic
from arno.problems.supervised import Supervised, View

ALL = torch.arange(8)


def normed() -> Supervised:
    """A network with batch normalisation."""
    plain = network()
    return Supervised(
        plain.x,
        plain.y,
        plain.partition,
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
        transform=Transform((0.0,), (1.0,), 1.0),
        dtype=torch.float64,
    )


def run(name: str, problem: Any, times: int = 3, part: dict[str, Any] | None = None, **settings: Any) -> Federation:
    """A method on half of the clients."""
    return federate(problem, [Fixed(HALF), *make(name, **(part or {}))], times, **settings)


def alone(problem: Supervised, k: int, times: int, **settings: Any) -> torch.Tensor:
    """Client k trained by itself, round after round."""
    w = problem.init(0)
    for t in range(times):
        fed = federate(problem, [Fixed([[k]])], 0, w=w, **settings)
        fed.t = t
        fed.round()
        w = fed.w
    return w


def law_what_is_kept_never_leaves_the_client() -> None:
    for name, group, problem in (
        ("fedper", "head", network()),
        ("lg_fedavg", "body", network()),
        ("fedrep", "head", network()),
        ("fedbabu", "head", network()),
        ("fedbn", "norm", normed()),
        ("local", "full", network()),
    ):
        fed = run(name, problem, 0)
        mask, start = fed.layout.mask(group), fed.w.clone()
        for _ in range(3):
            record = fed.round()
            assert set(record.clients["uploaded"]) == {fed.layout.size - int(mask.sum())}, name
        assert torch.equal(fed.w[mask], start[mask]), name
        assert mask.all() or not torch.equal(fed.w[~mask], start[~mask]), name


def law_what_is_kept_enters_no_state_of_the_server() -> None:
    problem = network()
    head = problem.layout.mask("head")
    for name, owner in (("scaffold", "c"), ("fedvarp", "y"), ("feddyn", "h"), ("fedavgm", "M"), ("fedacg", "m")):
        fed = federate(problem, [Fixed(HALF), Keep("head"), *make(name)], 3)
        state = {key: value for part in fed.parts for key, value in part.state().items()}[owner]
        state = state[ALL] if isinstance(state, ClientTable) else state
        assert state[..., ~head].any(), name
        assert not state[..., head].any(), name
    exp = Extrapolation(1e-9)
    federate(problem, [Fixed(HALF), Keep("head"), exp], 1)
    rows = torch.stack([federate(problem, [Fixed([[k]])], 1).w - problem.init(0) for k in HALF[0]])[:, ~head]
    same(torch.tensor(exp.step), rows.square().sum(1).mean() / (2 * (rows.mean(0).square().sum() + 1e-9)), 1e-6)
    for name in ("fedcm", "mime", "mimelite"):  # the server would send a momentum for the head
        assert refused(lambda name=name: federate(problem, [Keep("head"), *make(name)], 0)), name
    for name in ("scaffold", "fednova"):  # they divide by steps, and not all of them move the body
        assert refused(lambda name=name: federate(problem, [*make("fedrep"), *make(name)], 0)), name


def law_moon_compares_with_the_model_that_the_client_kept() -> None:
    problem = network()
    fed = federate(problem, [Fixed([[3]]), Keep("body"), moon := make("moon")[0]], 1)
    same(moon.previous[torch.tensor([3])][0], fed.personal(torch.tensor([3]))[0] * problem.layout.mask("body")
         + alone(problem, 3, 1) * problem.layout.mask("head"))  # fmt: skip


def law_terms_see_the_received_model_in_every_phase() -> None:
    @dataclass
    class Watched(Part):
        roles: ClassVar[frozenset[str]] = frozenset({"loss"})

        def send(self, work: Work) -> Work:
            return replace(work, terms=(*work.terms, term))

    seen: list[torch.Tensor] = []

    def term(view: View) -> torch.Tensor:
        seen.append(view.job.sent.clone())
        return view.outputs.sum() * 0

    for name, settings in (("ditto", {}), ("fedrep", {"head_epochs": 1}), ("fedala", {"start_epochs": 1})):
        fed = federate(network(), [Fixed([[3], [3]]), *make(name, **settings), Watched()], 1, epochs=1)
        received = fed.personal(torch.tensor([3]))[0] if name == "fedrep" else fed.w
        seen.clear()
        fed.round()
        assert len(seen) > 4
        assert all(torch.equal(model, received) for model in seen), name


def law_networks_draw_from_streams_of_the_clients() -> None:
    plain = network()

    def problem() -> Supervised:
        net = lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3))  # noqa: E731
        transform = Transform((0.0,), (1.0,), 1.0)
        return Supervised(plain.x, plain.y, plain.partition, net, transform=transform, dtype=torch.float64)

    for name in ("fedavg", "fedsam", "mime", "apfl", "pfedme", "per_fedavg", "fedala", "ditto", "fedrep", "fedbabu"):
        models = []
        for draws in range(2):
            torch.manual_seed(draws)
            fed = run(name, problem(), 2, epochs=2)
            models.append(torch.cat([fed.w, fed.personal(ALL).flatten()]))
        assert torch.equal(*models), name
    # Mime's two gradients see the same draws: their difference is zero at the first step
    fed = federate(problem(), [Fixed([[3]]), mime := make("mime", beta=0.5)[0]], 0, epochs=1, batch_size=99, lr=0.1)
    start = fed.w
    fed.round()
    same(fed.w, start - 0.1 * mime.m)


def law_mime_clips_the_difference_of_the_loss_gradients() -> None:
    sgd = SGD(weight_decay=0.5, clip=1e-9)  # next to nothing is left of the difference
    fed = federate(network(), [Fixed([[3]]), mime := make("mime", beta=0.5)[0]], 0, epochs=1, batch_size=99, sgd=sgd)
    start = fed.w
    fed.round()
    same(fed.w, start - 0.05 * mime.m)


def law_sam_in_a_masked_window_moves_no_weight_outside_it() -> None:
    problem, rho = network(), 0.3
    window = Window(0.5, mode="mask")
    fed = federate(problem, [Fixed([[3]]), *make("fedsam", rho=rho), window], 0, epochs=1, batch_size=99)
    start = fed.w
    inside = next(iter(fed.blocks([3], 0))).windows[0].index
    fed.round()
    learner, (batch, job) = problem.learner(), (None, next(next(iter(fed.plain_blocks([3], 0))).jobs()))
    job = replace(job, sgd=SGD(shuffle=False))
    (batch,) = learner.batches(job)
    learner.w.copy_(start)
    learner.gradient(batch, job)
    ascent = torch.zeros_like(start)
    ascent[inside] = learner.g[inside]
    learner.w.copy_(start + rho * ascent / ascent.norm())
    learner.gradient(batch, job)
    step = torch.zeros_like(start)
    step[inside] = learner.g[inside]
    same(fed.w, start - 0.05 * step)


def law_local_training_is_training_alone() -> None:
    problem = network()
    fed = federate(problem, [Fixed([[2, 5]]), *make("local")], 3, sgd=SGD(shuffle=False))
    mine = fed.personal(ALL)
    for k in (2, 5):
        same(mine[k], alone(problem, k, 3, sgd=SGD(shuffle=False)))
    same(mine[0], problem.init(0))


def law_a_client_trains_its_own_values_and_the_shared_ones_of_today() -> None:
    problem = network()
    fed = federate(problem, [Fixed([[1, 2], [2, 4]]), part := Keep("head")], 1)
    mask, w, own = fed.layout.mask("head"), fed.w.clone(), part.kept[torch.tensor([2])][0]
    fed.round()
    start = w.clone()
    start[mask] = own
    ends = {}
    for k, first in ((2, start), (4, torch.where(mask, problem.init(0), w))):
        one = federate(problem, [Fixed([[k]])], 0, w=first)
        one.t = 1
        one.round()
        ends[k] = one.w
    same(part.kept[torch.tensor([2, 4])], torch.stack([ends[2], ends[4]])[:, mask])
    same(fed.w[~mask], ((ends[2] + ends[4]) / 2)[~mask])
    same(fed.personal(torch.tensor([1]))[0][~mask], fed.w[~mask])


def law_fedbn_keeps_running_statistics_and_is_fedavg_without_norms() -> None:
    same(run("fedbn", network()).w, run("fedavg", network()).w)
    fed = run("fedbn", normed(), 2)
    mine = fed.personal(ALL)
    tail = slice(fed.layout.d, None)
    assert not torch.equal(mine[0, tail], mine[2, tail])
    assert not torch.equal(mine[0, tail], fed.w[tail])


def law_fedrep_trains_the_head_first() -> None:
    problem = network(hidden=())
    settings = {"sgd": SGD(shuffle=False), "epochs": 2}
    rep = federate(problem, [Fixed([[2, 5]]), *make("fedrep", head_epochs=2)], 2, **settings)
    for k in (2, 5):  # one layer: the body is empty
        same(rep.personal(ALL)[k], alone(problem, k, 2, **settings))
    deep = network()
    once = {"epochs": 1, "sgd": SGD(shuffle=False), "batch_size": 99}
    fed = federate(deep, [Fixed([[3]]), *make("fedrep", head_epochs=1)], 1, **once)
    w0, mask = deep.init(0), deep.layout.mask("head")

    def gradient(w: torch.Tensor) -> torch.Tensor:
        w = w.detach().requires_grad_()
        rows = deep.partition[3]
        out = torch.func.functional_call(deep.module, deep.layout.views(w), (deep.x[rows],))
        return torch.autograd.grad(F.cross_entropy(out, deep.y[rows]), w)[0]

    head = w0 - 0.05 * gradient(w0) * mask
    same(fed.personal(torch.tensor([3]))[0], head - 0.05 * gradient(head) * ~mask)


def law_fedbabu_and_finetuning_adapt_the_last_model() -> None:
    problem = network()
    tuned = run("fedavg", problem, 3, {"finetune_epochs": 2})
    same(tuned.w, run("fedavg", problem, 3).w)
    none = run("fedavg", problem, 3, {"finetune_epochs": 0})
    assert torch.equal(none.personal(ALL), none.w.expand(8, -1))
    twice = tuned.personal(torch.tensor([7, 0]))
    same(twice, tuned.personal(ALL)[[7, 0]], 0.0)
    assert float((twice[0] - tuned.w).norm()) > 1e-3
    same(run("fedbabu", problem, 2, {"finetune_epochs": 0}).personal(ALL), run("fedbabu", problem, 2).w.expand(8, -1))
    part = run("fedavg", problem, 1, {"finetune_epochs": 1, "finetune_part": "head"})
    mask = part.layout.mask("head")
    assert torch.equal(part.personal(ALL)[:, ~mask], part.w[~mask].expand(8, -1))


def law_ditto_goes_to_its_proximal_point() -> None:
    problem = Quadratic(torch.full((8,), 2.0, dtype=torch.float64), quadratic().e)
    fed = federate(problem, make("ditto", lam=3.0), 60, lr=0.1, server_lr=0.0, epochs=5)
    own = problem.e / 2.0
    same(fed.personal(ALL), (2.0 * own + 3.0 * fed.w) / 5.0, 1e-9)
    net, settings = network(), {"sgd": SGD(shuffle=False)}
    free = federate(net, [Fixed([[2, 5]]), *make("ditto", lam=0.0)], 3, **settings)
    same(free.personal(ALL)[2], alone(net, 2, 3, **settings))
    for lam in (0.0, 2.0):  # the global model does not know of λ
        fed = federate(net, [Fixed([[2, 5]]), *make("ditto", lam=lam)], 3, **settings)
        same(fed.w, federate(net, [Fixed([[2, 5]])], 3, **settings).w)


def law_apfl_mixes_the_global_and_the_local_model() -> None:
    net, settings = network(), {"sgd": SGD(shuffle=False)}
    base = federate(net, [Fixed([[2, 5]])], 3, **settings)
    for alpha in (0.0, 0.4, 1.0):
        fed = federate(net, [Fixed([[2, 5]]), *make("apfl", alpha=alpha, adaptive=False)], 3, **settings)
        same(fed.w, base.w)
        if alpha == 0:
            same(fed.personal(ALL), fed.w.expand(8, -1))
        if alpha == 1:
            same(fed.personal(ALL)[2], alone(net, 2, 3, **settings))


def law_apfl_learns_its_share_within_bounds() -> None:
    problem = quadratic()
    fed = federate(problem, [Fixed([[0, 3]]), part := Mixture(0.5)], 1, epochs=1, lr=0.1)
    assert part.a[:1].item() == 0.5, "in its first round v = w: the share does not move"
    w, v = fed.w.clone(), part.v[ALL]
    fed.round()
    for k in (0, 3):
        mixed = 0.5 * v[k] + 0.5 * w
        g = problem.h[k] @ mixed - problem.e[k]
        assert abs(float(part.a[k]) - min(1, max(0, 0.5 - 0.1 * float((v[k] - w) @ g)))) < 1e-12
        same(part.v[torch.tensor([k])][0], v[k] - 0.1 * 0.5 * g)
    wild = federate(problem, [Fixed([[0, 3]]), part := Mixture(0.5)], 8, lr=0.5, epochs=1)
    assert torch.isfinite(wild.w).all()
    assert 0 <= float(part.a.min()) <= float(part.a.max()) <= 1


def law_pfedme_is_fedavg_with_another_rate_for_one_inner_step() -> None:
    net, settings = network(), {"sgd": SGD(shuffle=False), "epochs": 1, "batch_size": 99}
    me = federate(net, [Fixed(HALF), *make("pfedme", lam=4.0, inner_steps=1, inner_lr=0.1)], 3, lr=0.5, **settings)
    same(me.w, federate(net, [Fixed(HALF)], 3, lr=0.5 * 4.0 * 0.1, **settings).w)
    still = run("pfedme", net, 2, {"beta": 0.0})
    same(still.w, net.init(0))
    assert float((still.personal(ALL)[0] - net.init(0)).norm()) > 1e-3
    same(still.personal(torch.tensor([4]))[0], still.w)  # it has not taken part
    problem = Quadratic(torch.full((8,), 2.0, dtype=torch.float64), quadratic().e)
    far = federate(problem, make("pfedme", lam=3.0, inner_steps=400, inner_lr=0.1), 1, epochs=1, lr=1e-9)
    same(far.personal(ALL), (problem.e + 3.0 * far.w) / 5.0, 1e-6)


def law_per_fedavg_takes_the_gradient_after_a_step() -> None:
    net, alpha, lr = network(), 0.3, 0.2
    settings = {"epochs": 1, "batch_size": 99, "lr": lr, "sgd": SGD(weight_decay=0.1)}
    w0, rows = net.init(0), net.partition[4]

    def objective(w: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(net.module, net.layout.views(w), (net.x[rows],))
        return F.cross_entropy(out, net.y[rows]) + 0.05 * w @ w

    def adapted(w: torch.Tensor) -> torch.Tensor:
        (g,) = torch.autograd.grad(objective(w), w, create_graph=True)
        return objective(w - alpha * g)

    w = w0.clone().requires_grad_()
    (meta,) = torch.autograd.grad(adapted(w), w)
    exact, near, first = (
        federate(net, [Fixed([[4]]), *make("per_fedavg", alpha=alpha, variant=v, delta=1e-5)], 1, **settings)
        for v in ("exact", "hf", "fo")
    )
    same(exact.w, w0 - lr * meta)
    same(near.w, exact.w, 1e-7)
    assert float((first.w - exact.w).norm()) > 1e-4
    (g,) = torch.autograd.grad(objective(w), w)
    for steps in (0, 1):
        fed = federate(net, make("per_fedavg", alpha=alpha, adapt_steps=steps), 0, w=w0, **settings)
        same(fed.personal(torch.tensor([4]))[0], w0 - steps * alpha * g)
    plain = federate(net, [Fixed(HALF)], 2, **settings).w
    for variant in ("hf", "fo", "exact"):
        same(federate(net, [Fixed(HALF), *make("per_fedavg", alpha=0.0, variant=variant)], 2, **settings).w, plain)


def law_fedala_learns_weights_between_zero_and_one() -> None:
    net = network()
    same(run("fedala", net, 3, {"eta": 0.0}).w, run("fedavg", net, 3).w)
    wild = federate(net, [Fixed([[0, 1], [0, 1]]), part := LocalAggregation(eta=50.0, start_epochs=2)], 3)
    weights = part.weights[torch.tensor([0, 1])]
    assert 0 <= float(weights.min()) < 1
    assert float(weights.max()) <= 1
    assert torch.isfinite(wild.w).all()
    same(wild.personal(torch.tensor([5]))[0], wild.w)
    same(wild.personal(torch.tensor([0]))[0], part.own[torch.tensor([0])][0])


def law_on_one_layer_fedper_is_local_training_and_lg_fedavg_is_fedavg() -> None:
    layer = network(hidden=())
    same(run("fedper", layer).personal(ALL), run("local", layer).personal(ALL))
    same(run("fedper", layer).w, layer.init(0))
    same(run("lg_fedavg", layer).w, run("fedavg", layer).w)


def law_ditto_with_a_full_pull_steps_from_the_global_model() -> None:
    problem, lr = quadratic(), 0.05
    settings: dict[str, Any] = {"epochs": 1, "lr": lr}
    fed = federate(problem, [Fixed([[1, 4]]), part := PersonalModel(1 / lr)], 2, **settings)
    w, v = fed.w.clone(), part.v[ALL]
    fed.round()
    for k in (1, 4):
        same(part.v[torch.tensor([k])][0], w - lr * (problem.h[k] @ v[k] - problem.e[k]))
    rates, pulls = [0.5, *[0.1] * 7], [0.1, *[5.0] * 7]  # their products stay below 2
    federate(problem, make("ditto", lam=pulls), 0, lr=rates)
    assert refused(lambda: federate(problem, make("ditto", lam=[5.0, *[0.1] * 7]), 0, lr=rates))


def law_apfl_sends_the_mixture_to_the_clients_minimum_where_w_is_held() -> None:
    problem = Quadratic(torch.full((8,), 2.0, dtype=torch.float64), quadratic().e)
    fed = federate(problem, make("apfl", alpha=0.8, adaptive=False), 120, lr=0.3, epochs=1, server_lr=0.0)
    same(fed.personal(ALL), problem.e / 2.0, 1e-9)


def law_pfedme_without_a_pull_is_local_sgd_with_the_inner_rate() -> None:
    net, settings = network(), {"sgd": SGD(shuffle=False, weight_decay=0.1)}
    fed = federate(net, [Fixed([[2]]), *make("pfedme", lam=0.0, inner_steps=1, inner_lr=0.2)], 1, **settings)
    same(fed.w, net.init(0))
    same(fed.personal(ALL)[2], federate(net, [Fixed([[2]])], 1, lr=0.2, **settings).w)


def law_per_fedavg_contracts_quadratics_as_its_formula_says() -> None:
    h, alpha, lr = 2.0, 0.2, 0.1
    problem = Quadratic(torch.full((8,), h, dtype=torch.float64), quadratic().e)
    start, minimum = problem.init(0), problem.e[3] / h
    for variant, factor in (("exact", (1 - alpha * h) ** 2), ("hf", (1 - alpha * h) ** 2), ("fo", 1 - alpha * h)):
        part = make("per_fedavg", alpha=alpha, variant=variant, delta=0.5)
        fed = federate(problem, [Fixed([[3]]), *part], 1, epochs=1, lr=lr)
        same(fed.w - minimum, (1 - lr * h * factor) * (start - minimum))


def law_fedala_starts_at_the_global_model_outside_the_last_layers() -> None:
    net = network()
    moved = federate(net, [Fixed([[0, 1]]), part := LocalAggregation(eta=2.0, start_epochs=3)], 1)
    moved._lr = moved.per_client(1e-13, "local.lr")  # the second round shows its start
    w, own = moved.w.clone(), part.own[ALL]
    moved.round()
    head = net.layout.mask("head")
    found, weights = part.own[torch.tensor([0])][0], part.weights[torch.tensor([0])][0]
    same(found[~head], w[~head], 1e-10)
    same(found[head], (own[0] + (w - own[0]))[head] * weights + own[0][head] * (1 - weights), 1e-10)
    assert float(weights.min()) < 1


def law_running_statistics_are_in_no_norm_and_no_momentum() -> None:
    problem = normed()
    tail = slice(problem.layout.d, None)
    fed = federate(problem, [Fixed(HALF), exp := Extrapolation(1e-3)], 1)
    deltas = torch.stack([federate(problem, [Fixed([[k]])], 1).w - problem.init(0) for k in HALF[0]])
    mean = deltas.mean(0)
    rows, step = deltas[:, : problem.layout.d], mean[: problem.layout.d]
    same(
        torch.tensor(exp.step, dtype=torch.float64),
        (rows.square().sum(1).mean() / (2 * (step @ step + 1e-3))).clamp(min=1),
    )
    same(fed.w[tail], (problem.init(0) + mean)[tail])
    ahead = federate(problem, [Fixed(HALF), part := LookAhead(0.9, 0.0)], 2)
    assert not part.m[tail].any()
    assert torch.isfinite(ahead.w).all()


def law_parts_declare_what_they_send() -> None:
    d = network().layout.d
    for name, down, up in (("fedavg", d, d), ("scaffold", 2 * d, 2 * d), ("mime", 3 * d, 2 * d), ("fedexp", d, d + 1)):
        record = run(name, network(), 0).round()
        assert set(record.clients["downloaded"]) == {down}, name
        assert set(record.clients["uploaded"]) == {up}, name


def refused(attempt: Any) -> bool:
    """Whether something is refused with a reason."""
    try:
        attempt()
    except ArnoError:
        return True
    return False
